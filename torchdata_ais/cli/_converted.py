"""What a conversion has written and what it has left out, for people and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.shard_names import common_beginning
from torchdata_ais.shown import bytes_text, count_text
from torchdata_ais.urls import parse_url
from torchdata_ais.urls.templates import expand_template
from torchdata_ais.writing.sources.files import OUTSIDE_CELL, OUTSIDE_LINK

if TYPE_CHECKING:
    from torchdata_ais.writing import Conversion

_SHOWN = 8  # classes


def tell(done: Conversion, target: str, *, as_json: bool) -> None:
    """Print what was written, and what was not."""
    if as_json:
        rows = [
            {"name": shard.name, "samples": shard.samples, "size": shard.size, "checksum": shard.checksum}
            for shard in done.shards
        ]
        counts: dict[str, Any] = {"dropped": done.dropped, "skipped": done.skipped}
        counts["left_out"] = [one._asdict() for one in done.left_out]
        if done.classes:
            counts |= {"classes": done.notes["classes"], "classes_in": done.classes}
        lacking = [one._asdict() for one in done.lacking]
        others = {"splits": done.splits, "stale": done.stale, "lacking": lacking, "by_class": done.by_class}
        counts |= {name: value for name, value in others.items() if value}
        echo_json({"samples": done.samples, "size": done.size, **counts, "shards": rows})
        return
    skipped = sum(done.skipped.values())
    echo(
        f"wrote {count_text(done.samples, 'sample')}, {bytes_text(done.size)}, "
        f"in {count_text(len(done.shards), 'shard')} {target}"
        + (f": {', '.join(f'{name} {count}' for name, count in done.splits.items())}" if done.splits else "")
        + (f"; {done.dropped} left out" if done.dropped else "")
        + (f"; {count_text(skipped, 'error')} skipped" if skipped else "")
    )
    if done.classes:
        names = done.notes["classes"]
        shown = ", ".join(f"{name} {number}" for number, name in enumerate(names[:_SHOWN]))
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        echo(
            f"{'1 class' if len(names) == 1 else f'{len(names)} classes'}: {shown}{more}; noted in {done.classes}"
        )
    for reason, count, first in done.left_out:
        echo(
            f"note: {count} left out ({reason}): {first.splitlines()[0] if first else 'see above'}", err=True
        )
    if any(one.reason in (OUTSIDE_LINK, OUTSIDE_CELL) for one in done.left_out):
        echo("note: --allow-outside follows links and cells that lead out of the folder", err=True)
    for name, count, first in done.lacking:
        echo(f"note: {count_text(count, 'sample')} without {name}, such as {first}", err=True)
    if done.by_class:
        echo("note: the samples stand class after class, as their folders do; --shuffle mixes them", err=True)
    if done.stale:
        older = count_text(len(done.stale), "older shard")
        echo(
            f"warning: {older} of this pattern left beyond the new ones: training would read them, too",
            f"next: {_removing(done.stale)}",
            err=True,
        )


def _removing(shards: list[str]) -> str:
    """Return the command that removes shards; a shell expands the braces that stand for many.

    Example:
        >>> _removing([f"ais://pets/s-{number:03d}.tar" for number in range(8, 12)])
        'torchdata-ais rm ais://pets/s-0{08..11}.tar'
        >>> _removing(["out/a b-1.tar"])
        "rm 'out/a b-1.tar'"
    """
    command = "torchdata-ais rm" if parse_url(shards[0]).kind == "object" else "rm"
    head, tail = common_beginning(shards), common_beginning([name[::-1] for name in shards])[::-1]
    first, last = (name[len(head) : len(name) - len(tail)] for name in (shards[0], shards[-1]))
    if first.isdigit() and last.isdigit():
        braces = f"{{{first}..{last}}}"
        if [f"{head}{number}{tail}" for number in expand_template(braces)] == shards:
            return f"{command} {shlex.quote(head)}{braces}{shlex.quote(tail)}"
    return f"{command} {shlex.join(shards)}"
