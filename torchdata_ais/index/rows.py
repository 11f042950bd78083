"""Rows of a shard in an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from torchdata_ais.index.format import SAMPLES, as_arrow
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.plan.permutation import Integers


class ShardEntry(msgspec.Struct, frozen=True):
    """Metadata of one shard: URI, path or URL, and facts of the store."""

    name: str
    size: int | None = None
    checksum: str | None = None
    version: str | None = None


@dataclass
class ShardSamples:
    """The samples of one shard, in its order; all lists have the same length.

    Attributes:
        keys: Their keys.
        starts: Where the first header of each begins, in bytes of the shard.
        ends: Where the header after it begins.
        fields: The names of its fields, in their order.
        sizes: The bytes of each field.
        xxh64: XXH64 of the bytes from start to end, or None if they were not read.
        columns: Values of added columns by name; None where a value is unknown.
    """

    keys: list[str]
    starts: list[int]
    ends: list[int]
    fields: list[tuple[str, ...]]
    sizes: list[tuple[int, ...]]
    xxh64: list[int] | None
    columns: dict[str, list[int | None]] = field(default_factory=dict)


def content_of(samples: ShardSamples) -> int:
    """Return XXH64 over keys, fields and sizes, for any method of indexing.

    Example:
        >>> one = ShardSamples(["a"], [0], [1024], [("cls",)], [(1,)], None)
        >>> content_of(one) == content_of(ShardSamples(["a"], [0], [1024], [("cls",)], [(1,)], [77]))
        True
    """
    combinations = dict.fromkeys(samples.fields)
    numbers = {names: number for number, names in enumerate(combinations)}
    plain = [
        stored_texts(samples.keys),
        [[stored_text(name) for name in names] for names in combinations],
        [numbers[names] for names in samples.fields],
        samples.sizes,
    ]
    return xxhash.xxh64_intdigest(msgspec.msgpack.encode(plain))


IndexedShard = tuple[ShardEntry, ShardSamples]
"""A shard and its samples."""


def stored_text(text: str) -> str:
    r"""Return `text` as an index holds it: bytes that are not UTF-8 escaped.

    Example:
        >>> stored_text("caf\udce9"), stored_text("caf\u00e9") == "caf\u00e9"
        ('caf\\udce9', True)
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def stored_texts(texts: list[str]) -> list[str]:
    """Return texts as an index holds them."""
    return texts if "".join(texts).isascii() else [stored_text(text) for text in texts]


class SampleReference(NamedTuple):
    """Place and metadata of one sample.

    Attributes:
        shard: The row of its shard.
        start: Where its first header begins, in bytes of the shard.
        size: Bytes from there to the header after it.
        key: Its key; bytes that are not UTF-8 are escaped.
        fields: The names of its fields.
        sizes: The bytes of each.
        xxh64: XXH64 of the bytes from start on, or None if they were not read yet.
        number: The number of the shard in the index.
        before: The key of the sample before it, if the shard was not read. An index of the cluster lacks links and
            members of a repeated name, which may be between the two.
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


def shown_rows(
    stored: StoredIndex, shard: int, rows: Integers | None, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return rows of a shard's samples as users see them: `SHOWN`."""
    if rows is not None and len(rows) < len(batch):
        batch = batch.take(as_arrow(rows))
    names = pa.array(
        [stored.fields[number] for number in batch.column("fields").to_pylist()], pa.list_(pa.string())
    )
    columns = {name: batch.column(name) for name in ("key", "start", "size", "sizes", "xxh64")}
    columns |= {"shard": pa.array([stored.shard(shard).name] * len(batch), pa.string()), "fields": names}
    return pa.record_batch([columns[name] for name in SHOWN.names], schema=SHOWN)


def entry_of(stored: StoredIndex, shard: int, rows: Integers | None, batch: pa.RecordBatch) -> IndexedShard:
    """Return rows of `batch`, a shard's samples, as they were built."""
    row = stored.shard(shard)
    if rows is not None:
        batch = batch.take(as_arrow(rows))
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


_FEW = 10  # rows that are cheaper one by one than taken from the columns: 4 us each, instead of 42 us


def references(
    stored: StoredIndex, shard: int, batch: pa.RecordBatch, rows: Integers, number: int
) -> Iterator[SampleReference]:
    """Yield rows of `batch`, of the shard that is `number` in the whole index."""
    row = stored.shard(shard)
    columns = [batch.column(name) for name in ("start", "size", "key", "fields", "sizes", "xxh64")]
    wanted: Iterable[tuple[object, ...]]
    if len(rows) < _FEW:
        wanted = (tuple(column[place].as_py() for column in columns) for place in rows.tolist())
    else:
        taken = as_arrow(rows)
        wanted = zip(*(column.take(taken).to_pylist() for column in columns), strict=True)
    before: Iterable[str | None] = itertools.repeat(None)
    if not row.proven:
        keys = columns[2]
        before = (keys[place - 1].as_py() if place else None for place in rows.tolist())
    for (start, size, key, fields, sizes, digest), last in zip(wanted, before, strict=False):
        yield SampleReference(
            row, start, size, key, stored.fields[fields], tuple(sizes), digest, number, last
        )
