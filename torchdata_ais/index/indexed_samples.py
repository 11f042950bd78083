"""`IndexedSamples`: the samples of stored indexes, by number, and choosing from them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from typing_extensions import Self, Unpack

from torchdata_ais.errors import SampleIndexError, UsageError
from torchdata_ais.index.form import SAMPLES
from torchdata_ais.index.keys import Keys
from torchdata_ais.index.places import folder_at, found_folder
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.index.writer import IndexWriter, ShardEntry, ShardSamples
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.store import (
    Cluster,
    ClusterNames,
    StoreOptions,
    cluster_options,
    given_options,
    resolve_options,
)
from torchdata_ais.urls import parse_url

__all__ = ["IndexedSamples", "SampleReference"]

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


class IndexedSamples:
    """The samples of any number of stored indexes, in their order, or some of them.

    All of `torchdata_ais.SampleIndex` that reads no shard: users have that class, which adds building and verifying.
    Methods that return an index return one of their own class.
    """

    def __init__(
        self,
        stored: Sequence[StoredIndex],
        positions: Integers | None = None,
        *,
        home: str | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self._stored = list(stored)
        self._ends = np.cumsum([part.head.samples for part in self._stored], dtype=np.int64)
        self._total = int(self._ends[-1]) if len(self._ends) else 0
        self._positions = positions
        self._home = home
        self._options = options

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str],
        *,
        cluster: Cluster = None,
        **named: Unpack[ClusterNames],
    ) -> Self:
        """Open a stored index. What is asked for is read then, by ranges, and checked.

        Args:
            where: The prefix, template, bucket, folder or pattern of shards whose index lies beside them (see
                `index_place`); or the folder it was saved to: a path, ``ais://bucket/name``, a web URL.
            cluster: See `torchdata_ais.store.Cluster`; of a path of this machine none is needed.
            **named: Parts of `cluster` by version 0.1's names: ``endpoint client token options``.

        Raises:
            NotFoundError: There is none.
            SampleIndexError: It is damaged, of a version this package does not read, or of other shards.
            TransportError: It cannot be read.

        Example:
            >>> import tempfile
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = SampleIndex.build(example_shards(counts=(3, 2))).save(folder)
            ...     len(SampleIndex.open(folder))
            5
        """
        settings = _settings(where, given_options(cluster, **named))
        folder, beginning = found_folder(where, settings)
        stored = StoredIndex(folder)
        for number in {0, stored.head.shards - 1} if beginning and stored.head.shards else ():
            name = stored.shard(number).name
            if not name.startswith(beginning):
                raise SampleIndexError.at(
                    f"{folder.where}: the index is of other shards: of {name}, and not of {beginning}",
                    todo="build it again: torchdata-ais index",
                    url=name,
                )
        return cls([stored], options=settings)

    @classmethod
    def concat(cls, indexes: Sequence[IndexedSamples]) -> Self:
        """Return the samples of all `indexes`, one after the other.

        Raises:
            UsageError: None were given.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> one, two = (SampleIndex.build(shard) for shard in example_shards(counts=(3, 2)))
            >>> len(SampleIndex.concat([one, two]))
            5
        """
        if not indexes:
            raise UsageError.at("no index to join", todo="pass at least one")
        positions = None
        if any(index._positions is not None for index in indexes):
            begins = np.cumsum([0, *(index._total for index in indexes)])
            positions = np.concatenate(
                [index._all_positions() + begin for index, begin in zip(indexes, begins, strict=False)]
            )
        return cls(
            [part for index in indexes for part in index._stored], positions, options=indexes[0]._options
        )

    def __len__(self) -> int:
        return self._total if self._positions is None else len(self._positions)

    def __repr__(self) -> str:
        shards = sum(part.head.shards for part in self._stored)
        known = f"proof={self.proof!r}, digest={self.digest!r}"
        return f"{type(self).__name__}({len(self)} samples of {shards} shards, {known})"

    @overload
    def __getitem__(self, position: SupportsIndex) -> SampleReference: ...
    @overload
    def __getitem__(self, position: slice) -> Self: ...
    def __getitem__(self, position: SupportsIndex | slice) -> SampleReference | Self:
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
        for stored, first, part_places, part_positions in self._by_part(wanted):
            shards, rows = stored.locate(part_positions)
            order = np.argsort(shards, kind="stable")
            numbers, begins = np.unique(shards[order], return_index=True)
            for shard, here in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
                references = _references(stored, shard, rows[here], first + shard)
                for place, reference in zip(part_places[here].tolist(), references, strict=True):
                    found[place] = reference
        return [reference for reference in found if reference is not None]

    def _by_part(self, positions: Integers) -> Iterator[tuple[StoredIndex, int, Integers, Integers]]:
        """Yield the parts that positions lie in, the number of their first shard, and which of the positions."""
        parts = np.searchsorted(self._ends, positions, side="right")
        for number in np.unique(parts).tolist():
            places = np.flatnonzero(parts == number)
            begin = int(self._ends[number]) - self._stored[number].head.samples
            first = sum(part.head.shards for part in self._stored[:number])
            yield self._stored[number], first, places, positions[places] - begin

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

    def mean_bytes(self) -> float:
        """Return the mean size of a sample, by the first 4,096 shards of each stored index."""
        rows = [row for part in self._stored for row in itertools.islice(part.shards(), 4096)]
        return sum(row.size or 0 for row in rows) / max(1, sum(row.samples for row in rows))

    @property
    def fields(self) -> list[tuple[str, ...]]:
        """The combinations of fields that samples of the stored indexes have."""
        return list(dict.fromkeys(names for part in self._stored for names in part.fields))

    @property
    def shards(self) -> Iterator[ShardRow]:
        """The rows of all shards, in their order."""
        for part in self._stored:
            yield from part.shards()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the samples, a batch a shard; shards without a selected sample are left out.

        The columns: ``shard`` (its name), ``key``, ``start``, ``size``, ``fields`` (a list of names), ``sizes``,
        ``xxh64``.
        """
        for part, number, rows in self.selected():
            yield _shown(part, number, rows)

    def selected(self) -> Iterator[tuple[StoredIndex, int, Integers | None]]:
        """Yield the shards that have selected samples, and which of their rows are selected; None for all."""
        begin = 0
        for part in self._stored:
            if self._positions is None:
                numbers = np.flatnonzero(np.diff(part.ends, prepend=0))
                yield from ((part, number, None) for number in numbers.tolist())
            else:
                low, high = np.searchsorted(self._positions, [begin, begin + part.head.samples])
                shards, rows = part.locate(self._positions[low:high] - begin)
                if not len(rows):
                    begin += part.head.samples
                    continue
                numbers, firsts = np.unique(shards, return_index=True)
                for number, chosen in zip(numbers.tolist(), np.split(rows, firsts[1:]), strict=True):
                    yield part, number, chosen
            begin += part.head.samples

    @property
    def keys(self) -> Keys:
        """The keys of the samples: a lazy Arrow column, a chunk a shard.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> keys = SampleIndex.build(example_shards(counts=(3, 2))).keys
            >>> keys[-1], list(keys)[:2], len(keys)
            ('00004', ['00000', '00001'], 5)
        """
        return Keys(len(self), self._key_chunks, lambda number: self[number].key)

    def _key_chunks(self) -> Iterator[pa.Array]:
        for part, number, rows in self.selected():
            column = part.samples(number).column("key")
            yield column if rows is None else column.take(pa.array(rows))

    def to_arrow(self) -> pa.Table:
        """Return the rows of all samples as one table (for its columns see `batches`)."""
        return pa.Table.from_batches(self.batches(), schema=_SHOWN)

    def select(self, which: npt.ArrayLike | pc.Expression | Columns) -> Self:
        """Return some of the samples as an index, in the stored order.

        Args:
            which: A mask of booleans, one a sample; or numbers of samples, each once; or what chooses by columns (for
                their names see `batches`): an expression of pyarrow, or a function that takes a record batch and
                returns a mask for its rows.

        Memory: 8 bytes a selected sample.

        Raises:
            UsageError: A number comes twice or is not there, or the mask has another length.

        Example:
            >>> import pyarrow.compute as pc
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
            >>> len(index.select(pc.field("size") > 1536)), len(index.select([True, False, True, False, False]))
            (4, 2)
        """
        if isinstance(which, pc.Expression):
            return self._chosen_by(lambda batch: _where(which, batch))
        if callable(which):
            return self._chosen_by(lambda batch: _mask(which(batch), len(batch)))
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

    def _chosen_by(self, choose: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]) -> Self:
        found, begin = [np.zeros(0, dtype=np.int64)], 0
        for batch in self.batches():
            found.append(np.flatnonzero(choose(batch)) + begin)
            begin += len(batch)
        return self._with(np.concatenate(found))

    def split(self, fraction: float, seed: int = 0) -> tuple[Self, Self]:
        """Return two indexes: about `fraction` of the samples, and the rest.

        The side of a sample is decided by XXH64 of seed and key alone, so it keeps it when shards are added, and a key
        is never on both.

        Raises:
            UsageError: `fraction` is not between 0 and 1.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> valid, train = SampleIndex.build(example_shards(counts=(60, 40))).split(0.2, seed=1)
            >>> len(valid), len(train)
            (19, 81)
        """
        if not 0 <= fraction <= 1:
            raise UsageError.at(f"fraction={fraction}", todo="pass 0 to 1")
        limit = int(fraction * 2**64)
        word = seed & 0xFFFFFFFFFFFFFFFF
        sides = (xxhash.xxh64_intdigest(key.encode(), word) < limit for key in self.keys)
        first = np.fromiter(sides, dtype=np.bool_, count=len(self))
        return self.select(first), self.select(np.logical_not(first))

    def shard_samples(self, number: int) -> tuple[ShardEntry, ShardSamples]:
        """Return what the index holds of a shard, as it was built; `number` counts the shards of all parts."""
        for part in self._stored:
            if number < part.head.shards:
                return _entry_of(part, number, None)
            number -= part.head.shards
        raise IndexError(f"shard {number}")

    def place_of(self, reference: SampleReference) -> str:
        """Return where the index lies that has a sample, for messages."""
        number = reference.number
        for part in self._stored:
            if number < part.head.shards:
                return part.folder.where
            number -= part.head.shards
        raise IndexError(f"shard {reference.number}")

    @property
    def stored(self) -> list[StoredIndex]:
        """The stored indexes it is made of."""
        return list(self._stored)

    @property
    def is_selection(self) -> bool:
        """Whether samples of its shards were left out."""
        return self._positions is not None or any(part.head.selection for part in self._stored)

    @property
    def options(self) -> StoreOptions:
        """How its shards are reached."""
        return self._options or resolve_options()

    @property
    def files(self) -> list[str]:
        """The files with the rows of samples: for polars, duckdb, pandas, ``pyarrow.dataset``.

        They hold all samples of the stored indexes, whatever was selected.
        """
        return [f"{part.folder.where}/{name}" for part in self._stored for name in part.head.parts]

    def save(
        self,
        where: str | os.PathLike[str] | None = None,
        *,
        cluster: Cluster = None,
        **named: Unpack[ClusterNames],
    ) -> Self:
        """Store the index, or the selection of one, and return it opened from there.

        Two that are written to one place at once do not mix: the one that ends last is the one that is found. The
        files of the one before the last are removed.

        Args:
            where: A folder, or ``ais://bucket/name``. Default: beside the shards it was built of (`index_place`).
            cluster: See `torchdata_ais.store.Cluster`; default the one it was built from.
            **named: Parts of `cluster` by version 0.1's names: ``endpoint client token options``.

        Raises:
            UsageError: No place is known: for a selection, or an index of several sources.
            TransportError: It cannot be stored.
        """
        if where is None:
            where = self._home if self._positions is None else None
        if where is None:
            raise UsageError.at(
                "save() does not know where to", todo="pass a folder, or ais://bucket/name: index.save(where)"
            )
        settings = _settings(where, given_options(cluster, **named) or self._options)
        folder = folder_at(where, settings)
        writer = IndexWriter(folder)
        if self._positions is None:
            for part in self._stored:
                for number in range(part.head.shards):
                    writer.add(*_entry_of(part, number, None))
        else:
            for part, number, rows in self.selected():
                writer.add(*_entry_of(part, number, rows))
        writer.finish(
            source=self._stored[0].head.source if len(self._stored) == 1 else "",
            selection=self.is_selection,
        )
        return type(self)([StoredIndex(folder)], home=self._home, options=settings)

    def _all_positions(self) -> Integers:
        return np.arange(self._total, dtype=np.int64) if self._positions is None else self._positions

    def _with(self, numbers: Integers) -> Self:
        chosen = numbers if self._positions is None else self._positions[numbers]
        return type(self)(self._stored, chosen, options=self._options)


_ROW = "__row__"
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


def _references(stored: StoredIndex, shard: int, rows: Integers, number: int) -> Iterator[SampleReference]:
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


def _where(expression: pc.Expression, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows the expression is true for."""
    table = pa.Table.from_batches([batch]).append_column(_ROW, [pa.array(np.arange(len(batch)))])
    mask = np.zeros(len(batch), dtype=np.bool_)
    try:
        mask[table.filter(expression).column(_ROW).to_numpy()] = True
    except (pa.ArrowException, KeyError) as error:
        raise UsageError.at(
            f"select() cannot use {expression}: {error}", todo=f"use the columns {', '.join(_SHOWN.names)}"
        ) from error
    return mask


def _settings(where: str | os.PathLike[str], given: StoreOptions | None) -> StoreOptions:
    """Return how to reach `where`; for a path of this machine nothing is looked for."""
    if given is None and parse_url(os.fspath(where)).kind == "file":
        return StoreOptions()
    return cluster_options(given)


def _mask(values: Any, length: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(values, dtype=bool)
    if mask.shape != (length,):
        raise UsageError.at(
            f"a mask of {mask.size} values for {length} samples", todo="give one value a sample"
        )
    return mask
