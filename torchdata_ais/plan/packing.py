"""Grouping of samples by length before reading: packs and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchdata_ais.plan.permutation import Integers, Permutation, derived_key

_WINDOW = 1 << 16  # samples that are packed together
_EMPTY = 0.0003  # of the budget: a pack with more free space is packed again with the next window
_MOST_UNITS = 1 << 15  # a longer budget is counted in larger units


@dataclass(frozen=True)
class Groups:
    """Groups of samples: numbers, one group after the other, and their ends."""

    order: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def most(self) -> int:
        """Size of the largest group."""
        return int(np.diff(self.ends, prepend=0).max(initial=0))

    def sizes(self, numbers: npt.ArrayLike) -> Integers:
        """Return how many samples some groups have."""
        wanted: Integers = np.asarray(numbers, dtype=np.int64)
        begins = np.where(wanted > 0, self.ends[wanted - 1], 0)
        result: Integers = self.ends[wanted] - begins
        return result

    def samples(self, number: int) -> Integers:
        """Return the numbers of the samples of a group."""
        return self.order[int(self.ends[number - 1]) if number else 0 : int(self.ends[number])]


def _mixed_order(count: int, seed: int, *, shuffle: bool) -> Integers:
    everything = np.arange(count, dtype=np.int64)
    return Permutation(count, derived_key(seed, count)).take(everything) if shuffle and count else everything


def packed(lengths: Integers, budget: int, *, seed: int = 0, shuffle: bool = True) -> Groups:
    """Return packs of samples whose lengths sum to at most `budget`.

    Longer samples are left out. Each pack takes the longest that fits, until one or two fill it exactly. A window has
    65,536 samples of an order by `seed` (of the stored one without `shuffle`). Samples that do not fill a pack go to
    the next window. The packs are the same for any number of ranks.

    Memory: 16 bytes a sample.

    Example:
        >>> groups = packed(np.array([5, 3, 9, 2, 7]), 10)
        >>> sorted(sorted(groups.samples(number).tolist()) for number in range(len(groups)))
        [[0, 3], [1, 4], [2]]
    """
    order = _mixed_order(len(lengths), seed, shuffle=shuffle)
    order = order[lengths[order] <= budget]
    done: list[list[int]] = []
    left: list[int] = []
    unit = -(-budget // _MOST_UNITS)
    units = np.maximum(-(-lengths // unit), 1)  # rounded up: a pack never has more
    for begin in range(0, len(order), _WINDOW):
        numbers = np.concatenate([np.array(left, dtype=np.int64), order[begin : begin + _WINDOW]])
        is_last = begin + _WINDOW >= len(order)
        left = []
        for pack, free in _filled(numbers, units[numbers], budget // unit):
            if is_last or free <= _EMPTY * budget // unit or len(left) >= _WINDOW // 2:
                done.append(pack)
            else:
                left.extend(pack)
    ends = np.cumsum([len(pack) for pack in done], dtype=np.int64)
    flat = (number for pack in done for number in pack)
    return Groups(np.fromiter(flat, dtype=np.int64, count=int(ends[-1]) if len(ends) else 0), ends)


def _filled(numbers: Integers, lengths: Integers, budget: int) -> list[tuple[list[int], int]]:
    """Return packs and the unused budget of each, by their first samples.

    Each takes the longest that fits, until one sample or two fill it exactly. One integer with a bit for each length
    has the present lengths. Its mirror image gives two lengths that sum to the rest.
    """
    by_length: dict[int, list[int]] = {}
    for place in range(len(numbers) - 1, -1, -1):
        by_length.setdefault(int(lengths[place]), []).append(place)
    there = mirrored = 0
    for length in by_length:
        there |= 1 << length
        mirrored |= 1 << (budget - length)
    packs: list[tuple[list[int], int]] = []
    while there:
        pack: list[int] = []
        room = budget
        while fitting := there & ((2 << room) - 1):
            pairs = fitting & (mirrored >> (budget - room))
            if room % 2 == 0 and pairs >> (room // 2) & 1 and len(by_length[room // 2]) < 2:
                pairs ^= 1 << (room // 2)
            longest = (pairs or fitting).bit_length() - 1
            chosen = (longest, room - longest) if pairs and longest != room else (longest,)
            for length in chosen:
                same = by_length[length]
                pack.append(same.pop())
                if not same:
                    there ^= 1 << length
                    mirrored ^= 1 << (budget - length)
            room -= sum(chosen)
        packs.append((sorted(pack), room))
    packs.sort()
    return [(numbers[pack].tolist(), room) for pack, room in packs]


def bucketed(
    lengths: Integers, edges: Sequence[int], budget: int, *, seed: int = 0, shuffle: bool = True
) -> Groups:
    """Return batches of samples of one bucket each.

    Samples longer than the last edge are left out. A batch of the bucket up to `edge` has ``budget // edge`` samples,
    so that it stays within the budget when all of them are padded to the edge. The last of each bucket may be smaller.
    Without `shuffle` only adjacent samples of a bucket share a batch.

    Memory: 24 bytes a sample.

    Example:
        >>> groups = bucketed(np.array([5, 3, 9, 2, 7]), [5, 10], 20, shuffle=False)
        >>> [groups.samples(number).tolist() for number in range(len(groups))]
        [[0, 1, 3], [2, 4]]
    """
    order = _mixed_order(len(lengths), seed, shuffle=shuffle)
    bucket = np.searchsorted(np.asarray(edges), lengths[order], side="left")
    # Index of the first sample of each in the order, and its samples.
    batches: list[tuple[int, Integers]] = []
    for number, edge in enumerate(edges):
        here = np.flatnonzero(bucket == number)
        size = max(1, budget // edge)
        batches += [
            (int(here[begin]), order[here[begin : begin + size]]) for begin in range(0, len(here), size)
        ]
    batches.sort(key=lambda batch: batch[0])
    ends = np.cumsum([len(samples) for _, samples in batches], dtype=np.int64)
    together = [samples for _, samples in batches]
    return Groups(np.concatenate(together) if together else np.zeros(0, dtype=np.int64), ends)
