"""Joins of indexes by key."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from torchdata_ais._util.files import make_folder, whole_file
from torchdata_ais.errors import SampleIndexError, UsageError
from torchdata_ais.index.rows import SampleReference
from torchdata_ais.plan.permutation import Integers

if TYPE_CHECKING:
    from torchdata_ais.index.indexed_samples import IndexedSamples
    from torchdata_ais.index.samples_view import NumberedSamples


_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<i8")])  # XXH3 of the key, and whose it is
_PART_BYTES = 16 << 20  # of rows that are sorted at a time
_BUFFERED = 1 << 18  # rows that are written at a time
_MOST_PARTS = 1 << 16


class DuplicateKeysError(Exception):
    """Two samples of one side (0 or 1) have the same key."""

    def __init__(self, side: int, numbers: tuple[int, int]) -> None:
        super().__init__(side, numbers)
        self.side, self.numbers = side, numbers


class PartnerTable:
    """The number of the partner of each sample; -1 where there is none.

    Given as values, or as the path of a file of them, which each process maps into its memory: 8 bytes a sample.

    Example:
        >>> PartnerTable(np.array([3, -1, 0])).take(np.array([2, 0])).tolist()
        [0, 3]
    """

    def __init__(self, values: Integers | None = None, path: str | None = None) -> None:
        self._given, self._path = values, path

    @cached_property
    def _values(self) -> npt.NDArray[Any]:
        if self._given is not None:
            return self._given
        path = Path(self._path or "")
        return np.memmap(path, dtype="<i8", mode="r") if path.stat().st_size else np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._values)

    def take(self, positions: Integers) -> Integers:
        """Return the partners of some samples."""
        found: Integers = np.asarray(self._values[positions], dtype=np.int64)
        return found

    def missing(self, positions: Integers | None) -> Iterator[Integers]:
        """Yield places among `positions`, or all, without a partner, in pieces."""
        count = len(self) if positions is None else len(positions)
        for begin in range(0, count, _BUFFERED):
            end = min(begin + _BUFFERED, count)
            here = np.arange(begin, end) if positions is None else positions[begin:end]
            yield np.flatnonzero(self.take(here) < 0) + begin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_values"}


Keyed = Iterable[tuple[pa.Array, Integers]]
"""Keys, and the number of the sample of each."""


def paired(
    first: Keyed, other: Keyed, *, keys: int, folder: str | os.PathLike[str] | None = None
) -> Iterator[tuple[Integers, Integers]]:
    """Yield the numbers of samples with the same key, of `first` and `other`.

    Rows of 24 bytes a key (its XXH3 of 128 bits, and the number) are spread over files by the beginning of the hash.
    Each file is sorted alone. A reader of partners compares the keys themselves. There are about `keys` of both sides
    together. The default of `folder` is the system's for temporary files.

    Memory: 64 MiB, and a batch of keys. Disk: 24 bytes a key of both sides.

    Raises:
        DuplicateKeysError: A key is twice on one side.

    Example:
        >>> sides = [(pa.array(["a", "b"]), np.arange(2))], [(pa.array(["c", "b"]), np.arange(2))]
        >>> [(one.tolist(), two.tolist()) for one, two in paired(*sides, keys=4)]
        [([1], [1])]
    """
    parts = min(_MOST_PARTS, max(1, -(-keys * _ROW.itemsize // _PART_BYTES)))
    with tempfile.TemporaryDirectory(prefix="torchdata_ais-join-", dir=folder) as made:
        root = Path(made)
        for side, keyed in enumerate((first, other)):
            _spread(keyed, root, side, parts)
        for part in range(parts):
            yield from _matched(_rows_in(root, 0, part), _rows_in(root, 1, part))


def _spread(keyed: Keyed, root: Path, side: int, parts: int) -> None:
    waiting: list[npt.NDArray[Any]] = []
    count = 0
    for names, numbers in keyed:
        for begin in range(0, len(numbers), _BUFFERED):
            rows = _hashed(names[begin : begin + _BUFFERED], numbers[begin : begin + _BUFFERED])
            waiting.append(rows)
            count += len(rows)
            if count >= _BUFFERED:
                _append(np.concatenate(waiting), root, side, parts)
                waiting, count = [], 0
    if waiting:
        _append(np.concatenate(waiting), root, side, parts)


def _hashed(names: pa.Array, numbers: Integers) -> npt.NDArray[Any]:
    digest = xxhash.xxh3_128_digest
    digests = b"".join([digest(name) for name in names.cast(pa.binary()).to_pylist()])
    words = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    rows = np.empty(len(numbers), dtype=_ROW)
    rows["high"], rows["low"], rows["number"] = words[:, 0], words[:, 1], numbers
    return rows


def _append(rows: npt.NDArray[Any], root: Path, side: int, parts: int) -> None:
    part = (rows["high"] >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)
    order = np.argsort(part, kind="stable")
    numbers, begins = np.unique(part[order], return_index=True)
    for number, here in zip(numbers.tolist(), np.split(rows[order], begins[1:]), strict=True):
        with (root / f"{side}-{number}").open("ab") as file:
            file.write(here.tobytes())


def _rows_in(root: Path, side: int, part: int) -> npt.NDArray[Any]:
    path = root / f"{side}-{part}"
    if not path.exists():
        return np.zeros(0, dtype=_ROW)
    rows = np.fromfile(path, dtype=_ROW)
    path.unlink()
    return rows


def _matched(first: npt.NDArray[Any], other: npt.NDArray[Any]) -> Iterator[tuple[Integers, Integers]]:
    rows = np.concatenate([first, other])
    side = np.arange(len(rows)) >= len(first)
    order = np.lexsort((side, rows["low"], rows["high"]))
    rows, side = rows[order], side[order]
    same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    twice = np.flatnonzero(same & (side[1:] == side[:-1]))
    if len(twice):
        at = int(twice[0])
        one, two = sorted((int(rows["number"][at]), int(rows["number"][at + 1])))
        raise DuplicateKeysError(int(side[at]), (one, two))
    pairs = np.flatnonzero(same)
    if len(pairs):
        yield rows["number"][pairs].astype(np.int64), rows["number"][pairs + 1].astype(np.int64)


Missing = Literal["error", "drop", "keep"]


class Join(NamedTuple):
    """Another index, whose samples come with those of the first.

    `table` has the partner in `other` of each sample of the first one's stored indexes.
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
    """Return the join, and the remaining samples of `first`; None for all.

    `IndexedSamples.join` has the arguments.
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

    `positions` are those of the samples in the stored indexes of the first.

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
