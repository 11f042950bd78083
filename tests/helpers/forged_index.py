"""Indexes as a forger writes them: all checksums are right, and what they are of is the forger's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from torchdata_ais.index import LocalFolder, StoredIndex
from torchdata_ais.index import format as form

Rows = list[dict[str, Any]]
Change = Callable[[Any], object]


def forge_index(
    folder: Path,
    *,
    head: Mapping[str, Any] | None = None,
    rows: Change | None = None,
    samples: Change | None = None,
    counts: Change | None = None,
    fields: Change | None = None,
    columns: list[str] | None = None,
) -> None:
    """Change the index in a folder: functions change lists in place, `head` replaces entries of the head.

    A name for ``counts`` or ``fields`` in `head` replaces the file's name; a name for ``parts`` or ``before`` is the
    only one.
    """
    stored = StoredIndex(LocalFolder(folder))
    table: Rows = [row for number in range(len(stored.head.pages)) for row in stored.page(number).to_pylist()]
    found: list[Rows] = [stored.samples(number).to_pylist() for number in range(stored.head.shards)]
    kinds = [list(names) for names in stored.fields]
    numbers = [len(each) for each in found]
    for change, what in ((samples, found), (fields, kinds)):
        if change is not None:
            change(what)
    schema = form.samples_schema(stored.head.columns if columns is None else columns)
    known = set(schema.names)
    data, places = form.stacked(
        [
            pa.RecordBatch.from_pylist(
                [{k: v for k, v in row.items() if k in known} for row in each], schema=schema
            )
            for each in found
        ],
        schema,
    )
    for number, (row, (start, length)) in enumerate(zip(table, places, strict=True)):
        digest = xxhash.xxh64_intdigest(data[start : start + length])
        row.update(start=start, length=length, xxh64=digest, part=0, count=len(found[number]))
    if rows is not None:
        rows(table)
    if counts is not None:
        counts(numbers)
    blocks = {}
    for kind, batch in (
        ("counts", pa.record_batch([pa.array(numbers, pa.int64())], schema=form.COUNTS)),
        ("fields", pa.record_batch([pa.array(kinds, pa.list_(pa.string()))], schema=form.FIELDS)),
    ):
        held, ((start, length),) = form.stacked([batch], batch.schema)
        name = form.named_by_content(kind, held)
        (folder / name).write_bytes(held)
        blocks[kind] = form.block_of(name, start, held[start : start + length])
    part = form.named_by_content("samples", data)
    (folder / part).write_bytes(data)
    changed: dict[str, Any] = {
        "parts": [part],
        "before": [],
        **blocks,
        "samples": sum(numbers),
        "shards": len(table),
        "whole": "0" * 16,
    }
    for entry, value in (head or {}).items():
        if entry in blocks and isinstance(value, str):
            value = _renamed(blocks[entry], value)
        elif entry in ("parts", "before") and isinstance(value, str):
            value = [value]
        changed[entry] = value
    forged = msgspec.structs.replace(stored.head, **changed)
    pages = [
        pa.RecordBatch.from_pylist(table[begin : begin + form.PAGE_ROWS], schema=form.SHARDS)
        for begin in range(0, len(table), form.PAGE_ROWS)
    ]
    (folder / form.TABLE).write_bytes(form.table_file(forged, pages))


def _renamed(block: form.Block, name: str) -> form.Block:
    return form.Block(name, block.start, block.length, block.xxh64)
