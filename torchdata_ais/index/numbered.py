"""The samples of stored indexes by their numbers: references, rows, keys and columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.index.columns import Columns, column_array
from torchdata_ais.index.entries import IndexedShard
from torchdata_ais.index.joining import Join, partners_of
from torchdata_ais.index.keys import Keys
from torchdata_ais.index.parts import Parts
from torchdata_ais.index.rows import SHOWN, SampleReference, entry_of, shown_rows
from torchdata_ais.index.shown import index_html
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.store import StoreOptions, resolve_options


class NumberedSamples:
    """The samples of any number of stored indexes, in their order, or some of them: what can be asked of them."""

    def __init__(
        self,
        stored: Sequence[StoredIndex],
        positions: Integers | None = None,
        *,
        home: str | None = None,
        options: StoreOptions | None = None,
        joins: tuple[Join, ...] = (),
        columns: Mapping[str, Integers] | None = None,
    ) -> None:
        self.parts = Parts(stored, positions)
        self._columns = Columns(self.parts, columns)
        self._home = home
        self._options = options
        self.joins = joins

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        shards = sum(part.head.shards for part in self.parts.stored)
        known = f"proof={self.proof!r}, digest={self.digest!r}"
        return f"{type(self).__name__}({len(self)} samples of {shards} shards, {known})"

    def _repr_html_(self) -> str:
        return index_html(self)

    @overload
    def __getitem__(self, position: SupportsIndex) -> SampleReference: ...
    @overload
    def __getitem__(self, position: slice) -> Self: ...
    def __getitem__(self, position: SupportsIndex | slice) -> SampleReference | Self:
        if isinstance(position, slice):
            if position.step not in (None, 1):
                raise UsageError.at(f"a slice with step {position.step}", todo="pass the numbers to select()")
            return self._chosen(np.arange(len(self), dtype=np.int64)[position])
        if not isinstance(position, SupportsIndex):
            raise UsageError.at(
                f"an index was asked for {position!r:.40}, of type {type(position).__name__}",
                todo="its samples have numbers from 0 on; .keys are their keys, .select(...) chooses by columns",
            )
        number = position.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        return self.take([number % len(self)])[0]

    def __iter__(self) -> Iterator[SampleReference]:
        for begin in range(0, len(self), 4096):
            yield from self.take(np.arange(begin, min(begin + 4096, len(self))))

    def take(self, numbers: npt.ArrayLike) -> list[SampleReference]:
        """Return the references of some samples, in the order asked for; a shard's table is read once a call."""
        try:
            wanted: Integers = np.asarray(numbers, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            wanted = np.zeros((), dtype=np.int64)
        if wanted.ndim != 1:
            raise UsageError.at(
                f"take() was given {numbers!r:.60}",
                todo="pass a list of numbers; one sample is index[number]",
            )
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"samples {wanted.min()} to {wanted.max()} of {len(self)}")
        return self.parts.take(wanted)

    def partners(self, numbers: npt.ArrayLike) -> list[list[SampleReference | None]]:
        """Return what comes with some samples of a joined index: of each sample, a reference or None for each join.

        Raises:
            SampleIndexError: A table of partners is not that of these indexes.
        """
        wanted: Integers = np.asarray(numbers, dtype=np.int64)
        references = self.take(wanted)
        positions = self.parts.at(wanted)
        found = [partners_of(join, positions, references) for join in self.joins]
        return [list(one) for one in zip(*found, strict=True)]

    @property
    def proof(self) -> str:
        """``"bytes"`` if the XXH64 of every sample is known, else ``"headers"``."""
        proofs = {part.head.proof for part in self.parts.stored} | {join.other.proof for join in self.joins}
        return "bytes" if proofs <= {"bytes"} else "headers"

    @property
    def digest(self) -> str:
        """What the index covers: names, sizes and checksums of shards, keys and sizes of samples, and which ones.

        Of a selection, or of several indexes, it is that of the indexes and of the numbers chosen; `save` keeps it.
        """
        own = self.parts.digest
        others = [(join.other.digest, join.prefix, join.missing) for join in self.joins]
        return xxhash.xxh64_hexdigest(msgspec.msgpack.encode([own, others])) if others else own

    def mean_bytes(self) -> float:
        """Return the mean size of a sample, by the first 4,096 shards of each stored index."""
        rows = [row for part in self.parts.stored for row in itertools.islice(part.shards(), 4096)]
        own = sum(row.size or 0 for row in rows) / max(1, sum(row.samples for row in rows))
        return own + sum(join.other.mean_bytes() for join in self.joins)

    @property
    def fields(self) -> list[tuple[str, ...]]:
        """The combinations of fields that samples of the stored indexes have."""
        own = list(dict.fromkeys(names for part in self.parts.stored for names in part.fields))
        for join in self.joins:
            theirs = [tuple(f"{join.prefix}{name}" for name in names) for names in join.other.fields]
            alone = own if join.missing == "keep" else []
            own = list(dict.fromkeys([*alone, *(mine + names for mine in own for names in theirs)]))
        return own

    @property
    def shards(self) -> Iterator[ShardRow]:
        """The rows of all shards, in their order."""
        return self.parts.shards()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the samples, a batch a shard; shards without a selected sample are left out.

        The columns: ``shard`` (its name), ``key``, ``start``, ``size``, ``fields`` (a list of names), ``sizes``,
        ``xxh64``, and those that were added.
        """
        known = self._columns.arrays()
        schema, end = self._shown(), 0
        for part, number, rows in self.selected():
            shown = shown_rows(part, number, rows)
            begin, end = end, end + len(shown)
            added = [values[begin:end] for values in known.values()]
            yield pa.RecordBatch.from_arrays([*shown.columns, *added], schema=schema)

    def _shown(self) -> pa.Schema:
        return pa.schema([*SHOWN, *(pa.field(name, pa.int64()) for name in self.columns)])

    @property
    def columns(self) -> list[str]:
        """The names of the columns that were added; see `with_column`."""
        return self._columns.names

    def column(self, name: str) -> Integers:
        """Return a column that was added: a number a sample; -1 where nothing is known.

        Raises:
            UsageError: There is none of this name.
        """
        return self._columns.of(name)

    def selected(self) -> Iterator[tuple[StoredIndex, int, Integers | None]]:
        """Yield the shards that have selected samples, and which of their rows are selected; None for all."""
        return self.parts.selected()

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
        return Keys(self)

    def to_arrow(self) -> pa.Table:
        """Return the rows of all samples as one table (for its columns see `batches`)."""
        return pa.Table.from_batches(self.batches(), schema=self._shown())

    def partners_by(self, join: Join) -> Integers:
        """Return the number of each sample's partner in the other index of a join; -1 where it has none."""
        return join.table.take(self.parts.all_positions())

    def shard_samples(self, number: int) -> IndexedShard:
        """Return what the index holds of a shard, as it was built; `number` counts the shards of all parts."""
        part, number, begin = self.parts.of_shard(number)
        shard, samples = entry_of(part, number, None)
        for name, values in self._columns.added.items():
            samples.columns[name] = column_array(values[begin : begin + len(samples.keys)]).to_pylist()
        return shard, samples

    def place_of(self, reference: SampleReference) -> str:
        """Return where the index lies that has a sample, for messages."""
        return self.parts.of_shard(reference.number)[0].folder.where

    @property
    def stored(self) -> list[StoredIndex]:
        """The stored indexes it is made of."""
        return list(self.parts.stored)

    @property
    def is_selection(self) -> bool:
        """Whether samples of its shards were left out."""
        return self.parts.positions is not None or any(part.head.selection for part in self.parts.stored)

    @property
    def options(self) -> StoreOptions:
        """How its shards are reached."""
        return self._options or resolve_options()

    @property
    def files(self) -> list[str]:
        """The files with the rows of samples: for polars, duckdb, pandas, ``pyarrow.dataset``.

        They hold all samples of the stored indexes, whatever was selected.
        """
        return [f"{part.folder.where}/{name}" for part in self.parts.stored for name in part.head.parts]

    def _with(self, parts: Parts, **changed: Any) -> Self:
        """Return an index of `parts` that is reached, joined and has columns as this one, but for what is changed."""
        same = {"options": self._options, "joins": self.joins, "columns": self._columns.added}
        return type(self)(parts.stored, parts.positions, **{**same, **changed})

    def _chosen(self, numbers: Integers) -> Self:
        return self._with(self.parts.chosen(numbers))
