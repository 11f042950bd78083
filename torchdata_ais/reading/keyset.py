"""A set of keys that costs 11 to 22 bytes a key, for shards of millions of samples."""

from __future__ import annotations

from array import array

_FEW = 8192  # keys kept as they are,
_FEW_CHARACTERS = 256 << 10  # and characters in them: together at most 2 MB, whatever the keys are
_PARTS = 64
_SLOTS = 16  # of a part at first; a power of two


class KeySet:
    """Remembers the first 8192 keys as they are, and those of a larger shard by their 64-bit hash in flat tables.

    Long keys, of more than 256 Ki characters together, go into the tables earlier.

    A Python set is eight times as fast, but a million keys take over 100 MB in it, in flat tables 22 MB. They are cut
    into parts that grow one by one, so that growing never needs the memory of two whole tables, nor the time to fill
    one. Two different keys are taken for the same with probability n²/2⁶⁵: one in 30 million for a shard of a
    million samples.

    Example:
        >>> keys = KeySet()
        >>> keys.add("a"), keys.add("b"), keys.add("a")
        (True, True, False)
    """

    def __init__(self) -> None:
        self._few: set[str] = set()
        self._characters = 0
        self._counts = [0] * _PARTS
        self._tables: list[array[int]] = []  # empty as long as there are few

    def __len__(self) -> int:
        return len(self._few) + sum(self._counts)

    def add(self, key: str) -> bool:
        """Add `key`; return False if it was there before."""
        if self._tables:
            return self._add_hash(key)
        few = self._few
        if key in few:
            return False
        few.add(key)
        self._characters += len(key)
        if len(few) > _FEW or self._characters > _FEW_CHARACTERS:
            self._tables = [array("Q", bytes(8 * _SLOTS)) for _ in range(_PARTS)]
            self._few = set()
            for known in few:
                self._add_hash(known)
        return True

    def _add_hash(self, key: str) -> bool:
        value = hash(key) & 0xFFFFFFFFFFFFFFFF or 1  # 0 is an empty slot
        part = value % _PARTS
        if not _put(self._tables[part], value):
            return False
        self._counts[part] += 1
        if 4 * self._counts[part] > 3 * len(self._tables[part]):
            self._tables[part] = _doubled(self._tables[part])
        return True


def _put(table: array[int], value: int) -> bool:
    mask = len(table) - 1
    slot = value // _PARTS & mask
    while found := table[slot]:
        if found == value:
            return False
        slot = (slot + 1) & mask
    table[slot] = value
    return True


def _doubled(table: array[int]) -> array[int]:
    larger = array("Q", bytes(16 * len(table)))
    for value in table:
        if value:
            _put(larger, value)
    return larger
