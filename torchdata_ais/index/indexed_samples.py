"""`IndexedSamples`: the samples of stored indexes, by number, and choosing from them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from typing_extensions import Self, Unpack

from torchdata_ais.arguments import checked
from torchdata_ais.errors import SampleIndexError, UsageError
from torchdata_ais.index.columns import Columns, check_column, column_array, values_of
from torchdata_ais.index.joining import Join, Missing, joined_with, partners_of
from torchdata_ais.index.keys import Keys
from torchdata_ais.index.parts import Parts
from torchdata_ais.index.places import folder_at, found_folder, named_shards, options_for
from torchdata_ais.index.rows import SHOWN, SampleReference, entry_of, shown_rows
from torchdata_ais.index.selecting import Selection, selected_numbers, side_of_keys
from torchdata_ais.index.shown import index_html
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.index.writer import IndexWriter, ShardEntry, ShardSamples
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.store import (
    Cluster,
    ClusterNames,
    StoreOptions,
    given_options,
    resolve_options,
)


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
        joins: tuple[Join, ...] = (),
        columns: Mapping[str, Integers] | None = None,
    ) -> None:
        self._parts = Parts(stored, positions)
        self._columns = Columns(self._parts, columns)
        self._home = home
        self._options = options
        self.joins = joins

    @classmethod
    @checked
    def open(
        cls,
        where: str | os.PathLike[str],
        *,
        index_dir: str | os.PathLike[str] | None = None,
        cluster: Cluster = None,
        **named: Unpack[ClusterNames],
    ) -> Self:
        """Open a stored index. What is asked for is read then, by ranges, and checked.

        Args:
            where: The prefix, template, bucket, folder or pattern of shards whose index lies beside them (see
                `index_place`); or the folder it was saved to: a path, ``ais://bucket/name``, a web URL. Of a template
                or a pattern the samples of the shards that it names are selected.
            index_dir: A folder of this node to copy the index to, see `kept_in`.
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
        settings = options_for(where, given_options(cluster, **named))
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
        opened = cls([stored], home=folder.where, options=settings)
        only = named_shards(where)
        if only is not None:
            opened = opened._of_shards(only)
        return opened if index_dir is None else opened.kept_in(index_dir)

    @checked
    def kept_in(self, folder: str | os.PathLike[str]) -> Self:
        """Return the same index, read from a copy that is made on this node.

        A full shuffle looks all of an index up, again and again, in each worker; out of a copy that costs nothing. A
        file is copied when something of it is needed first, by one process of all that name the folder, is compared
        with its XXH64, and gone on with where a killed process left it. An index that is stored in its place later is
        copied when it is opened. Files of the index before stay beside it; those of the one before that are removed.

        Args:
            folder: On a disk of this node; any number of indexes share it.

        Raises:
            UsageError: The folder cannot be written to, or is full.
            StallError: Another process that copies stands still (when the index is read).

        Example:
            >>> import tempfile
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as where, tempfile.TemporaryDirectory() as node:
            ...     _ = SampleIndex.build(example_shards(counts=(3, 2))).save(where)
            ...     SampleIndex.open(where).kept_in(node)[4].key
            '00004'
        """
        stored = [part.kept_in(folder) for part in self._parts.stored]
        joins = tuple(join._replace(other=join.other.kept_in(folder)) for join in self.joins)
        return self._with(Parts(stored, self._parts.positions), home=self._home, joins=joins)

    @classmethod
    def concat(cls, indexes: Sequence[IndexedSamples]) -> Self:
        """Return the samples of all `indexes`, one after the other.

        Raises:
            UsageError: None were given, or something else than indexes.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> one, two = (SampleIndex.build(shard) for shard in example_shards(counts=(3, 2)))
            >>> len(SampleIndex.concat([one, two]))
            5
        """
        if not indexes:
            raise UsageError.at("no index to join", todo="pass at least one")
        others = [type(index).__name__ for index in indexes if not isinstance(index, IndexedSamples)]
        if isinstance(indexes, IndexedSamples) or others:
            kind = (
                type(indexes).__name__ if isinstance(indexes, IndexedSamples) else f"a list with {others[0]}"
            )
            raise UsageError.at(
                f"concat() was given {kind}, not a list of indexes", todo="SampleIndex.concat([one, two])"
            )
        if any(index.joins for index in indexes):
            raise UsageError.at("concat() of an index that is joined", todo="join what concat() returns")
        parts = Parts.concat([index._parts for index in indexes])
        columns = {
            name: np.concatenate([index._columns.whole(name) for index in indexes])
            for name in dict.fromkeys(name for index in indexes for name in index._columns.added)
        }
        return cls(parts.stored, parts.positions, options=indexes[0]._options, columns=columns)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        shards = sum(part.head.shards for part in self._parts.stored)
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
        return self._parts.take(wanted)

    def partners(self, numbers: npt.ArrayLike) -> list[list[SampleReference | None]]:
        """Return what comes with some samples of a joined index: of each sample, a reference or None for each join.

        Raises:
            SampleIndexError: A table of partners is not that of these indexes.
        """
        wanted: Integers = np.asarray(numbers, dtype=np.int64)
        references = self.take(wanted)
        positions = self._parts.at(wanted)
        found = [partners_of(join, positions, references) for join in self.joins]
        return [list(one) for one in zip(*found, strict=True)]

    @property
    def proof(self) -> str:
        """``"bytes"`` if the XXH64 of every sample is known, else ``"headers"``."""
        proofs = {part.head.proof for part in self._parts.stored} | {join.other.proof for join in self.joins}
        return "bytes" if proofs <= {"bytes"} else "headers"

    @property
    def digest(self) -> str:
        """What the index covers: names, sizes and checksums of shards, keys and sizes of samples, and which ones.

        Of a selection, or of several indexes, it is that of the indexes and of the numbers chosen; `save` keeps it.
        """
        own = self._parts.digest
        others = [(join.other.digest, join.prefix, join.missing) for join in self.joins]
        return xxhash.xxh64_hexdigest(msgspec.msgpack.encode([own, others])) if others else own

    def mean_bytes(self) -> float:
        """Return the mean size of a sample, by the first 4,096 shards of each stored index."""
        rows = [row for part in self._parts.stored for row in itertools.islice(part.shards(), 4096)]
        own = sum(row.size or 0 for row in rows) / max(1, sum(row.samples for row in rows))
        return own + sum(join.other.mean_bytes() for join in self.joins)

    @property
    def fields(self) -> list[tuple[str, ...]]:
        """The combinations of fields that samples of the stored indexes have."""
        own = list(dict.fromkeys(names for part in self._parts.stored for names in part.fields))
        for join in self.joins:
            theirs = [tuple(f"{join.prefix}{name}" for name in names) for names in join.other.fields]
            alone = own if join.missing == "keep" else []
            own = list(dict.fromkeys([*alone, *(mine + names for mine in own for names in theirs)]))
        return own

    @property
    def shards(self) -> Iterator[ShardRow]:
        """The rows of all shards, in their order."""
        return self._parts.shards()

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

    def with_column(self, name: str, values: npt.ArrayLike | Mapping[str, int]) -> Self:
        """Return this index with a number more of each sample, such as its tokens: a length for `pack` and `buckets`.

        `save` stores it with the index, `build(previous=)` keeps that of shards that have not changed; a column of the
        same name is replaced. It is no part of `digest`, which says what is read: other lengths make other packs, and
        those are compared when a state is loaded.

        Args:
            name: Of the column; no field's.
            values: Whole numbers from 0 on: one a sample in the order of the index, or a dict by keys.

        Memory: 8 bytes a sample until it is saved.

        Raises:
            UsageError: The name is taken, or the values are not of these samples.

        Example:
            >>> import pyarrow.compute as pc
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> index = SampleIndex.build(example_shards(counts=(3, 2))).with_column("tokens", [9, 2, 7, 4, 1])
            >>> index.column("tokens").tolist()[-1], len(index.select(pc.field("tokens") > 3))
            (1, 3)
        """
        check_column(self, name)
        whole = self._columns.spread(values_of(self, name, values))
        return self._with(self._parts, home=self._home, columns={**self._columns.added, name: whole})

    def selected(self) -> Iterator[tuple[StoredIndex, int, Integers | None]]:
        """Yield the shards that have selected samples, and which of their rows are selected; None for all."""
        return self._parts.selected()

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
        return pa.Table.from_batches(self.batches(), schema=self._shown())

    def select(self, which: Selection) -> Self:
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
        return self._chosen(selected_numbers(which, len(self), self.batches))

    @checked
    def join(
        self,
        other: IndexedSamples,
        on: Literal["key"] = "key",  # noqa: ARG002 - there is no other yet
        *,
        missing: Missing = "error",
        prefix: str = "",
        where: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return this index with the samples of another beside its own: their fields come with each sample.

        Captions, embeddings or masks that were added later stand in shards of their own, under the same keys. Samples
        of `other` that nobody asks for are left out. More than one: ``a.join(b).join(c)``.

        Args:
            other: The other index.
            on: ``"key"``: a sample's partner is the one with the same key.
            missing: What becomes of a sample without a partner: ``"error"``, ``"drop"``, or ``"keep"``: it comes
                without those fields.
            prefix: What is put before the names of the other's fields, such as ``"other."``.
            where: A folder of this machine for the table of partners. Processes of the machine share it, and joining
                the same indexes again finds it there. None: in memory, and each process has its own.

        Order: that of this index.

        Memory: 64 MiB while keys are sorted on disk (24 bytes a key of both); then 8 bytes a sample of this index's
        shards, in memory or in a file.

        Raises:
            SampleIndexError: A key stands twice in one of the two; a sample has no partner.
            UsageError: Both have a field of one name; the other index is joined itself.

        Example:
            >>> from torchdata_ais import SampleDataset, SampleIndex
            >>> from torchdata_ais.testing import example_shards, write_shard
            >>> pets, captions = example_shards(counts=(3,))[0], example_shards(counts=(0,))[0]
            >>> _ = write_shard(captions, [("00001.caption", b"a cat"), ("00002.caption", b"a dog")])
            >>> both = SampleIndex.build(pets).join(SampleIndex.build(captions), missing="drop")
            >>> [(sample["__key__"], sample["caption"]) for sample in SampleDataset(both)]
            [('00001', b'a cat'), ('00002', b'a dog')]
        """
        join, stays = joined_with(
            self,
            other,
            self._parts,
            missing=missing,
            prefix=prefix,
            where=where,
        )
        joined = self._with(self._parts, joins=(*self.joins, join))
        return joined if stays is None else joined._chosen(stays)

    def partners_by(self, join: Join) -> Integers:
        """Return the number of each sample's partner in the other index of a join; -1 where it has none."""
        return join.table.take(self._parts.all_positions())

    @checked
    def split(self, fraction: float, seed: int = 0) -> tuple[Self, Self]:
        """Return two indexes: about `fraction` of the samples, and the rest.

        The side of a sample is decided by XXH64 of seed and key alone, so it keeps it when shards are added, and a key
        is never on both.

        Raises:
            UsageError: `fraction` is not between 0 and 1, or `seed` no whole number.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> valid, train = SampleIndex.build(example_shards(counts=(60, 40))).split(0.2, seed=1)
            >>> len(valid), len(train)
            (19, 81)
        """
        first = side_of_keys(self.keys, len(self), fraction, seed)
        return self.select(first), self.select(np.logical_not(first))

    def shard_samples(self, number: int) -> tuple[ShardEntry, ShardSamples]:
        """Return what the index holds of a shard, as it was built; `number` counts the shards of all parts."""
        shard, samples = entry_of(*self._parts.of_shard(number), None)
        begin = self._parts.begin_of_shard(number)
        for name, values in self._columns.added.items():
            samples.columns[name] = column_array(values[begin : begin + len(samples.keys)]).to_pylist()
        return shard, samples

    def place_of(self, reference: SampleReference) -> str:
        """Return where the index lies that has a sample, for messages."""
        part, _ = self._parts.of_shard(reference.number)
        return part.folder.where

    @property
    def stored(self) -> list[StoredIndex]:
        """The stored indexes it is made of."""
        return list(self._parts.stored)

    @property
    def is_selection(self) -> bool:
        """Whether samples of its shards were left out."""
        return self._parts.positions is not None or any(part.head.selection for part in self._parts.stored)

    @property
    def options(self) -> StoreOptions:
        """How its shards are reached."""
        return self._options or resolve_options()

    @property
    def files(self) -> list[str]:
        """The files with the rows of samples: for polars, duckdb, pandas, ``pyarrow.dataset``.

        They hold all samples of the stored indexes, whatever was selected.
        """
        return [f"{part.folder.where}/{name}" for part in self._parts.stored for name in part.head.parts]

    @checked
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
        if self.joins:
            raise UsageError.at(
                "save() of an index that is joined",
                todo="save both indexes, and join them with where=, which keeps what was found",
            )
        if where is None:
            where = self._home if self._parts.positions is None else None
        if where is None:
            raise UsageError.at(
                "save() does not know where to", todo="pass a folder, or ais://bucket/name: index.save(where)"
            )
        settings = options_for(where, given_options(cluster, **named) or self._options)
        folder = folder_at(where, settings)
        writer = IndexWriter(folder, self.columns)
        known, end = self._columns.arrays(), 0
        for shard, samples in self._parts.entries():
            begin, end = end, end + len(samples.keys)
            samples.columns = {name: values[begin:end].to_pylist() for name, values in known.items()}
            writer.add(shard, samples)
        writer.finish(
            source=self._parts.stored[0].head.source if len(self._parts.stored) == 1 else "",
            selection=self.is_selection,
            digest=self.digest,
        )
        return type(self)([StoredIndex(folder)], home=self._home, options=settings)

    def _with(self, parts: Parts, **changed: Any) -> Self:
        """Return an index of `parts` that is reached, joined and has columns as this one, but for what is changed."""
        same = {"options": self._options, "joins": self.joins, "columns": self._columns.added}
        return type(self)(parts.stored, parts.positions, **{**same, **changed})

    def _of_shards(self, names: Sequence[str]) -> Self:
        """Return the samples of the shards of these names; all of them must be in the index."""
        parts, missing = self._parts.of_shards(names)
        if missing:
            raise SampleIndexError.at(
                f"{self._home}: the index has {len(names) - len(missing)} of the {len(names)} shards that are named; "
                f"{missing[0]} is not in it",
                todo="name the shards that are there, or index the new ones, too (torchdata-ais index PREFIX)",
                url=missing[0],
            )
        return self._with(parts)

    def _chosen(self, numbers: Integers) -> Self:
        return self._with(self._parts.chosen(numbers))
