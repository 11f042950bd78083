"""`SampleIndex`: every sample of plain tars, by number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from torchdata_ais.errors import UsageError
from torchdata_ais.index.folder import LocalFolder
from torchdata_ais.index.form import SAMPLES
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.index.writer import IndexWriter, ShardEntry, ShardSamples
from torchdata_ais.plan.hashing import Integers

__all__ = ["SampleIndex", "SampleReference"]

Columns = Callable[[pa.RecordBatch], Any]


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
    """

    shard: ShardRow
    start: int
    size: int
    key: str
    fields: tuple[str, ...]
    sizes: tuple[int, ...]
    xxh64: int | None


class SampleIndex:
    """The samples of any number of stored indexes, in their order, or some of them.

    Made by `open`, `concat`, `select` and `split`; `torchdata_ais.indexing` builds one. An index does not change.

    Order: as stored: shards as they were listed, samples as they stand in their shard.

    Memory: 8 bytes a shard and 8 bytes a selected sample, and at most 32 MiB of tables that were asked for last.

    Example:
        >>> from torchdata_ais.indexing import build_index
        >>> from torchdata_ais.testing import example_shards
        >>> index = build_index(example_shards(counts=(3, 2)))
        >>> len(index), index[4].key, index[4].fields, index.proof
        (5, '00004', ('cls', 'txt'), 'bytes')
        >>> [reference.key for reference in index.select([4, 0])]
        ['00000', '00004']
    """

    def __init__(self, stored: Sequence[StoredIndex], positions: Integers | None = None) -> None:
        self._stored = list(stored)
        self._ends = np.cumsum([part.head.samples for part in self._stored], dtype=np.int64)
        self._total = int(self._ends[-1]) if len(self._ends) else 0
        self._positions = positions

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SampleIndex:
        """Open an index that lies in a folder.

        Raises:
            NotFoundError: There is none.
            SampleIndexError: It is damaged, or of a version this package does not read.
        """
        return cls([StoredIndex(LocalFolder(path))])

    @classmethod
    def concat(cls, indexes: Sequence[SampleIndex]) -> SampleIndex:
        """Return the samples of all `indexes`, one after the other.

        Raises:
            UsageError: None were given.
        """
        if not indexes:
            raise UsageError.at("no index to join", todo="pass at least one")
        positions = None
        if any(index._positions is not None for index in indexes):
            begins = np.cumsum([0, *(index._total for index in indexes)])
            positions = np.concatenate(
                [index._all_positions() + begin for index, begin in zip(indexes, begins, strict=False)]
            )
        return cls([part for index in indexes for part in index._stored], positions)

    def __len__(self) -> int:
        return self._total if self._positions is None else len(self._positions)

    def __repr__(self) -> str:
        shards = sum(part.head.shards for part in self._stored)
        return f"SampleIndex({len(self)} samples of {shards} shards, proof={self.proof!r}, digest={self.digest!r})"

    @overload
    def __getitem__(self, position: SupportsIndex) -> SampleReference: ...
    @overload
    def __getitem__(self, position: slice) -> SampleIndex: ...
    def __getitem__(self, position: SupportsIndex | slice) -> SampleReference | SampleIndex:
        if isinstance(position, slice):
            if position.step not in (None, 1):
                raise UsageError.at(f"a slice with step {position.step}", todo="pass the numbers to select()")
            return self._with(np.arange(len(self), dtype=np.int64)[position])
        number = position.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        return self.take([number % len(self)])[0]

    def __iter__(self) -> Iterator[SampleReference]:
        for begin in range(0, len(self), 4096):
            yield from self.take(np.arange(begin, min(begin + 4096, len(self))))

    def take(self, numbers: npt.ArrayLike) -> list[SampleReference]:
        """Return the references of some samples, in the order asked for; a shard's table is read once a call."""
        wanted = np.asarray(numbers, dtype=np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"samples {wanted.min()} to {wanted.max()} of {len(self)}")
        if self._positions is not None:
            wanted = self._positions[wanted]
        found: list[SampleReference | None] = [None] * len(wanted)
        for stored, part_places, part_positions in self._by_part(wanted):
            shards, rows = stored.locate(part_positions)
            for shard in np.unique(shards).tolist():
                here = np.flatnonzero(shards == shard)
                for place, reference in zip(
                    part_places[here].tolist(), _references(stored, shard, rows[here]), strict=True
                ):
                    found[place] = reference
        return [reference for reference in found if reference is not None]

    def _by_part(self, positions: Integers) -> Iterator[tuple[StoredIndex, Integers, Integers]]:
        parts = np.searchsorted(self._ends, positions, side="right")
        for number in np.unique(parts).tolist():
            places = np.flatnonzero(parts == number)
            begin = int(self._ends[number]) - self._stored[number].head.samples
            yield self._stored[number], places, positions[places] - begin

    @property
    def proof(self) -> str:
        """``"bytes"`` if the XXH64 of every sample is known, else ``"headers"``."""
        return "bytes" if all(part.head.proof == "bytes" for part in self._stored) else "headers"

    @property
    def digest(self) -> str:
        """What the index covers: names, sizes and checksums of shards, keys and sizes of samples, and which ones."""
        digests = [part.head.digest for part in self._stored]
        if len(digests) == 1 and self._positions is None:
            return digests[0]
        chosen = "" if self._positions is None else xxhash.xxh64_hexdigest(self._positions.tobytes())
        return xxhash.xxh64_hexdigest(msgspec.msgpack.encode([digests, chosen]))

    @property
    def fields(self) -> list[tuple[str, ...]]:
        """The combinations of fields that samples of the stored indexes have."""
        return list(dict.fromkeys(names for part in self._stored for names in part.fields))

    @property
    def shards(self) -> Iterator[ShardRow]:
        """The rows of all shards, in their order."""
        for part in self._stored:
            for number in range(part.head.shards):
                yield part.shard(number)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the samples, a batch a shard; shards without a selected sample are left out.

        The columns: ``shard`` (its name), ``key``, ``start``, ``size``, ``fields`` (a list of names), ``sizes``,
        ``xxh64``.
        """
        begin = 0
        for part in self._stored:
            for number in range(part.head.shards):
                count = int(part.counts[number])
                rows = self._rows_between(begin, begin + count)
                begin += count
                if rows is None or len(rows):
                    yield _shown(part, number, rows)

    def _rows_between(self, begin: int, end: int) -> Integers | None:
        """Return which rows of a shard are selected; None for all."""
        if self._positions is None:
            return None
        low, high = np.searchsorted(self._positions, [begin, end])
        return self._positions[low:high] - begin

    @property
    def keys(self) -> Iterator[str]:
        """The keys of the samples, shard by shard."""
        for batch in self.batches():
            yield from batch.column("key").to_pylist()

    def to_arrow(self) -> pa.Table:
        """Return the rows of all samples as one table (for its columns see `batches`)."""
        return pa.Table.from_batches(self.batches(), schema=_SHOWN)

    def select(self, which: npt.ArrayLike | Columns) -> SampleIndex:
        """Return some of the samples as an index, in the stored order.

        Args:
            which: A mask of booleans, one a sample; or numbers of samples, each once; or a function that takes a record
                batch (for its columns see `batches`) and returns a mask for its rows.

        Raises:
            UsageError: A number comes twice or is not there, or the mask has another length.
        """
        if callable(which):
            masks = [_mask(which(batch), len(batch)) for batch in self.batches()]
            return self.select(np.concatenate([*masks, np.zeros(0, dtype=bool)]))
        chosen = np.asarray(which)
        if chosen.dtype == bool:
            return self._with(np.flatnonzero(_mask(chosen, len(self))))
        if chosen.size == 0:
            return self._with(np.zeros(0, dtype=np.int64))
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
            raise UsageError.at(
                f"select() got values of type {chosen.dtype}",
                todo="pass a mask, numbers of samples, or a function",
            )
        ordered = np.sort(chosen.astype(np.int64))
        if (ordered[1:] == ordered[:-1]).any():
            twice = int(ordered[1:][ordered[1:] == ordered[:-1]][0])
            raise UsageError.at(
                f"select() got sample {twice} twice",
                todo="an index has each sample once; weights repeat samples",
            )
        if ordered[0] < 0 or ordered[-1] >= len(self):
            raise UsageError.at(
                f"select() got samples {ordered[0]} to {ordered[-1]} of {len(self)}",
                todo="numbers begin at 0",
            )
        return self._with(ordered)

    def split(self, fraction: float, seed: int = 0) -> tuple[SampleIndex, SampleIndex]:
        """Return two indexes: about `fraction` of the samples, and the rest.

        The side of a sample is decided by XXH64 of its key alone, so it keeps it when shards are added, and samples of
        one key are on the same side.

        Raises:
            UsageError: `fraction` is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise UsageError.at(f"fraction={fraction}", todo="pass 0 to 1")
        limit = int(fraction * 2**64)
        word = seed & 0xFFFFFFFFFFFFFFFF
        sides = (xxhash.xxh64_intdigest(key.encode(), word) < limit for key in self.keys)
        first = np.fromiter(sides, dtype=np.bool_, count=len(self))
        return self.select(first), self.select(np.logical_not(first))

    def by_shard(self) -> dict[str, tuple[int, ShardEntry]]:
        """Return each shard's number and what was known of it, by its name.

        Raises:
            UsageError: Samples were selected: an index to build on has all of its shards' samples.
        """
        if self._positions is not None:
            raise UsageError.at(
                "the index before holds a selection", todo="pass the whole index as previous="
            )
        rows = enumerate(self.shards)
        return {
            row.name: (number, ShardEntry(row.name, row.size, row.checksum, row.version))
            for number, row in rows
        }

    def shard_samples(self, number: int) -> tuple[ShardEntry, ShardSamples]:
        """Return what the index holds of a shard, as it was built; `number` counts the shards of all parts."""
        for part in self._stored:
            if number < part.head.shards:
                return _entry_of(part, number, None)
            number -= part.head.shards
        raise IndexError(f"shard {number}")

    def save(self, where: str | os.PathLike[str]) -> SampleIndex:
        """Store the index, or the selection of one, in a folder, and return it opened from there.

        Two that are written to one folder at once do not mix: the one that ends last is the one that is found.
        """
        folder = LocalFolder(where)
        writer = IndexWriter(folder)
        begin = 0
        for part in self._stored:
            for number in range(part.head.shards):
                count = int(part.counts[number])
                writer.add(*_entry_of(part, number, self._rows_between(begin, begin + count)))
                begin += count
        writer.finish()
        return SampleIndex([StoredIndex(folder)])

    def _all_positions(self) -> Integers:
        return np.arange(self._total, dtype=np.int64) if self._positions is None else self._positions

    def _with(self, numbers: Integers) -> SampleIndex:
        return SampleIndex(self._stored, numbers if self._positions is None else self._positions[numbers])


_SHOWN = pa.schema(
    [
        pa.field("shard", pa.string()),
        *(SAMPLES.field(name) for name in ("key", "start", "size")),
        pa.field("fields", pa.list_(pa.string())),
        SAMPLES.field("sizes"),
        SAMPLES.field("xxh64"),
    ]
)


def _shown(stored: StoredIndex, shard: int, rows: Integers | None) -> pa.RecordBatch:
    batch = stored.samples(shard)
    if rows is not None and len(rows) < len(batch):
        batch = batch.take(pa.array(rows))
    names = pa.array(
        [stored.fields[number] for number in batch.column("fields").to_pylist()], pa.list_(pa.string())
    )
    columns = {name: batch.column(name) for name in ("key", "start", "size", "sizes", "xxh64")}
    columns |= {"shard": pa.array([stored.shard(shard).name] * len(batch), pa.string()), "fields": names}
    return pa.record_batch([columns[name] for name in _SHOWN.names], schema=_SHOWN)


def _entry_of(stored: StoredIndex, shard: int, rows: Integers | None) -> tuple[ShardEntry, ShardSamples]:
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
    )
    return ShardEntry(row.name, row.size, row.checksum, row.version), samples


def _references(stored: StoredIndex, shard: int, rows: Integers) -> Iterator[SampleReference]:
    row, batch = stored.shard(shard), stored.samples(shard)
    if len(rows) < len(batch):
        batch = batch.take(pa.array(rows))
        order = range(len(rows))
    else:
        order = rows.tolist()
    columns = [
        batch.column(name).to_pylist() for name in ("start", "size", "key", "fields", "sizes", "xxh64")
    ]
    for number in order:
        start, size, key, fields, sizes, digest = (column[number] for column in columns)
        yield SampleReference(row, start, size, key, stored.fields[fields], tuple(sizes), digest)


def _mask(values: Any, length: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(values, dtype=bool)
    if mask.shape != (length,):
        raise UsageError.at(
            f"a mask of {mask.size} values for {length} samples", todo="give one value a sample"
        )
    return mask
