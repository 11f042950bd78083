"""The rows of a shard's samples in other forms: as references, as tables for users, as they were built."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from torchdata_ais.index.entries import IndexedShard, ShardEntry, ShardSamples
from torchdata_ais.index.form import SAMPLES
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.plan.hashing import Integers


class SampleReference(NamedTuple):
    """Where one sample stands, and what is known of it.

    Attributes:
        shard: The row of its shard.
        start: Where its first header begins, in bytes of the shard.
        size: Bytes from there to the header after it.
        key: Its key; bytes that are no UTF-8 are escaped.
        fields: The names of its fields.
        sizes: The bytes of each.
        xxh64: XXH64 of the bytes from start on, or None if nobody has read them yet.
        number: Which shard of the index it is.
        before: The key of the sample before it, where nobody has read the shard: links, and members of a name that
            comes twice, are in no index of the cluster, and may stand between the two.
    """

    shard: ShardRow
    start: int
    size: int
    key: str
    fields: tuple[str, ...]
    sizes: tuple[int, ...]
    xxh64: int | None
    number: int = 0
    before: str | None = None


SHOWN = pa.schema(
    [
        pa.field("shard", pa.string()),
        *(SAMPLES.field(name) for name in ("key", "start", "size")),
        pa.field("fields", pa.list_(pa.string())),
        SAMPLES.field("sizes"),
        SAMPLES.field("xxh64"),
    ]
)


def shown_rows(stored: StoredIndex, shard: int, rows: Integers | None) -> pa.RecordBatch:
    """Return rows of a shard's samples as users see them: `SHOWN`."""
    batch = stored.samples(shard)
    if rows is not None and len(rows) < len(batch):
        batch = batch.take(pa.array(rows))
    names = pa.array(
        [stored.fields[number] for number in batch.column("fields").to_pylist()], pa.list_(pa.string())
    )
    columns = {name: batch.column(name) for name in ("key", "start", "size", "sizes", "xxh64")}
    columns |= {"shard": pa.array([stored.shard(shard).name] * len(batch), pa.string()), "fields": names}
    return pa.record_batch([columns[name] for name in SHOWN.names], schema=SHOWN)


def entry_of(stored: StoredIndex, shard: int, rows: Integers | None) -> IndexedShard:
    """Return rows of a shard's samples as they were built."""
    row, batch = stored.shard(shard), stored.samples(shard)
    if rows is not None:
        batch = batch.take(pa.array(rows))
    starts = batch.column("start").to_pylist()
    samples = ShardSamples(
        keys=batch.column("key").to_pylist(),
        starts=starts,
        ends=[start + size for start, size in zip(starts, batch.column("size").to_pylist(), strict=True)],
        fields=[stored.fields[number] for number in batch.column("fields").to_pylist()],
        sizes=[tuple(sizes) for sizes in batch.column("sizes").to_pylist()],
        xxh64=batch.column("xxh64").to_pylist() if row.proven else None,
        columns={name: batch.column(name).to_pylist() for name in stored.head.columns},
    )
    return ShardEntry(row.name, row.size, row.checksum, row.version), samples


def references(stored: StoredIndex, shard: int, rows: Integers, number: int) -> Iterator[SampleReference]:
    """Yield rows of a shard's samples as references; `number` is the shard's in the whole index."""
    row, batch = stored.shard(shard), stored.samples(shard)
    columns = [batch.column(name) for name in ("start", "size", "key", "fields", "sizes", "xxh64")]
    wanted: Iterable[tuple[Any, ...]]
    if 4 * len(rows) < len(batch):  # a few values are cheaper one by one
        wanted = (tuple(column[place].as_py() for column in columns) for place in rows.tolist())
    else:
        taken = pa.array(rows)
        wanted = zip(*(column.take(taken).to_pylist() for column in columns), strict=True)
    before: Iterable[str | None] = itertools.repeat(None)
    if not row.proven:
        keys = columns[2]
        before = (keys[place - 1].as_py() if place else None for place in rows.tolist())
    for (start, size, key, fields, sizes, digest), last in zip(wanted, before, strict=False):
        yield SampleReference(
            row, start, size, key, stored.fields[fields], tuple(sizes), digest, number, last
        )
