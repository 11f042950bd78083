"""A set of keys that costs 16 to 32 bytes a key, for shards of millions of samples."""

from __future__ import annotations

from array import array

__all__ = ["KeySet"]


class KeySet:
    """Remembers keys by their 64-bit hash in a flat table.

    A Python set of a million keys takes over 100 MB, this at most 32 MB. Two different keys are taken for the
    same with probability n²/2⁶⁵: one in 30 million for a shard of a million samples.

    Example:
        >>> keys = KeySet()
        >>> keys.add("a"), keys.add("b"), keys.add("a")
        (True, True, False)
    """

    def __init__(self) -> None:
        self._count = 0
        self._table = array("Q", bytes(8 * 1024))

    def __len__(self) -> int:
        return self._count

    def add(self, key: str) -> bool:
        """Add `key`; return False if it was there before."""
        if not self._put(hash(key) & 0xFFFFFFFFFFFFFFFF or 1):
            return False
        self._count += 1
        if 2 * self._count > len(self._table):
            old = self._table
            self._table = array("Q", bytes(16 * len(old)))
            for value in old:
                if value:
                    self._put(value)
        return True

    def _put(self, value: int) -> bool:
        table = self._table
        mask = len(table) - 1
        slot = value & mask
        while table[slot]:
            if table[slot] == value:
                return False
            slot = (slot + 1) & mask
        table[slot] = value
        return True
