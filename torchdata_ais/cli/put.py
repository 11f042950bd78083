"""``torchdata-ais put``: files into a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from torchdata_ais.cli._echo import echo
from torchdata_ais.cli._run import Debug, Endpoint, counted, options_for, reported, size_text
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.urls import bucket_place, parse_url


def put(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A file, or a folder: all files below it.")],
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="ais://bucket/name for a file; ais://bucket/ or ais://bucket/prefix/ to keep names.",
        ),
    ],
    endpoint: Endpoint = "",
    debug: Debug = False,
) -> None:
    """Store a file or a folder of files; the bucket is made if it is missing.

    Names of a folder's files are their paths in it, put after the prefix as it stands.
    """
    with reported(debug, "aistore.sdk", "rich.progress"):
        from torchdata_ais.cli._bucket import Bucket
        from torchdata_ais.cli._progress import progress
        from torchdata_ais.store.naming import naming

        if not source.exists():
            raise NotFoundError.at("no such file or folder", todo="name one that exists", url=str(source))
        where = parse_url(url)
        if where.kind != "object":
            raise UsageError.at(
                "this is no bucket", todo="write ais://bucket or ais://bucket/prefix/", url=url
            )
        if where.namespace:
            raise UsageError.at("put knows no namespaces", todo="use the AIStore SDK for it", url=url)
        files = list(_named(source, where.name))
        if not files:
            raise NotFoundError.at("the folder holds no file", todo="name one that does", url=str(source))
        bucket = Bucket(options_for(endpoint, where.endpoint), bucket_place(where.bucket, where.provider))
        bucket.create()
        total = 0
        with progress("put", "file", len(files)) as advance:
            for name, path in files:
                with naming(str(path)):
                    bucket.put(name, path)
                total += path.stat().st_size
                advance(1)
        echo(f"stored {counted(len(files), 'object')}, {size_text(total)}, in {bucket.uri}")


def _named(source: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each file to store, sorted."""
    if source.is_file():
        yield (prefix + source.name if not prefix or prefix.endswith("/") else prefix), source
        return
    for path in sorted(found for found in source.rglob("*") if found.is_file()):
        yield prefix + path.relative_to(source).as_posix(), path
