"""Seeded 64-bit values: the only source of chance in a plan, the same on every machine and version of numpy."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import xxhash

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def derived_key(*parts: int) -> int:
    """Return 64 bits that depend on each of `parts` and on their order (XXH64 of their 128-bit values).

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
    """Return each of `words` as a number below `limit` (at most 2**32), by its upper 32 bits."""
    result: Words = words >> np.uint64(32)
    result *= np.uint64(limit)
    result >>= np.uint64(32)
    return result
