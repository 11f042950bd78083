"""Steps: positions of each rank and worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.permutation import Integers

Tail = Literal["short", "drop", "pad"]


@dataclass(frozen=True)
class Slots:
    """The global batches of an epoch, cut into the slices of ranks.

    Global batch ``k`` holds the positions ``k * global_batch`` to ``(k + 1) * global_batch``; the slices of the
    ranks follow each other in it and differ by at most one position. Batch ``k`` of a rank is made by its worker
    ``k % workers``. So a global batch is the same set for any number of ranks and workers.

    Args:
        length: Positions in an epoch, at least 1.
        global_batch: Positions in a global batch, at least `ranks`.
        ranks: How many ranks share each global batch.
        tail: The use of the remainder: ``"short"`` deals it evenly, and a rank that would get nothing repeats one of
            its positions; ``"drop"`` leaves it out; ``"pad"`` fills it from the epoch's start.
        before: Positions of the epoch before these, which ``"pad"`` takes first; the epoch starts at ``-before``.
        shares: Of each rank a whole number, its share of a global batch; empty for equal ones.

    Example:
        >>> slots = Slots(length=10, global_batch=4, ranks=2)
        >>> [slots.positions(step, rank=0).tolist() for step in range(len(slots))]
        [[0, 1], [4, 5], [8]]
    """

    length: int
    global_batch: int
    ranks: int = 1
    tail: Tail = "short"
    before: int = 0
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UsageError(f"an epoch has at least one position, not {self.length}")
        if not 1 <= self.ranks <= self.global_batch:
            raise UsageError(
                f"a global batch of {self.global_batch} for {self.ranks} ranks leaves a rank without any"
            )
        if self.shares and not all(
            self._cut(self.global_batch, rank) < self._cut(self.global_batch, rank + 1)
            for rank in range(self.ranks)
        ):
            raise UsageError.at(
                f"a global batch of {self.global_batch}, shared as {list(self.shares)}, leaves a rank without any",
                todo="use larger batches, or shares that differ less",
            )
        if self.tail not in get_args(Tail):
            raise UsageError(f"tail is one of {', '.join(get_args(Tail))}, not {self.tail!r}")
        if self.tail == "drop" and self.length < self.global_batch:
            raise too_large(self.global_batch, self.length)

    def __len__(self) -> int:
        """Return the number of steps in an epoch, the same for every rank."""
        whole, rest = divmod(self.length, self.global_batch)
        return whole + (rest > 0 and self.tail != "drop")

    def positions(self, step: int, rank: int = 0) -> Integers:
        """Return the positions of `rank` in `step` of the epoch, in their order."""
        if not (0 <= step < len(self) and 0 <= rank < self.ranks):
            raise IndexError(f"step {step} of {len(self)}, rank {rank} of {self.ranks}")
        begin, end = self.slice_of(step, rank)
        result: Integers = np.arange(begin, end, dtype=np.int64)
        if end > self.length:
            more = result[max(self.length - begin, 0) :]
            more -= self.length
            more %= self.before + self.length
            more -= self.before
        return result

    def size(self, step: int, rank: int = 0) -> int:
        """Return how many positions `rank` gets in `step`."""
        begin, end = self.slice_of(step, rank)
        return end - begin

    def slice_of(self, step: int, rank: int = 0) -> tuple[int, int]:
        """Return begin and end of a slice; positions past `length` are filled up."""
        first = step * self.global_batch
        size = self.global_batch if self.tail == "pad" else min(self.global_batch, self.length - first)
        begin, end = first + self._cut(size, rank), first + self._cut(size, rank + 1)
        if begin == end:  # a remainder of fewer positions than ranks
            begin = min(begin, first + size - 1)
            end = begin + 1
        return begin, end

    def _cut(self, size: int, rank: int) -> int:
        """Return how many of `size` positions are before those of `rank`."""
        if not self.shares:
            return rank * size // self.ranks
        return sum(self.shares[:rank]) * size // sum(self.shares)

    def part(self, begin: int, end: int, rank: int) -> Integers:
        """Return the positions that `rank` gets of those from `begin` to `end`."""
        first, last = (begin + self._cut(end - begin, one) for one in (rank, rank + 1))
        result: Integers = np.arange(first, last, dtype=np.int64)
        return result

    def repeated(self, rank: int | None = None) -> int:
        """Return how many positions an epoch repeats, for `rank` or for all."""
        rest = self.length % self.global_batch
        if not rest or self.tail == "drop":
            return 0
        if rank is None:
            return sum(self.repeated(one) for one in range(self.ranks))
        size = rest if self.tail == "short" else self.global_batch
        begin, end = self._cut(size, rank), self._cut(size, rank + 1)
        return int(begin == end) if self.tail == "short" else max(0, end - max(begin, rest))

    def worker(self, step: int, workers: int) -> int:
        """Return the worker that makes a rank's batch of `step`; 0 without any."""
        return step % max(1, workers)


def too_large(global_batch: int, length: int) -> UsageError:
    """Return the error for a global batch that a whole epoch does not fill."""
    return UsageError.at(
        f"a global batch of {global_batch} samples is larger than the epoch, which has {length}",
        todo="use smaller batches or fewer ranks (a global batch is .batched(n) times the ranks, or global_batch=); or"
        " say how many steps an epoch has, and the data begin again on the way: epoch_steps=",
    )
