"""Mixtures of indexes, and lengths of samples."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.formatting import html_text
from torchdata_ais.errors import UsageError
from torchdata_ais.index.classes import ClassNames, agreed_names, by_label
from torchdata_ais.index.format import as_numpy
from torchdata_ais.index.indexed_samples import IndexedSamples, with_classes
from torchdata_ais.index.parts import shared_samples
from torchdata_ais.index.samples_view import MISSING, index_html
from torchdata_ais.plan import DENOMINATOR, Stop, round_weights
from torchdata_ais.plan.permutation import Integers

if TYPE_CHECKING:
    from torchdata_ais.index.joining import Join


_EXACT = 1e-6  # how far weights may be from a sum of 1: they are written with few digits

Weights = Mapping[IndexedSamples, float]


class Mixture:
    """Indexes to be read mixed by weight.

    Every prefix of the order is within one sample of the weights.

    Weights are rounded to multiples of 1/65,536, shown, and meant exactly. All samples of a source are drawn before
    any of it comes again, across epochs. All epochs have the same length while the weights stay. (In proportion to
    their sizes: `SampleIndex.concat`.)

    Args:
        weights: Of each index its weight: fractions that sum to 1, or whole numbers of which the proportions count.
            Weights that change on the way: `Schedule`.
        stop: The end of an epoch: ``"first"``: before any sample of it comes again; ``"all"``: when each was drawn;
            ``"never"``: a number of steps (``epoch_steps=`` of the loader or the reader).
        classes: ``"union"`` maps labels by the names of their classes; see `SampleIndex.concat`.

    Attributes:
        sources: The indexes; ``sample.source`` is a number among them.
        weights: Of each source, as whole numbers of 65,536ths.
        stop: As given.

    Raises:
        UsageError: Weights that are negative, zero, not numbers or do not sum to 1; an empty or repeated index; two
            indexes with common samples; two indexes whose labels mean other classes (`SampleIndex.classes`).

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> cats, dogs = (SampleIndex.build(shard) for shard in example_shards(counts=(3, 2)))
        >>> Mixture({cats: 0.7, dogs: 0.3})
        Mixture(3 samples x 0.70000, 2 samples x 0.30000, stop='first')
    """

    @checked
    def __init__(
        self,
        weights: Weights,
        stop: Stop = "first",
        *,
        classes: Literal["same", "union"] = "same",
    ) -> None:
        _check_given(weights)
        self.sources = list(weights)
        self.stop: Stop = stop
        _check_sources(self.sources)
        self.weights = _rounded(weights)
        self.sources = list(with_classes(self.sources, classes))

    @property
    def classes(self) -> tuple[str, ...] | ClassNames | None:
        """The names of the classes of all sources, by label.

        See `SampleIndex.classes`.
        """
        return by_label(agreed_names([("", index.class_names()) for index in self.sources]))

    def kept_in(self, folder: str | os.PathLike[str] | None) -> Mixture:
        """Return the same mixture with indexes copied to a folder of this node.

        See `SampleIndex.kept_in`.
        """
        if folder is None:
            return self
        kept = copy.copy(self)
        kept.sources = [index.kept_in(folder) for index in self.sources]
        return kept

    def _repr_html_(self) -> str:
        return f"<b>{html_text(repr(self))}</b>{''.join(map(index_html, self.sources))}"

    def __repr__(self) -> str:
        parts = [
            f"{len(index)} samples x {weight / DENOMINATOR:.5f}"
            for index, weight in zip(self.sources, self.weights, strict=True)
        ]
        return f"Mixture({', '.join(parts)}, stop={self.stop!r})"


def _rounded(given: Weights) -> tuple[int, ...]:
    values = [_plain(weight) for weight in given.values()]
    for weight in values:
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise UsageError.at(f"the weight {weight!r} is no number", todo="pass numbers above 0")
        if not (float(weight) > 0 and math.isfinite(weight)):
            raise UsageError.at(f"a weight of {weight!r}", todo="pass numbers above 0")
    total = math.fsum(values)
    if not all(isinstance(weight, int) for weight in values) and abs(total - 1) > _EXACT:
        raise UsageError.at(
            f"the weights sum to {total:g}", todo="make them sum to 1, or pass whole numbers (3 and 1)"
        )
    return round_weights(values)


def _check_given(weights: object) -> None:
    """Raise `UsageError` unless `weights` is a mapping with entries."""
    if not isinstance(weights, Mapping):
        raise UsageError.at(
            "a mixture without weights",
            todo="pass {index: weight, ...}; for weights that change, give the loader a Schedule(weights=...)",
        )
    if not weights:
        raise UsageError.at("a mixture of nothing", todo="pass {index: weight, ...}")


def _check_sources(sources: Sequence[IndexedSamples]) -> None:
    """Raise `UsageError` if a source is empty, or has samples of another."""
    for index in sources:
        if not isinstance(index, IndexedSamples):
            raise UsageError.at(
                f"a mixture got an item of type {type(index).__name__}", todo="pass {SampleIndex: weight}"
            )
        if not len(index):
            raise UsageError.at(f"{index!r} has no sample", todo="leave it out of the mixture")
    if len({index.digest for index in sources}) < len(sources):
        raise UsageError.at("an index is twice in the mixture", todo="add up its weights")
    shared = shared_samples([index.parts for index in sources])
    if shared is not None:
        one, other, count = shared
        raise UsageError.at(
            f"{count} samples are in two indexes of the mixture, numbers {one} and {other}",
            todo="leave them out of one: index.select(...)",
        )


def _plain(weight: object) -> Any:
    """Return a number of any library as Python's; other values unchanged."""
    if isinstance(weight, Integral) and not isinstance(weight, bool):
        return int(weight)
    return float(weight) if isinstance(weight, Real) and not isinstance(weight, bool) else weight


def lengths_of(index: IndexedSamples, name: str) -> Integers:
    """Return the column `name` of each sample, or the size of that field.

    Columns and fields of joined indexes count, too.

    Memory: 8 bytes a sample.

    Raises:
        UsageError: The column does not exist, and a sample lacks the field; or the column lacks a value of a sample.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2))).with_column("tokens", [5, 4, 3, 2, 1])
        >>> lengths_of(index, "tokens").tolist(), lengths_of(index, "txt").tolist()
        ([5, 4, 3, 2, 1], [0, 1, 2, 3, 4])
    """
    found = None
    if name in index.columns:
        found = index.column(name)
    for join in index.joins:
        inner = name.removeprefix(join.prefix)
        if name.startswith(join.prefix) and inner in join.other.columns:
            partners = index.partners_by(join)
            found = np.where(partners < 0, MISSING, join.other.column(inner)[partners])
    if found is None:
        return field_sizes(index, name)
    if (found == MISSING).any():
        reference = index.take([int(np.flatnonzero(found == MISSING)[0])])[0]
        raise UsageError.at(
            f"the column {name!r} knows nothing of the sample {reference.key!r} of {reference.shard.name}",
            todo="add it anew for all samples: index.with_column(name, values).save(); or select those it knows",
            url=reference.shard.name,
            key=reference.key,
        )
    return found


def field_sizes(index: IndexedSamples, field: str) -> Integers:
    """Return the bytes of a field of each sample.

    Memory: 8 bytes a sample, and the rows of a shard.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> field_sizes(SampleIndex.build(example_shards(counts=(3, 2))), "txt").tolist()
        [0, 1, 2, 3, 4]
    """
    for join in index.joins:
        name = field.removeprefix(join.prefix) if field.startswith(join.prefix) else ""
        if any(name in names for names in join.other.fields):
            return _sizes_of_partners(index, join, name, field)
    found = [np.zeros(0, dtype=np.int64)]
    for stored, number, rows, batch in index.parts.tables():
        places = np.array([names.index(field) if field in names else -1 for names in stored.fields])
        sizes = batch.column("sizes")
        begins = as_numpy(sizes.offsets)[:-1]
        which = places[as_numpy(batch.column("fields"))]
        if rows is not None:
            begins, which = begins[rows], which[rows]
        if (which < 0).any():
            row = int(np.flatnonzero(which < 0)[0])
            key = batch.column("key")[row if rows is None else int(rows[row])].as_py()
            raise _without(field, key, stored.shard(number).name)
        found.append(as_numpy(sizes.values)[begins + which])
    return np.concatenate(found)


def _sizes_of_partners(index: IndexedSamples, join: Join, name: str, field: str) -> Integers:
    numbers = index.partners_by(join)
    if (numbers < 0).any():
        reference = index.take([int(np.flatnonzero(numbers < 0)[0])])[0]
        raise _without(field, reference.key, reference.shard.name)
    chosen, places = np.unique(numbers, return_inverse=True)
    return field_sizes(join.other.select(chosen), name)[places]


def _without(field: str, key: str, shard: str) -> UsageError:
    return UsageError.at(
        f"the sample {key!r} of {shard} has no field {field!r}",
        todo="name a field that all samples have, or a column: index.with_column(name, values)",
        url=shard,
        key=key,
    )
