"""Batches by length."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Integral
from types import FunctionType
from typing import Any

import numpy as np
import xxhash

from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.index import IndexedSamples, lengths_of
from torchdata_ais.plan.packing import Groups, bucketed, packed
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.samples import shown_fields

_NONE: object = object()


def length_in(item: object, length: str | Callable[[Any], int]) -> int:
    """Return the length of an item of a stream.

    A function returns it, or it is that of a field. A number in the field is the length itself. The length of a text
    is its bytes in UTF-8.

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
    """Return whether this is an integer, or a tensor or array with only one."""
    return isinstance(value, Integral) or (getattr(value, "shape", None) == () and int(value) == value)


class StreamPool:
    """Items that wait for others to form groups, by lengths and order alone.

    If `is_full`, a group is due before another item comes.
    """

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}  # by the number of their arrival
        self._arrived = 0
        self.is_full = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def places(self) -> list[int]:
        """Places of the items in the data set, as they arrived; -1 if unknown."""
        return [getattr(item, "place", -1) for item in self._items.values()]

    def put(self, item: object, length: int) -> None:
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
    """Packs of a budget: the oldest item, then the longest (oldest) that fits.

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
    """Batches of one bucket, within the budget when padded to its edge.

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


class Grouping:
    """Packs of a budget, or batches of buckets.

    `words` say how it is made: a state fits only the same.

    Args:
        length: The name of a column of the index, or of a field, whose bytes count; or the length of each sample, by
            its number; or, for a mixture, a list of those, one an index.
        budget: The largest size of a pack, or of a batch with its padding.
        edges: The greatest length of each bucket; None for packs.
        seed: Decides the grouping.
        too_long: The treatment of a sample that fits nowhere: ``"error"`` or ``"drop"``.
    """

    def __init__(
        self,
        length: Any,
        budget: int,
        edges: Sequence[int] | None = None,
        *,
        seed: int = 0,
        too_long: str = "error",
    ) -> None:
        if too_long not in ("error", "drop"):
            raise UsageError.at(f"too_long={too_long!r}", todo='use "error" or "drop"')
        if edges is not None and not _ascend(edges):
            shown = list(edges) if isinstance(edges, Iterable) else edges
            raise UsageError.at(f"edges={shown!r}", todo="pass lengths above 0 that ascend")
        if edges is not None and edges[-1] > budget:
            raise UsageError.at(
                f"the budget of {budget} is below the last edge of {edges[-1]}",
                todo="raise the budget: a batch holds one sample at least",
            )
        self._drawn_up = f"{'' if edges is None else f'edges={list(edges)}, '}budget={budget}"
        self._length, self._budget, self._edges = length, budget, None if edges is None else list(edges)
        self._seed, self._too_long = seed, too_long
        self._limit = budget if edges is None else edges[-1]
        kind = "pack" if edges is None else "buckets"
        self.words = f"{kind}({self._drawn_up}, length={_named(length)}, seed={seed}, too_long={too_long!r})"

    def groups(
        self, source: int, index: IndexedSamples, numbers: Integers | None, *, shuffle: bool
    ) -> Groups:
        """Return the groups of an index, or of its samples in `numbers`.

        Raises:
            UsageError: The lengths are not of these samples; a sample is too long.
        """
        lengths = self._lengths(source, index)
        if numbers is not None:
            lengths = lengths[numbers]
        longest = int(np.argmax(lengths)) if len(lengths) else 0
        if self._too_long == "error" and len(lengths) and int(lengths[longest]) > self._limit:
            reference = index.take([longest if numbers is None else int(numbers[longest])])[0]
            name = reference.shard.name
            what = f"the sample {reference.key!r} of {name}"
            raise self._longer(what, int(lengths[longest]), url=name, key=reference.key)
        if self._edges is None:
            found = packed(lengths, self._budget, seed=self._seed, shuffle=shuffle)
        else:
            found = bucketed(lengths, self._edges, self._budget, seed=self._seed, shuffle=shuffle)
        if not len(found):
            raise UsageError.at(
                f"no sample of {index!r} has a length of {self._limit} or less", todo="raise the budget"
            )
        return found

    @property
    def stream_words(self) -> str:
        """Describe the grouping of a stream, in words."""
        return f"{self._drawn_up}, length={_named(self._length)}, too_long={self._too_long!r}"

    @property
    def most_waiting(self) -> int:
        """Most samples of a stream that may wait in buckets."""
        return sum(max(1, self._budget // edge) for edge in self._edges or ())

    def pool(self, size: int) -> StreamPool:
        """Return the pool for the samples of a stream, of so many for packs."""
        if not isinstance(self._length, str) and not callable(self._length):
            raise UsageError.at(
                "length= is given for the samples of an index, and a stream knows no numbers of samples",
                todo="name a field or pass a function; or index the shards, and read them by .read_samples()",
            )
        return PackPool(self._budget, size) if self._edges is None else BucketPool(self._edges, self._budget)

    def put(self, pool: StreamPool, item: object) -> None:
        """Put a sample of a stream into the pool, or leave it out."""
        length = length_in(item, self._length)
        if length <= self._limit:
            pool.put(item, length)
        elif self._too_long == "error":
            key = item.get("__key__") if isinstance(item, dict) else None
            raise self._longer("a sample" if key is None else f"the sample {key!r}", length, key=key)

    def _longer(self, what: str, length: int, **place: object) -> UsageError:
        return UsageError.at(
            f"{what} has the length {length}, and {self._limit} is the most",
            todo='leave such samples out (too_long="drop"), or raise the budget or the last edge',
            **place,
        )

    def _lengths(self, source: int, index: IndexedSamples) -> Integers:
        if isinstance(self._length, str):
            return lengths_of(index, self._length)
        if callable(self._length):
            raise UsageError.at(
                "length= is a function, and below .read_samples() lengths are known before a sample is read",
                todo="store them: index.with_column(name, values); or read a stream, .load_tar().group_samples()",
            )
        given = self._length
        if isinstance(given, (list, tuple)) and len(given) and np.ndim(given[0]):
            if source >= len(given):
                raise UsageError.at(f"lengths of {len(given)} indexes for more", todo="pass those of each")
            given = given[source]
        elif source:
            raise UsageError.at(
                "one array of lengths for several indexes", todo="pass a list with one of each"
            )
        lengths = np.asarray(given)
        if lengths.shape != (len(index),) or lengths.dtype.kind not in "iu":
            raise UsageError.at(
                f"lengths of shape {lengths.shape} and type {lengths.dtype} for {len(index)} samples",
                todo="pass whole numbers, one a sample of the index",
            )
        if lengths.size and int(lengths.min()) < 0:
            raise UsageError.at("a length below 0", todo="pass lengths of at least 0")
        result: Integers = lengths.astype(np.int64)
        return result


def _ascend(edges: object) -> bool:
    """Return whether these are edges of buckets."""
    found = list(edges) if isinstance(edges, Iterable) else []
    whole = bool(found) and all(isinstance(edge, Integral) for edge in found)
    return whole and found[0] >= 1 and found == sorted(set(found))


def _named(length: object) -> str:
    """Return the name of a field or a function, or a digest of lengths."""
    if isinstance(length, str):
        return repr(length)
    if callable(length):
        return length.__name__ if isinstance(length, FunctionType) else type(length).__name__
    several = length if isinstance(length, (list, tuple)) and len(length) and np.ndim(length[0]) else [length]
    return "+".join(xxhash.xxh64_hexdigest(np.ascontiguousarray(one).tobytes()) for one in several)


def digest_of(groups: Groups) -> str:
    """Return the identity of groups."""
    return xxhash.xxh64_hexdigest(groups.order.tobytes() + groups.ends.tobytes())
