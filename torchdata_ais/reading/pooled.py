"""Samples of a stream put together by their lengths: out of a pool of those that came last, deterministically."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence, Sized
from numbers import Integral
from typing import Any

from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.samples import shown_fields

_NONE: Any = object()


def length_in(item: Any, length: str | Callable[[Any], int]) -> int:
    """Return the length of an item of a stream: what the function says, or how long its field is.

    A number that stands in the field is the length itself, of a text its bytes in UTF-8 count.

    Raises:
        MissingFieldError: It has no such field.
        UsageError: That is no length.

    Example:
        >>> [length_in({"txt": value}, "txt") for value in (b"abc", "caf\u00e9", 7, [1, 2])], length_in((1, 2), len)
        ([3, 5, 7, 2], 2)
    """
    value: Any
    if not isinstance(length, str):
        value, what = length(item), "the function of length="
    elif not isinstance(item, Mapping):
        raise UsageError.at(
            f"length={length!r} names a field, and the items are no samples, but of type {type(item).__name__}",
            todo="put .pack() and .buckets() behind .decode(), before .to_tuple(); or pass a function",
        )
    else:
        value, what = item.get(length, _NONE), f"the field {length!r}"
        if value is _NONE:
            raise MissingFieldError.at(
                f"the sample {item.get('__key__')!r} has no field {length!r}, only {shown_fields(item)}",
                todo="name a field that all samples have, or pass a function",
                field=length,
            )
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        if isinstance(value, Sized) and not _is_number(value):
            value = len(value)
    if isinstance(value, bool) or not _is_number(value) or int(value) < 0:
        raise UsageError.at(
            f"{what} is {value!r:.40}, which is no length", todo="let it be a whole number of at least 0"
        )
    return int(value)


def _is_number(value: Any) -> bool:
    """Return whether this is a whole number, or a tensor or an array of one that has no dimension."""
    return isinstance(value, Integral) or (getattr(value, "shape", None) == () and int(value) == value)


class StreamPool:
    """Items that wait for others: which of them go together follows from their lengths and their order alone.

    Attributes:
        is_full: Whether a group is due before another item comes.
    """

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}  # by the number of their arrival
        self._arrived = 0
        self.is_full = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def places(self) -> list[int]:
        """The places of the items in the data set, in the order in which they came; -1 where it is not known."""
        return [getattr(item, "place", -1) for item in self._items.values()]

    def put(self, item: Any, length: int) -> None:
        """Take an item in."""
        self._items[self._arrived] = item
        self._sort_in(self._arrived, length)
        self._arrived += 1

    def take(self) -> list[Any]:
        """Take the next group out; the pool is not empty."""
        return [self._items.pop(number) for number in self._chosen()]

    def _sort_in(self, number: int, length: int) -> None:
        raise NotImplementedError

    def _chosen(self) -> Sequence[int]:
        raise NotImplementedError


class PackPool(StreamPool):
    """Packs of a budget: the item that has waited longest, then always the longest that fits; of several the oldest.

    Memory: `size` items.

    Example:
        >>> pool = PackPool(10, 3)
        >>> for item, length in [("a", 4), ("b", 7), ("c", 6)]:
        ...     pool.put(item, length)
        >>> pool.is_full, pool.take(), len(pool)
        (True, ['a', 'c'], 1)
    """

    def __init__(self, budget: int, size: int) -> None:
        super().__init__()
        self._budget, self._size = budget, size
        self._by_length: list[tuple[int, int]] = []  # the oldest of a length last
        self._lengths: dict[int, int] = {}

    def _sort_in(self, number: int, length: int) -> None:
        insort(self._by_length, (length, -number))
        self._lengths[number] = length
        self.is_full = len(self._items) >= self._size

    def _chosen(self) -> Sequence[int]:
        room, chosen = self._budget, []
        oldest = next(iter(self._items))
        at = bisect_right(self._by_length, (self._lengths[oldest], -oldest)) - 1
        while at >= 0:
            length, negative = self._by_length.pop(at)
            room -= length
            chosen.append(-negative)
            del self._lengths[-negative]
            at = bisect_right(self._by_length, (room, 0)) - 1
        self.is_full = False
        return chosen


class BucketPool(StreamPool):
    """Batches of one bucket each: as many as stay within the budget when they are padded to its edge.

    Memory: ``budget // edge`` items of each bucket.

    Example:
        >>> pool = BucketPool([5, 10], 10)
        >>> for item, length in [("a", 4), ("b", 7)]:
        ...     pool.put(item, length)
        >>> pool.is_full, pool.take(), pool.is_full, pool.take()
        (True, ['b'], False, ['a'])
    """

    def __init__(self, edges: Sequence[int], budget: int) -> None:
        super().__init__()
        self._edges = list(edges)
        self._sizes = [max(1, budget // edge) for edge in edges]
        self._waiting: list[list[int]] = [[] for _ in edges]
        self._due: int | None = None

    def _sort_in(self, number: int, length: int) -> None:
        bucket = next(place for place, edge in enumerate(self._edges) if length <= edge)
        self._waiting[bucket].append(number)
        if len(self._waiting[bucket]) >= self._sizes[bucket]:
            self._due, self.is_full = bucket, True

    def _chosen(self) -> Sequence[int]:
        due, self._due, self.is_full = self._due, None, False
        if due is None:
            due = next(place for place, waiting in enumerate(self._waiting) if waiting)
        chosen, self._waiting[due] = self._waiting[due], []
        return chosen
