"""Keyed hashes and permutations."""

from __future__ import annotations

import math
import struct
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

from torchdata_ais.errors import UsageError

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def derived_key(*parts: int) -> int:
    """Return XXH64 of `parts`, as 128-bit values in their order.

    Example:
        >>> derived_key(0, 1) != derived_key(1, 0)
        True
    """
    low = [part & 0xFFFFFFFFFFFFFFFF for part in parts]
    high = [part >> 64 & 0xFFFFFFFFFFFFFFFF for part in parts]
    return xxhash.xxh64_intdigest(struct.pack(f"<{2 * len(parts)}Q", *low, *high))


def mixed(values: Words, key: int) -> Words:
    """Return 64 well mixed bits for each of `values` under `key`.

    The multiplications and shifts are those of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    words: Words = values * _ODD
    words += np.uint64(key)
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def scaled(words: Words, limit: int) -> Words:
    """Return each word, by its upper half, as a number below `limit` <= 2**32."""
    result: Words = words >> np.uint64(32)
    result *= np.uint64(limit)
    result >>= np.uint64(32)
    return result


_TABLE = 1 << 16  # up to here the order is sorted once and kept: 512 KiB
_ROUNDS = 6
_LARGEST = 1 << 62


class Permutation:
    """A permutation of ``range(n)`` that `key` alone decides.

    Up to 65,536 values it is a table, sorted by a keyed hash. Above, it is a Feistel network over a rectangle of ``a
    * b`` cells with ``a * b - n < a``. So less than one value in a thousand has to walk on (cycle walking: Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).

    Args:
        n: How many values, 0 to 2**62.
        key: Any integer; different keys give unrelated orders.

    Memory: 512 KiB for a table, else nothing that grows with `n`; a call holds about 60 bytes a position.

    Example:
        >>> order = Permutation(10, key=7)
        >>> sorted(order.take(range(10)).tolist()) == list(range(10))
        True
        >>> Permutation(10**9, key=7).take([0, 999_999_999]).tolist() == Permutation(10**9, key=7).take(
        ...     [0, 999_999_999]).tolist()
        True
    """

    def __init__(self, n: int, key: int) -> None:
        if not 0 <= n <= _LARGEST:
            raise UsageError(f"a permutation has 0 to 2**62 values, not {n}")
        self._n = n
        self._key = key
        self._rows = math.isqrt(max(n, 1) - 1) + 1
        self._columns = -(-n // self._rows)
        self._keys = [derived_key(key, n, number) for number in range(_ROUNDS)]

    def take(self, positions: npt.ArrayLike) -> Integers:
        """Return the values at `positions`, as int64 in their order.

        Args:
            positions: Integers, each 0 to n - 1.

        Raises:
            IndexError: A position is not in the permutation.
        """
        wanted = np.asarray(positions, dtype=np.int64)
        if wanted.size and not (int(wanted.min()) >= 0 and int(wanted.max()) < self._n):
            raise IndexError(
                f"positions {wanted.min()} to {wanted.max()} of a permutation of {self._n} values"
            )
        if self._n <= _TABLE:
            return _sorted_table(self._n, self._key)[wanted]
        words = self._once(wanted.astype(np.uint64))
        while (outside := words >= np.uint64(self._n)).any():
            words[outside] = self._once(words[outside])
        return words.astype(np.int64)

    def _once(self, words: Words) -> Words:
        """Move each word to a different cell of the rectangle."""
        rows, columns = np.uint64(self._rows), np.uint64(self._columns)
        row: Words = words // columns
        column: Words = words - row * columns
        for number, key in enumerate(self._keys):
            if number % 2:
                column += scaled(mixed(row, key), self._columns)
                column -= columns * (column >= columns)
            else:
                row += scaled(mixed(column, key), self._rows)
                row -= rows * (row >= rows)
        return row * columns + column


@lru_cache(maxsize=64)
def _sorted_table(n: int, key: int) -> Integers:
    words = mixed(np.arange(n, dtype=np.uint64), derived_key(key, n))
    table: Integers = np.argsort(words, kind="stable").astype(np.int64)
    table.setflags(write=False)
    return table
