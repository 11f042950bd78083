"""``torchdata-ais ls``: buckets, what a bucket holds, what a shard holds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_for
from torchdata_ais.errors import UsageError
from torchdata_ais.shown import bytes_text, count_text
from torchdata_ais.urls import PROVIDERS, parse_url

if TYPE_CHECKING:
    from torchdata_ais.store import StoreOptions

_SCHEME = re.compile(r"(?P<scheme>\w*)://")


@command("torchdata_ais.store")
def ls(
    url: Annotated[str, typer.Argument()] = "",
    regex: str = "",
    long: Annotated[bool, typer.Option("--long", "-l")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    r"""List buckets, the objects of a bucket or prefix, or the members of a shard.

    All that a template names must be there.

    Args:
        url: ais://bucket, ais://bucket/prefix, a template, or the same of s3://, gs://, az://; ais://bucket/shard.tar/
            for the members of a shard. Without it, or ais://: the buckets.
        regex: Only names in which this is found, such as '\.tar$'.
        long: Show bytes, checksums and versions; of members the offset.
        as_json: Print one JSON array.

    Examples:
        torchdata-ais ls
        torchdata-ais ls -l ais://pets/train-
        torchdata-ais ls --regex '\.tar$' ais://pets
        torchdata-ais ls ais://pets/train-000.tar/
    """
    options = options_for(endpoint)
    scheme = _SCHEME.fullmatch(url)
    if not url or scheme:
        rows = _buckets(scheme["scheme"] if scheme else "", options)
        what = "bucket"
    elif url.endswith("/") and _is_shard(url, options):
        rows = _members(url.rstrip("/"), options)
        what = "member"
    else:
        rows = _objects(url, regex, options)
        what = "object"
    if regex and what != "object":
        rows = [row for row in rows if re.search(regex, row["url"])]
    if as_json:
        echo_json(rows, indent=1)
        return
    for row in rows:
        echo(_line(row, long))
    total = f", {bytes_text(sum(row['size'] or 0 for row in rows))}" if what != "bucket" else ""
    echo(f"{count_text(len(rows), what)}{total}", err=True)


def _line(row: dict[str, Any], long: bool) -> str:
    if "size" not in row:
        return str(row["url"])
    size = row["size"]
    if not long:
        return f"{'?' if size is None else bytes_text(size):>10}  {row['url']}"
    more = (
        [f"@{row['offset']:<12}"]
        if "offset" in row
        else [f"{row['checksum'] or '-':16}", f"v{row['version'] or '-'}"]
    )
    return "  ".join([f"{'?' if size is None else size:>12}", *more, row["url"]])


def _buckets(scheme: str, options: StoreOptions) -> list[dict[str, Any]]:
    from torchdata_ais.store import list_buckets

    if scheme and scheme.lower() not in PROVIDERS:
        raise UsageError.at(f"unknown scheme {scheme!r}", todo=f"use one of {', '.join(PROVIDERS)}")
    return [{"url": place.uri} for place in list_buckets(options, PROVIDERS.get(scheme.lower(), ""))]


def _objects(url: str, regex: str, options: StoreOptions) -> list[dict[str, Any]]:
    from torchdata_ais.cli._objects import named_objects, object_place
    from torchdata_ais.store import list_objects

    place = object_place(url)
    if "{" in place.name:
        found = named_objects(url, options, regex)
    else:
        found = list_objects(
            url, regex=regex or None, options=options, beside=True, allow_empty=not place.name and not regex
        )
    return [
        {"url": parse_url(one).uri, "size": one.size, "checksum": one.checksum, "version": one.version}
        for one in found
    ]


def _is_shard(url: str, options: StoreOptions) -> bool:
    from torchdata_ais.shard_names import is_shard
    from torchdata_ais.store import object_exists

    return is_shard(url.rstrip("/")) and object_exists(url.rstrip("/"), options)


def _members(url: str, options: StoreOptions) -> list[dict[str, Any]]:
    """Read a shard to its end, and return what it holds."""
    from torchdata_ais.store import open_blocks
    from torchdata_ais.tar import TarReader, decompress

    rows = []
    with open_blocks(url, options) as source:
        for name, data, offset, _ in TarReader(decompress(source, url=url), url=url):
            size = len(data) if isinstance(data, bytes) else 0  # a link has none
            rows.append({"url": f"{url}/{name}", "size": size, "offset": offset})
    return rows
