"""How long each sample is: by a column that was added, or by the bytes of a field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchdata_ais.errors import UsageError
from torchdata_ais.index.columns import MISSING
from torchdata_ais.plan.hashing import Integers

if TYPE_CHECKING:
    from torchdata_ais.index.indexed_samples import IndexedSamples
    from torchdata_ais.index.joining import Join


def lengths_of(index: IndexedSamples, name: str) -> Integers:
    """Return the column `name` of each sample, or the bytes of the field of that name; those of joined indexes, too.

    Memory: 8 bytes a sample.

    Raises:
        UsageError: There is no such column, and a sample has no such field; the column knows nothing of a sample.

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

    Raises:
        UsageError: A sample has no such field.

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
    for stored, number, rows in index.selected():
        batch = stored.samples(number)
        places = np.array([names.index(field) if field in names else -1 for names in stored.fields])
        sizes = batch.column("sizes")
        begins = sizes.offsets.to_numpy()[:-1]
        which = places[batch.column("fields").to_numpy()]
        if rows is not None:
            begins, which = begins[rows], which[rows]
        if (which < 0).any():
            row = int(np.flatnonzero(which < 0)[0])
            key = batch.column("key")[row if rows is None else int(rows[row])].as_py()
            raise _without(field, key, stored.shard(number).name)
        found.append(sizes.values.to_numpy()[begins + which])
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
