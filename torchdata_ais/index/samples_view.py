"""Samples of an index by number: references, keys and columns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from typing_extensions import Self

from torchdata_ais._util.arguments import check_number, check_seed
from torchdata_ais._util.formatting import bytes_text, html_table, html_text
from torchdata_ais._util.versions import require
from torchdata_ais.errors import AISError, DecodeError, UsageError
from torchdata_ais.index.classes import ClassNames, Labels, by_label, class_names_of, composed, new_labels
from torchdata_ais.index.format import as_arrow, as_scalar, is_utf8
from torchdata_ais.index.joining import Join, partners_of
from torchdata_ais.index.parts import Parts
from torchdata_ais.index.rows import SHOWN, IndexedShard, SampleReference, entry_of, shown_rows
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.samples import Fields
from torchdata_ais.store import StoreOptions, resolve_options


class Keys(Sequence[str]):
    """The keys of an index's samples as a lazy Arrow column.

    Keys are read on use. A sequence of `str`. Arrow takes it as it is (``pyarrow.chunked_array(index.keys)``,
    ``polars.Series("key", index.keys)``), a chunk a shard.

    Memory: the keys of one shard, while they are gone through.
    """

    def __init__(self, index: NumberedSamples) -> None:
        self._index = index

    def chunks(self) -> Iterator[pa.Array]:
        """Yield the keys, an Arrow array a shard."""
        for _, _, rows, batch in self._index.parts.tables():
            column = batch.column("key")
            yield column if rows is None else column.take(as_arrow(rows))

    def to_arrow(self) -> pa.ChunkedArray:
        """Return all of them as one Arrow column, in memory."""
        return pa.chunked_array(list(self.chunks()), type=pa.string())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return them by Arrow's interface for columns in pieces."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks():
            yield from chunk.to_pylist()

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self._index[position].key for position in range(*number.indices(len(self)))]
        return self._index[number].key

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"


MISSING = -1
"""Placeholder of unknown values: of shards indexed after the column was added."""


class Columns:
    """The columns of some samples, stored with their indexes or added.

    `added` has values of all samples of the indexes.
    """

    def __init__(self, parts: Parts, added: Mapping[str, Integers] | None) -> None:
        self._parts = parts
        self.added = dict(added or {})

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        stored = (name for part in self._parts.stored for name in part.head.columns)
        return list(dict.fromkeys([*stored, *self.added]))

    def of(self, name: str) -> Integers:
        """Return a number of each selected sample; `MISSING` where unknown."""
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            raise UsageError.at(
                f"the index has no column {name!r}; it has {known}", todo="index.with_column(name, values)"
            )
        if name in self.added:
            values, positions = self.added[name], self._parts.positions
            return values if positions is None else values[positions]
        return _stored_column(self._parts, name)

    def whole(self, name: str) -> Integers:
        """Return a number of each sample, chosen or not."""
        return self.added[name] if name in self.added else _stored_column(Parts(self._parts.stored), name)

    def spread(self, values: Integers) -> Integers:
        """Return numbers of the selected samples for all, others `MISSING`."""
        if self._parts.positions is None:
            return values
        whole = np.full(self._parts.samples, MISSING, dtype=np.int64)
        whole[self._parts.positions] = values
        return whole

    def arrays(self) -> dict[str, pa.Array]:
        """Return all columns of the chosen samples as they are stored."""
        return {name: column_array(self.of(name)) for name in self.names}


def _stored_column(parts: Parts, name: str) -> Integers:
    found = [np.zeros(0, dtype=np.int64)]
    for part, _, rows, batch in parts.tables():
        if name in part.head.columns:
            values = batch.column(name).fill_null(MISSING).to_numpy()
        else:
            values = np.full(len(batch), MISSING, dtype=np.int64)
        found.append(values if rows is None else values[rows])
    return np.concatenate(found)


def check_column(index: NumberedSamples, name: str) -> None:
    """Raise `UsageError` unless a column may have this name."""
    if not isinstance(name, str) or not name or not is_utf8(name):
        raise UsageError.at(
            f"a column was named {name!r:.40}", todo='pass its name as text, such as "tokens"'
        )
    if name in SHOWN.names:
        raise UsageError.at(f"every index has a column {name!r}", todo="take another name")
    if any(name in names for names in index.fields):
        raise UsageError.at(
            f"samples have a field {name!r}", todo="take another name: length= takes names of both"
        )


def values_of(index: NumberedSamples, name: str, values: object) -> Integers:
    """Return `with_column`'s values as one integer for each sample."""
    if isinstance(values, Mapping):
        try:
            values = [values[key] for key in index.keys]
        except KeyError as error:
            raise UsageError.at(
                f"the column {name!r} was given no value for the sample {error.args[0]!r}",
                todo="pass one for each key; index.select(...) leaves samples out",
                key=error.args[0],
            ) from None
    found = np.asarray(values)
    if found.shape != (len(index),) or (found.dtype.kind not in "iu" and len(index)):
        raise UsageError.at(
            f"the column {name!r} was given values of shape {found.shape} and type {found.dtype} for "
            f"{len(index)} samples",
            todo="pass whole numbers: one a sample, in the order of the index, or a dict by keys",
        )
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < 1 << 63:
        raise UsageError.at(f"the column {name!r} was given {found.min()}", todo="pass numbers from 0 on")
    result: Integers = found.astype(np.int64)
    return result


def column_array(values: Integers) -> pa.Array:
    """Return values as they are stored: null where they are missing."""
    return pa.array(values, mask=values == MISSING)


_FIRST = 5
_KINDS = 8  # combinations of fields


def index_html(index: NumberedSamples) -> str:
    """Return tables in HTML, escaped; no shard is read.

    Unreadable parts of the index are left out.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> "5 samples of 2 shards" in index_html(SampleIndex.build(example_shards(counts=(3, 2))))
        True
    """
    try:
        kinds = [" ".join(names) for names in index.fields]
    except (AISError, OSError):
        kinds = []
    more = [f"and {len(kinds) - _KINDS} more"] if len(kinds) > _KINDS else []
    facts = [
        ("fields", "; ".join([*kinds[:_KINDS], *more]) or "none"),
        ("proof", index.proof),
        ("digest", index.digest),
    ]
    shards = sum(part.head.shards for part in index.stored)
    title = f"{type(index).__name__}: {len(index)} samples of {shards} shard{'' if shards == 1 else 's'}"
    try:
        facts.insert(0, ("mean sample", bytes_text(index.mean_bytes())))
        first = [
            (str(number), one.key, one.shard.name, str(one.start), _sizes(one.fields, one.sizes))
            for number, one in enumerate(index.take(range(min(_FIRST, len(index)))))
        ]
    except (AISError, OSError):  # the cluster is gone: a notebook shows the known part
        first = []
    samples = html_table(("", "key", "shard", "byte", "fields"), first, left=5) if first else ""
    return f"<div><b>{html_text(title)}</b>{html_table((), facts, left=2)}{samples}</div>"


def _sizes(names: Iterable[str], sizes: Iterable[int]) -> str:
    return ", ".join(f"{name} {bytes_text(size)}" for name, size in zip(names, sizes, strict=True))


class NumberedSamples:
    """Queries of the samples of indexes, all or a selection, in their order."""

    def __init__(
        self,
        stored: Sequence[StoredIndex],
        positions: Integers | None = None,
        *,
        home: str | None = None,
        options: StoreOptions | None = None,
        joins: tuple[Join, ...] = (),
        columns: Mapping[str, Integers] | None = None,
        labels: Mapping[int, Labels] | None = None,
    ) -> None:
        self.parts = Parts(stored, positions)
        self.labels = dict(labels or {})
        self._columns = Columns(self.parts, columns)
        self._home = home
        self._options = options
        self.joins = joins
        self._classes: ClassNames | None = None

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def classes(self) -> tuple[str, ...] | ClassNames | None:
        """The names of the classes, by label; None if they are not known.

        They are read from ``classes.json`` beside the shards, which `torchdata_ais.convert` writes, once. If other
        fields than ``cls`` have names, they are a mapping by field.

        Raises:
            UsageError: Shards of other folders have other names.

        Example:
            >>> import pathlib, tempfile
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     shards = example_shards(folder, counts=(3, 2))
            ...     _ = pathlib.Path(folder, "classes.json").write_text('["cat", "dog"]')
            ...     SampleIndex.build(shards).classes
            ('cat', 'dog')
        """
        return by_label(self.class_names())

    def with_union(self, union: ClassNames) -> Self:
        """Return this index with the labels that its classes have in `union`.

        Raises:
            UsageError: The names of its classes are not known.
        """
        if not self.class_names():
            raise UsageError.at(
                "classes='union' of an index without names of classes",
                todo="put a classes.json beside its shards",
            )
        made = self._with(self.parts, home=self._home)
        labels = new_labels(self.class_names(), union)
        several = (
            (part, composed(self.labels.get(part, {}), labels)) for part in range(len(self.parts.stored))
        )
        made.labels = {part: one for part, one in several if one}
        made._classes = union
        return made

    def relabel(self, sample: Fields, reference: SampleReference, prefix: str = "") -> None:
        """Give a sample of bytes the labels of its classes in the union, if any.

        Args:
            sample: The sample.
            reference: Its reference, or that of its partner in this index.
            prefix: The prefix of this index's fields in the sample.

        Raises:
            DecodeError: It has a label without a name.
        """
        if not self.labels:
            return
        for own, labels in self.labels.get(self.parts.of_shard(reference.number)[0], {}).items():
            field = prefix + own
            if field in sample:
                old = bytes(sample[field]).strip()
                if old not in labels:
                    raise DecodeError.at(
                        f"the label {old[:40]!r} of {field!r} has no name in classes.json",
                        todo="mend the sample, or the classes.json of its shard",
                        url=reference.shard.name, key=reference.key, field=field,
                    )  # fmt: skip
                sample[field] = labels[old]

    def class_names(self) -> ClassNames:
        """Return the names of the classes by field; see `classes`."""
        if self._classes is None:
            shards = [
                part.shard(number).name
                for part in self.parts.stored
                for number in sorted({0, part.head.shards - 1})
                if part.head.shards
            ]
            self._classes = class_names_of(shards, self.options)
        names = dict(self._classes)
        for join in self.joins:
            names |= {f"{join.prefix}{field}": some for field, some in join.other.class_names().items()}
        return names

    def __repr__(self) -> str:
        shards = sum(part.head.shards for part in self.parts.stored)
        known = f"proof={self.proof!r}, digest={self.digest!r}"
        return f"{type(self).__name__}({len(self)} samples of {shards} shards, {known})"

    def _repr_html_(self) -> str:
        return index_html(self)

    @overload
    def __getitem__(self, position: SupportsIndex | str) -> SampleReference: ...
    @overload
    def __getitem__(self, position: slice) -> Self: ...
    def __getitem__(self, position: SupportsIndex | str | slice) -> SampleReference | Self:
        """Return the sample of a number or a key, or those of a slice.

        Raises:
            KeyError: No sample has this key.
            IndexError: There is no sample of this number.
            UsageError: Another type, or a slice with a step.
        """
        if isinstance(position, str):
            return self.take([self._number_of(position)])[0]
        if isinstance(position, slice):
            if position.step not in (None, 1):
                raise UsageError.at(f"a slice with step {position.step}", todo="pass the numbers to select()")
            return self._chosen(np.arange(len(self), dtype=np.int64)[position])
        if not isinstance(position, SupportsIndex):
            raise UsageError.at(
                f"an index was asked for {position!r:.40}, of type {type(position).__name__}",
                todo='samples have numbers from 0 on, and keys: index[0], index["key"]; select() chooses by columns',
            )
        number = position.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"there is no sample {number} in an index of {len(self)} samples, which begin at 0"
            )
        return self.take([number % len(self)])[0]

    def __getitems__(self, numbers: Sequence[int]) -> NoReturn:
        """Refuse torch's `DataLoader`, which takes an index for a data set."""
        raise UsageError.at(
            "an index has the places of samples, not the samples",
            todo="pass SampleDataset(index, Decoder()) to DataLoader",
        )

    def _number_of(self, key: str) -> int:
        begin, wanted = 0, as_scalar(key)
        for keys in self.keys.chunks():
            number = pc.index(keys, wanted).as_py()
            if number >= 0:
                return begin + int(number)
            begin += len(keys)
        raise KeyError(
            f"no sample has the key {key!r}: a key is the name of its members up to the first dot"
            + (f", as {self[0].key!r}" if len(self) else "")
        )

    def head(self, count: int = 5) -> Self:
        """Return the first samples.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
            >>> list(index.head(2).keys), index["00004"].key
            (['00000', '00001'], '00004')
        """
        check_number(count, 0, "count")
        return self[:count]

    def sample(self, count: int = 5, seed: int = 0) -> Self:
        """Return some samples, drawn by a seed, in the stored order.

        Fewer if there are not so many.

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> len(SampleIndex.build(example_shards(counts=(3, 2))).sample(4, seed=1))
            4
        """
        check_number(count, 0, "count")
        check_seed(seed)
        drawn = random.Random(seed).sample(range(len(self)), min(count, len(self)))
        return self._chosen(np.array(sorted(drawn), dtype=np.int64))

    def to_pandas(self) -> Any:
        """Return the rows of all samples as a ``pandas.DataFrame``; see `batches`.

        Raises:
            MissingLibraryError: pandas is not installed.
        """
        require("pandas", "a table for pandas")
        return self.to_arrow().to_pandas()

    def __iter__(self) -> Iterator[SampleReference]:
        for begin in range(0, len(self), 4096):
            yield from self.take(np.arange(begin, min(begin + 4096, len(self))))

    def take(self, numbers: npt.ArrayLike) -> list[SampleReference]:
        """Return the references of some samples, in the requested order.

        A shard's table is read once for each call.
        """
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
        """Return the partners of some samples of a joined index.

        Each sample has a reference or None for each join.

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
        """Digest of the contents of the index and the selection.

        It covers names, sizes and checksums of shards, keys and sizes of samples. With a selection or several
        indexes, it covers those indexes and the selected numbers; `save` keeps it.
        """
        own = self.parts.digest
        others: list[object] = [(join.other.digest, join.prefix, join.missing) for join in self.joins]
        if self.labels:
            others.append(repr(sorted(self.labels.items())))
        return xxhash.xxh64_hexdigest(msgspec.msgpack.encode([own, others])) if others else own

    def mean_bytes(self) -> float:
        """Return the mean size of a sample, by the first shards.

        These are the first 4,096 shards of each stored index.
        """
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
        """Yield the rows of the samples, a batch for each shard.

        Shards without a selected sample are left out. The columns: ``shard`` (its name), ``key``, ``start``,
        ``size``, ``fields`` (a list of names), ``sizes``, ``xxh64``, and those that were added.
        """
        known = self._columns.arrays()
        schema, end = self._shown(), 0
        for table in self.parts.tables():
            shown = shown_rows(*table)
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
        """Return an added column: a number for each sample; -1 where unknown.

        Raises:
            UsageError: There is none of this name.
        """
        return self._columns.of(name)

    def selected(self) -> Iterator[tuple[StoredIndex, int, Integers | None]]:
        """Yield the shards with selected samples, and the selected rows.

        None for all rows.
        """
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
        """Return the rows of all samples as one table; see `batches`."""
        return pa.Table.from_batches(self.batches(), schema=self._shown())

    def partners_by(self, join: Join) -> Integers:
        """Return each sample's partner in the other index of a join.

        It is a number, -1 where it has none.
        """
        return join.table.take(self.parts.all_positions())

    def shard_samples(self, number: int) -> IndexedShard:
        """Return the index entry of a shard, as it was built.

        `number` counts the shards of all parts.
        """
        part, number, begin = self.parts.of_shard(number)
        stored = self.parts.stored[part]
        shard, samples = entry_of(stored, number, None, stored.samples(number))
        for name, values in self._columns.added.items():
            samples.columns[name] = column_array(values[begin : begin + len(samples.keys)]).to_pylist()
        return shard, samples

    def place_of(self, reference: SampleReference) -> str:
        """Return the location of a sample's index, for messages."""
        return self.parts.stored[self.parts.of_shard(reference.number)[0]].folder.where

    @property
    def stored(self) -> list[StoredIndex]:
        """The stored indexes it is made of."""
        return list(self.parts.stored)

    @property
    def is_selection(self) -> bool:
        """True if the index leaves out samples of its shards."""
        return self.parts.positions is not None or any(part.head.selection for part in self.parts.stored)

    @property
    def options(self) -> StoreOptions:
        """Options to reach its shards."""
        return self._options or resolve_options()

    @property
    def files(self) -> list[str]:
        """The files with the rows of samples, for other programs.

        Examples are polars, duckdb, pandas and ``pyarrow.dataset``. They hold all samples of the stored indexes, also
        without a selection.
        """
        return [f"{part.folder.where}/{name}" for part in self.parts.stored for name in part.head.parts]

    def _with(self, parts: Parts, **changed: Any) -> Self:
        """Return an index of `parts` like this one, with the given changes.

        Options, joins and columns are those of this one.
        """
        same = {
            "options": self._options,
            "joins": self.joins,
            "columns": self._columns.added,
            "labels": self.labels,
        }
        made = type(self)(parts.stored, parts.positions, **{**same, **changed})
        made._classes = self._classes
        return made

    def _chosen(self, numbers: Integers) -> Self:
        return self._with(self.parts.chosen(numbers))
