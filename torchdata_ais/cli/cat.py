"""``torchdata-ais cat``: the bytes of objects and members, to standard output."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable

from torchdata_ais.cli._echo import bytes_out, echo
from torchdata_ais.cli._run import Endpoint, command, options_for
from torchdata_ais.errors import UsageError


@command("torchdata_ais.store")
def cat(
    urls: list[str],
    endpoint: Endpoint = "",
) -> None:
    """Write objects, or members of shards, to standard output.

    Names are whole ones: a prefix is refused. A terminal is shown text alone, with control characters spelled out.

    Args:
        urls (URL...): ais://bucket/object, a template, or ais://bucket/shard.tar/member.jpg.

    Examples:
        torchdata-ais cat ais://pets/classes.json
        torchdata-ais cat ais://pets/train-000.tar/cat/0001.jpg > cat.jpg
        torchdata-ais cat ais://pets/train-000.tar | tar t
    """
    from torchdata_ais.cli._objects import blocks_of, find

    options = options_for(endpoint)
    shown = sys.stdout is not None and sys.stdout.isatty()
    for url in urls:
        for found in find(url, options, prefix=False):
            with blocks_of(found, options) as blocks:
                if shown:
                    _show(blocks, found.uri)
                    continue
                with bytes_out() as out:
                    for block in blocks:
                        out.write(block)


def _show(blocks: Iterable[bytes], uri: str) -> None:
    """Show text as it comes, line after line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    try:
        for block in blocks:
            if b"\0" in block:
                raise UnicodeError
            *lines, rest = (rest + decoder.decode(block)).split("\n")
            echo(*lines)
        rest += decoder.decode(b"", final=True)
    except UnicodeError:
        raise UsageError.at(
            f"{uri} is no text, and a terminal shows nothing else",
            todo="add > FILE, or use torchdata-ais get",
        ) from None
    echo(*filter(None, [rest]))
