"""Joining an index with another by the key: which of its samples come with each sample."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from torchdata_ais.errors import SampleIndexError, UsageError
from torchdata_ais.index.partners import DuplicateKeysError, PartnerTable, paired
from torchdata_ais.index.rows import SampleReference
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.store.naming import make_folder
from torchdata_ais.whole_file import whole_file

if TYPE_CHECKING:
    from torchdata_ais.index.indexed_samples import IndexedSamples
    from torchdata_ais.index.numbered import NumberedSamples

Missing = Literal["error", "drop", "keep"]


class Join(NamedTuple):
    """Another index, whose samples come with those of the first.

    Attributes:
        other: The other index.
        table: Of each sample of the first one's stored indexes the number of its partner in `other`.
        prefix: What stands before the names of its fields.
        missing: What was to become of samples without a partner.
    """

    other: IndexedSamples
    table: PartnerTable
    prefix: str
    missing: Missing


def joined_with(
    first: NumberedSamples,
    other: IndexedSamples,
    *,
    missing: Missing,
    prefix: str,
    where: str | os.PathLike[str] | None,
) -> tuple[Join, Integers | None]:
    """Return the join, and the numbers of the samples of `first` that stay; None for all.

    Args:
        first: The first index.
        other: The other one.
        missing: See `IndexedSamples.join`; as `prefix` and `where`.
        prefix: Likewise.
        where: Likewise.
    """
    if other.joins:
        raise UsageError.at(
            "join() with an index that is joined itself", todo="join one after the other: a.join(b).join(c)"
        )
    clash = sorted(_names(first) & _names(other, prefix))
    if clash:
        raise UsageError.at(
            f"both indexes have the fields {', '.join(clash)}",
            todo='name those of the other apart: join(..., prefix="other.")',
        )
    table = _table(first, other, where)
    join = Join(other, table, prefix, missing)
    if missing == "keep":
        return join, None
    lost = [places for places in table.missing(first.parts.positions) if len(places)]
    if not lost:
        return join, None
    if missing == "error":
        reference = first.take([int(lost[0][0])])[0]
        raise SampleIndexError.at(
            f"{sum(map(len, lost))} of {len(first)} samples have no partner in the other index; the first is "
            f"{reference.key!r} of {reference.shard.name}",
            todo='leave them out (missing="drop"), or have them come without those fields (missing="keep")',
            url=reference.shard.name,
            key=reference.key,
        )
    stays = np.ones(len(first), dtype=bool)
    for places in lost:
        stays[places] = False
    return join, np.flatnonzero(stays)


def _names(index: NumberedSamples, prefix: str = "") -> set[str]:
    """Return the names of all fields that samples of an index may have."""
    return {f"{prefix}{name}" for fields in index.fields for name in fields}


def _table(
    first: NumberedSamples, other: IndexedSamples, where: str | os.PathLike[str] | None
) -> PartnerTable:
    samples = first.parts.samples
    if where is None:
        values = np.full(samples, -1, dtype=np.int64)
        _fill(values, first, other, None)
        return PartnerTable(values)
    folder = Path(where)
    make_folder(folder)
    path = folder / f"partners-{first.digest}-{other.digest}.int64"
    if path.is_file() and not path.is_symlink() and path.stat().st_size == 8 * samples:
        return PartnerTable(path=str(path))
    with whole_file(path) as file:
        file.truncate(8 * samples)
        if samples:
            values = np.memmap(file, dtype="<i8", mode="r+")
            values[:] = -1
            _fill(values, first, other, folder)
            values.flush()
            del values
    return PartnerTable(path=str(path))


def _fill(values: Integers, first: NumberedSamples, other: IndexedSamples, folder: Path | None) -> None:
    count = len(first) + len(other)
    try:
        for mine, theirs in paired(_keyed(first), _keyed(other), keys=count, folder=folder):
            values[first.parts.at(mine)] = theirs
    except DuplicateKeysError as error:
        index = (first, other)[error.side]
        one, two = index.take(error.numbers)
        raise SampleIndexError.at(
            f"the key {one.key!r} stands twice in the {('first', 'other')[error.side]} index: in {one.shard.name} at "
            f"byte {one.start}, and in {two.shard.name} at byte {two.start}",
            todo="leave one of them out: index.select(...)",
            url=two.shard.name,
            offset=two.start,
            key=two.key,
        ) from None


def _keyed(index: NumberedSamples) -> Iterator[tuple[pa.Array, Integers]]:
    begin = 0
    for chunk in index.keys.chunks():
        yield chunk, np.arange(begin, begin + len(chunk))
        begin += len(chunk)


def partners_of(
    join: Join, positions: Integers, references: list[SampleReference]
) -> Iterator[SampleReference | None]:
    """Yield the partner of each sample; None where it has none.

    Args:
        join: The join.
        positions: Where the samples stand in the stored indexes of the first.
        references: The samples.

    Raises:
        SampleIndexError: The table of partners is not that of these indexes.
    """
    numbers = join.table.take(positions)
    has = numbers >= 0
    if has.any() and int(numbers.max()) >= len(join.other):
        raise _damaged(references[int(numbers.argmax())])
    found = iter(join.other.take(numbers[has]))
    for reference, is_there in zip(references, has.tolist(), strict=True):
        if not is_there:
            yield None
            continue
        partner = next(found)
        if partner.key != reference.key:
            raise _damaged(reference)
        yield partner


def _damaged(reference: SampleReference) -> SampleIndexError:
    return SampleIndexError.at(
        f"the table of partners does not fit {reference.shard.name}: that of the sample {reference.key!r} has another "
        "key",
        todo="remove the table (partners-*.int64), and join again",
        url=reference.shard.name,
        key=reference.key,
    )
