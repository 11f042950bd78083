"""IndexedSamples: open, select, join and store indexes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from typing_extensions import Self

from torchdata_ais._util.arguments import check_function, check_seed, checked
from torchdata_ais.errors import SampleIndexError, UsageError
from torchdata_ais.index.classes import Labels, agreed_names, union_of
from torchdata_ais.index.joining import Missing, joined_with
from torchdata_ais.index.location import (
    ShardsFrom,
    folder_at,
    found_folder,
    named_shards,
    options_for,
    shard_places,
)
from torchdata_ais.index.parts import Parts, shared_samples
from torchdata_ais.index.rows import SHOWN
from torchdata_ais.index.samples_view import NumberedSamples, check_column, values_of
from torchdata_ais.index.stored import StoredIndex
from torchdata_ais.index.writer import IndexWriter
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.store import Cluster, given_options

Selection: TypeAlias = npt.ArrayLike | pc.Expression | Callable[[pa.RecordBatch], Any]
"""Argument of `select`."""

_ROW = "__row__"


def selected_numbers(
    which: Selection, length: int, batches: Callable[[], Iterator[pa.RecordBatch]]
) -> Integers:
    """Return the ascending numbers of the samples that `select` means."""
    if isinstance(which, pc.Expression):
        return _chosen_by(lambda batch: _where(which, batch), batches())
    if callable(which):
        check_function(which, 1, "select()")
        return _chosen_by(lambda batch: _mask(_answer(which, batch), len(batch)), batches())
    chosen = np.asarray(which)
    if chosen.dtype == bool:
        return np.flatnonzero(_mask(chosen, length))
    if chosen.size == 0:
        return np.zeros(0, dtype=np.int64)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        raise UsageError.at(
            f"select() got values of type {chosen.dtype}",
            todo="choose by keys with pc.field('key').isin(keys) of pyarrow.compute"
            if chosen.dtype.kind in "UOS"
            else "pass a mask, numbers of samples, an expression of pyarrow.compute (pc.field('size') > 1000), or a "
            "function of a batch of rows",
        )
    ordered: Integers = np.sort(chosen.astype(np.int64))
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeats):
        raise UsageError.at(
            f"select() got sample {repeats[0]} twice",
            todo="an index has each sample once; weights repeat samples",
        )
    if ordered[0] < 0 or ordered[-1] >= length:
        raise UsageError.at(
            f"select() got samples {ordered[0]} to {ordered[-1]} of {length}",
            todo="numbers begin at 0",
        )
    return ordered


def _chosen_by(
    choose: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]], batches: Iterator[pa.RecordBatch]
) -> Integers:
    found, begin = [np.zeros(0, dtype=np.int64)], 0
    for batch in batches:
        found.append(np.flatnonzero(choose(batch)) + begin)
        begin += len(batch)
    return np.concatenate(found)


def _where(expression: pc.Expression, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows the expression is true for."""
    table = pa.Table.from_batches([batch]).append_column(_ROW, [pa.array(np.arange(len(batch)))])
    mask = np.zeros(len(batch), dtype=np.bool_)
    try:
        mask[table.filter(expression).column(_ROW).to_numpy()] = True
    except (pa.ArrowException, KeyError) as error:
        reason = str(error).partition(" in ")[0].partition("\n")[0]  # then it lists our own column, too
        raise UsageError.at(
            f"select() cannot use {expression}: {reason}", todo=f"use the columns {', '.join(SHOWN.names)}"
        ) from None
    return mask


def _answer(which: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch) -> object:
    """Return the result of a function for the rows."""
    try:
        return which(batch)
    except KeyError as error:  # pyarrow's, of a column that there is not
        raise UsageError.at(
            f"the function given to select() asks for what there is not: {error}",
            todo=f"use the columns {', '.join(SHOWN.names)}",
        ) from error
    except AttributeError as error:
        raise UsageError.at(
            f"the function given to select() fails: {error}",
            todo="it gets a pyarrow.RecordBatch, many rows at once: use functions of pyarrow.compute",
        ) from error


def _mask(values: object, length: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(values, dtype=bool)
    if mask.shape != (length,):
        raise UsageError.at(
            f"a mask of {mask.size} values for {length} samples", todo="give one value a sample"
        )
    return mask


def side_of_keys(keys: Iterable[str], count: int, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which keys are among about `fraction`, by XXH64 of seed and key."""
    if not 0 <= fraction <= 1:
        raise UsageError.at(f"fraction={fraction!r}", todo="pass 0 to 1")
    limit, word = int(fraction * 2**64), seed & 0xFFFFFFFFFFFFFFFF
    sides = (xxhash.xxh64_intdigest(key.encode(), word) < limit for key in keys)
    return np.fromiter(sides, dtype=np.bool_, count=count)


def opened_index(
    index: IndexedSamples | str | os.PathLike[str], shards_from: ShardsFrom, cluster: Cluster
) -> IndexedSamples:
    """Return an index as it is, or the one that is stored at a place."""
    if isinstance(index, str | os.PathLike):
        return IndexedSamples.open(index, shards_from=shards_from, cluster=cluster)
    check_no_places(shards_from)
    return index


_I = TypeVar("_I", bound=NumberedSamples)


def with_classes(indexes: Sequence[_I], classes: str) -> Sequence[_I]:
    """Return indexes whose labels mean the same classes.

    See `IndexedSamples.concat`.

    Raises:
        UsageError: The labels mean other classes, with ``"same"``; or the names of an index are not known, with
            ``"union"``.
    """
    if classes not in ("same", "union"):
        raise UsageError.at(f"classes={classes!r:.40}", todo='use "same" or "union"')
    if classes == "same":
        if len(indexes) > 1:
            agreed_names([(f"index {number}", index.class_names()) for number, index in enumerate(indexes)])
        return indexes
    union = union_of([index.class_names() for index in indexes])
    return [index.with_union(union) for index in indexes]


def check_no_places(shards_from: ShardsFrom) -> None:
    """Raise `UsageError` if an open index was passed with `shards_from`."""
    if shards_from is not None:
        raise UsageError.at(
            "shards_from= was passed with an index that is open", todo="pass it to SampleIndex.open"
        )


def _check_joinable(indexes: Sequence[IndexedSamples]) -> None:
    """Raise `UsageError` unless `indexes` can be put one after the other."""
    if not indexes:
        raise UsageError.at("no index to join", todo="pass at least one")
    kind = type(indexes).__name__ if isinstance(indexes, IndexedSamples) else ""
    others = [] if kind else [one for one in indexes if not isinstance(one, IndexedSamples)]
    if kind or others:
        kind = kind or f"a list with {type(others[0]).__name__}"
        raise UsageError.at(
            f"concat() was given {kind}, not a list of indexes", todo="SampleIndex.concat([one, two])"
        )
    if any(index.joins for index in indexes):
        raise UsageError.at("concat() of an index that is joined", todo="join what concat() returns")
    shared = shared_samples([index.parts for index in indexes])
    if shared is not None:
        one, other, count = shared
        raise UsageError.at(
            f"{count} samples are in two of the indexes of concat(), numbers {one} and {other}",
            todo="leave them out of one (index.select), or give an index a larger weight in a Mixture",
        )


class IndexedSamples(NumberedSamples):
    """The samples of one or several stored indexes, all or a selection.

    The part of `torchdata_ais.SampleIndex` that reads no shard: users have that class, which adds building and
    verifying. Methods that return an index return one of the same class.
    """

    @classmethod
    @checked
    def open(
        cls,
        where: str | os.PathLike[str],
        *,
        shards_from: ShardsFrom = None,
        index_dir: str | os.PathLike[str] | None = None,
        cluster: Cluster = None,
    ) -> Self:
        """Open a stored index. It is read on use, by ranges, and checked.

        Args:
            where: The prefix, template, bucket, folder or pattern of shards whose index is next to them (see
                `index_place`); or the folder it was saved to: a path, ``ais://bucket/name``, a web URL. Of a template
                or a pattern the samples of the shards that it names are selected.
            shards_from: Further buckets, prefixes, folders or web URLs whose shards the index may name: one, or a list.
                By default those of the place it is opened for: of a bucket or a web server those in it, of a folder
                those below it (of ``DIR/.index`` those below ``DIR``).
            index_dir: A folder of this node to copy the index to, see `kept_in`.
            cluster: See `torchdata_ais.store.Cluster`; of a path of this machine none is needed.

        Raises:
            NotFoundError: There is none.
            SampleIndexError: It is damaged, of a version this package does not read, or names shards of another place.
                All names on a page of 4,096 are compared when one of them is read.
            TransportError: It cannot be read.

        Example:
            >>> import tempfile
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = SampleIndex.build(example_shards(folder, counts=(3, 2))).save(folder)
            ...     len(SampleIndex.open(folder))
            5
        """
        settings = options_for(where, given_options(cluster))
        folder, places = found_folder(where, settings)
        stored = StoredIndex(folder, places=places + shard_places(shards_from))
        opened = cls([stored], home=folder.where, options=settings)
        only = named_shards(where)
        if only is not None:
            opened = opened._of_shards(only)
        return opened if index_dir is None else opened.kept_in(index_dir)

    @checked
    def kept_in(self, folder: str | os.PathLike[str]) -> Self:
        """Return the same index, read from a copy that is made on this node.

        A full shuffle reads all of an index repeatedly in each worker; a local copy makes that fast. One process
        copies a file on first use and compares it with its XXH64. It resumes an unfinished copy of a killed process.
        An index that is stored in its place later is copied when it is opened. Files of the previous index stay;
        those of the one before that are removed.

        Args:
            folder: On a disk of this node; any number of indexes share it.

        Raises:
            UsageError: The folder cannot be written to, or is full.
            StallError: Another process that copies makes no progress (when the index is read).

        Example:
            >>> import tempfile
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as where, tempfile.TemporaryDirectory() as node:
            ...     _ = SampleIndex.build(example_shards(where, counts=(3, 2))).save(where)
            ...     SampleIndex.open(where).kept_in(node)[4].key
            '00004'
        """
        stored = [part.kept_in(folder) for part in self.parts.stored]
        joins = tuple(join._replace(other=join.other.kept_in(folder)) for join in self.joins)
        return self._with(Parts(stored, self.parts.positions), home=self._home, joins=joins)

    @classmethod
    def concat(cls, indexes: Sequence[IndexedSamples], *, classes: Literal["same", "union"] = "same") -> Self:
        """Return the samples of all `indexes`, one after the other.

        Args:
            indexes: The indexes.
            classes: ``"same"``: labels must mean the same classes in all of them. ``"union"``: labels are mapped by
                the names of their classes when samples are read; the names are those of the first index, then the
                new ones of the others.

        Raises:
            UsageError: None were given, or something else than indexes; two have samples of one stored index in
                common; or their labels mean other classes (see `classes`).

        Example:
            >>> from torchdata_ais import SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> one, two = (SampleIndex.build(shard) for shard in example_shards(counts=(3, 2)))
            >>> len(SampleIndex.concat([one, two]))
            5
        """
        _check_joinable(indexes)
        indexes = with_classes(indexes, classes)
        parts = Parts.concat([index.parts for index in indexes])
        labels: dict[int, Labels] = {}
        count = 0
        for index in indexes:
            labels |= {count + number: one for number, one in index.labels.items()}
            count += len(index.parts.stored)
        columns = {
            name: np.concatenate([index._columns.whole(name) for index in indexes])
            for name in dict.fromkeys(name for index in indexes for name in index._columns.added)
        }
        made = cls(parts.stored, parts.positions, options=indexes[0]._options, columns=columns, labels=labels)
        made._classes = agreed_names([("", index.class_names()) for index in indexes]) if labels else None
        return made

    def with_column(self, name: str, values: npt.ArrayLike | Mapping[str, int]) -> Self:
        """Return this index with a further number for each sample.

        It may be a length for `pack` and `buckets`, such as its tokens.

        `save` stores it with the index, `build(previous=)` keeps that of shards that have not changed; a column of
        the same name is replaced. `digest` does not include it, as it covers the samples only. Other lengths make
        other packs, which are compared when a state is loaded.

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
        return self._with(self.parts, home=self._home, columns={**self._columns.added, name: whole})

    def select(self, which: Selection) -> Self:
        """Return some of the samples as an index, in the stored order.

        Args:
            which: A mask of booleans, one a sample; or numbers of samples, each once; or a condition on columns (for
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
        on: Literal["key"] = "key",  # noqa: ARG002 - the only value yet
        *,
        missing: Missing = "error",
        prefix: str = "",
        where: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return this index joined with another: its fields come with samples.

        Captions, embeddings or masks that were added later are in other shards, under the same keys. Samples of
        `other` without a partner here are left out. More than one: ``a.join(b).join(c)``.

        Args:
            other: The other index.
            on: ``"key"``: a sample's partner is the one with the same key.
            missing: The treatment of a sample without a partner: ``"error"``, ``"drop"``, or ``"keep"``: it comes
                without those fields.
            prefix: The prefix of the names of the other's fields, such as ``"other."``.
            where: A folder of this machine for the table of partners. Processes of the machine share it, and joining
                the same indexes again finds it there. None: in memory, and each process has its own.

        Order: that of this index.

        Memory: 64 MiB while keys are sorted on disk (24 bytes a key of both); then 8 bytes a sample of this index's
        shards, in memory or in a file.

        Raises:
            SampleIndexError: A key is twice in one of the two; a sample has no partner.
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
        join, stays = joined_with(self, other, missing=missing, prefix=prefix, where=where)
        joined = self._with(self.parts, joins=(*self.joins, join))
        return joined if stays is None else joined._chosen(stays)

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
        if isinstance(seed, float):
            raise UsageError.at(
                f"split({fraction!r}, {seed!r}) was given two fractions",
                todo="pass one: the first index has that share, the second the rest; the other argument is seed=",
            )
        if isinstance(fraction, bool) or not isinstance(fraction, Real):
            raise UsageError.at(f"fraction={fraction!r:.60} is no number", todo="pass a number from 0 to 1")
        check_seed(seed)
        first = side_of_keys(self.keys, len(self), fraction, seed)
        return self.select(first), self.select(np.logical_not(first))

    @checked
    def save(
        self,
        where: str | os.PathLike[str] | None = None,
        *,
        cluster: Cluster = None,
    ) -> Self:
        """Store the index, or the selection of one; return the stored one, open.

        Two that are written to one place at once do not mix: the one that ends last replaces the other. The files of
        the one before the last are removed.

        Args:
            where: A folder, or ``ais://bucket/name``. Default: next to the shards it was built of (`index_place`).
            cluster: See `torchdata_ais.store.Cluster`; default the one it was built from.

        Raises:
            UsageError: No place is known: for a selection, or an index of several sources.
            TransportError: It cannot be stored.
        """
        if self.labels:
            raise UsageError.at(
                'save() of an index whose labels are mapped (classes="union")',
                todo="save the indexes, and concatenate them when they are opened",
            )
        if self.joins:
            raise UsageError.at(
                "save() of an index that is joined",
                todo="save both indexes, and join them with where=, which keeps what was found",
            )
        if where is None:
            where = self._home if self.parts.positions is None else None
        if where is None:
            raise UsageError.at(
                "save() does not know where to", todo="pass a folder, or ais://bucket/name: index.save(where)"
            )
        settings = options_for(where, given_options(cluster) or self._options)
        folder = folder_at(where, settings)
        writer = IndexWriter(folder, self.columns)
        known, end = self._columns.arrays(), 0
        for shard, samples in self.parts.entries():
            begin, end = end, end + len(samples.keys)
            samples.columns = {name: values[begin:end].to_pylist() for name, values in known.items()}
            writer.add(shard, samples)
        writer.finish(
            source=self.parts.stored[0].head.source if len(self.parts.stored) == 1 else "",
            selection=self.is_selection,
            digest=self.digest,
        )
        return type(self)([StoredIndex(folder)], home=self._home, options=settings)

    def _of_shards(self, names: Sequence[str]) -> Self:
        """Return the samples of the shards of these names.

        All of them must be in the index.
        """
        parts, missing = self.parts.of_shards(names)
        if missing:
            raise SampleIndexError.at(
                f"{self._home}: the index has {len(names) - len(missing)} of the {len(names)} shards that are named; "
                f"{missing[0]} is not in it",
                todo="name the shards that are there, or index the new ones, too (torchdata-ais index PREFIX)",
                url=missing[0],
            )
        return self._with(parts)
