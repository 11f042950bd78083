"""Tables as files and objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xxhash

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.writing.sources.parquet_rows import ParquetRows
from torchdata_ais.writing.sources.rows import ListedRows, Rows
from torchdata_ais.writing.sources.text_rows import rows_of_text


def read_rows(urls: Sequence[str], options: StoreOptions) -> Rows:
    """Return the rows of a table, or of several Parquet files.

    Args:
        urls: ``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson`` (in UTF-8) or ``.parquet`` files or objects.
        options: Transport settings.

    Raises:
        NotFoundError: There is no such table, or it is empty.
        UsageError: It cannot be parsed.
    """
    if urls[0].lower().endswith("parquet"):
        rows: Rows = ParquetRows([(redact(url), _opened(url, options)) for url in urls])
    elif len(urls) > 1:
        raise UsageError.at(
            "several tables that are no Parquet files", todo="convert them one by one", url=urls[1]
        )
    else:
        content = read_bytes(urls[0], options)
        rows = ListedRows(rows_of_text(content, urls[0]), xxhash.xxh64_hexdigest(content))
    if not len(rows):
        raise NotFoundError.at("the table has no row", url=urls[0])
    return rows


def read_bytes(url: str, options: StoreOptions) -> bytes:
    """Return a whole file or object, verified."""
    with open_blocks(url, options) as blocks:
        return b"".join(blocks)


def _opened(url: str, options: StoreOptions) -> Any:
    """Return the path of a file, or an object's bytes."""
    import pyarrow as pa

    place = parse_url(url)
    if place.kind != "file":
        return pa.BufferReader(read_bytes(url, options))
    with open_blocks(place, options) as blocks:  # whether it is there, in words of this package
        next(iter(blocks), b"")
    return place.name
