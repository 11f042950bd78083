"""Which sample of another index belongs to each sample of one: found by sorted keys on disk, kept as a table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from torchdata_ais.plan.hashing import Integers

_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<i8")])  # XXH3 of the key, and whose it is
_PART_BYTES = 16 << 20  # of rows that are sorted at a time
_BUFFERED = 1 << 18  # rows that are written at a time
_MOST_PARTS = 1 << 16


class DuplicateKeysError(Exception):
    """Two samples of one side have the same key.

    Attributes:
        side: 0 for the first, 1 for the other.
        numbers: The numbers of the two.
    """

    def __init__(self, side: int, numbers: tuple[int, int]) -> None:
        super().__init__(side, numbers)
        self.side, self.numbers = side, numbers


class PartnerTable:
    """The number of the partner of each sample; -1 where there is none.

    Args:
        values: The numbers, kept in memory; or
        path: a file of them, 8 bytes each, which is mapped into the memory of each process that asks.

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
        """Yield which samples have no partner, some at a time: their places among `positions`, or among all."""
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
    """Yield the numbers of samples with the same key, those of `first` and those of `other`.

    Rows of 24 bytes a key (its XXH3 of 128 bits, and the number) are spread over files by the beginning of the hash,
    and each file is sorted by itself. Whoever reads a partner compares the keys themselves.

    Args:
        first: Keys and numbers of one side.
        other: Those of the other side.
        keys: About how many there are of both sides together.
        folder: Where the files are written; default the system's folder for temporary files.

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
