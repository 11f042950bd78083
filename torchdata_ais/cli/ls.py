"""``torchdata-ais ls``: what a bucket holds."""

from __future__ import annotations

from typing import Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import Debug, Endpoint, counted, options_for, reported, size_text
from torchdata_ais.errors import UsageError
from torchdata_ais.urls import parse_url


def ls(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="ais://bucket, ais://bucket/prefix, or the same of s3://, gs://, az://."
        ),
    ],
    regex: Annotated[
        str, typer.Option(help=r"Only names in which this is found, such as '\.tar$'.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    endpoint: Endpoint = "",
    debug: Debug = False,
) -> None:
    """List the objects of a bucket or prefix, with their sizes."""
    with reported(debug, "aistore.sdk"):
        from torchdata_ais.store import list_objects

        if parse_url(url).kind != "object":
            raise UsageError.at(
                "this is no bucket", todo="write ais://bucket or ais://bucket/prefix", url=url
            )
        objects = list_objects(url, regex=regex or None, options=options_for(endpoint))
        rows = [
            {
                "url": parse_url(found).uri,
                "size": found.size,
                "checksum": found.checksum,
                "version": found.version,
            }
            for found in objects
        ]
        if as_json:
            echo_json(rows, indent=1)
            return
        for row, found in zip(rows, objects, strict=True):
            size = "?" if found.size is None else size_text(found.size)
            echo(f"{size:>10}  {row['url']}")
        total = sum(found.size or 0 for found in objects)
        echo(f"{counted(len(rows), 'object')}, {size_text(total)}", err=True)
