"""Changes of a run by step, as a plan takes them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchdata_ais.plan.mixture import DENOMINATOR, round_weights
from torchdata_ais.plan.permutation import Integers

Skip = Literal["drop", "defer"]


@dataclass(frozen=True)
class Changes:
    """Changes of a run by step; see `torchdata_ais.Schedule`.

    Attributes:
        batches: ``(from_step, samples)``, the global batch, ascending.
        stages: ``(from_step, weights)``: rounded weights, ascending; the sources have others before the first.
        skips: ``(begin, end, how)``: the steps from `begin` to before `end` do not come; ascending.
        most: How often each sample of a source comes at most, of each source; None: without limit. Empty: of none.
    """

    batches: tuple[tuple[int, int], ...] = ()
    stages: tuple[tuple[int, Sequence[int] | npt.NDArray[np.int32]], ...] = ()
    skips: tuple[tuple[int, int, Skip], ...] = ()
    most: tuple[int | None, ...] = ()

    def batch_at(self, step: int, otherwise: int) -> int:
        """Return the global batch of a step, or `otherwise` before any entry."""
        number = bisect_right(self.batches, (step, 1 << 62))
        return self.batches[number - 1][1] if number else otherwise

    def skip_at(self, step: int) -> Skip | None:
        """Return how a step is skipped, or None."""
        number = bisect_right([begin for begin, _, _ in self.skips], step)
        if number and step < self.skips[number - 1][1]:
            return self.skips[number - 1][2]
        return None

    def next_given(self, step: int) -> int:
        """Return the first step from `step` on that is not skipped."""
        for begin, end, _ in self.skips:
            if begin <= step < end:
                step = end
        return step

    def skipped(self, begin: int, end: int) -> int:
        """Return how many of the steps from `begin` to before `end` are skipped."""
        return sum(max(0, min(end, last) - max(begin, first)) for first, last, _ in self.skips)

    def given_steps(self, begin: int, end: int) -> Sequence[int]:
        """Return the steps from `begin` to before `end` that are not skipped."""
        if not self.skipped(begin, end):
            return range(begin, end)
        steps = np.arange(begin, end)
        for first, last, _ in self.skips:
            steps = steps[(steps < first) | (steps >= last)]
        found: list[int] = steps.tolist()
        return found

    def breaks(self) -> list[int]:
        """Return the steps at which the global batch or skipping changes."""
        found = {step for step, _ in self.batches}
        for begin, end, _ in self.skips:
            found |= {begin, end}
        return sorted(found)


NO_CHANGES = Changes()


def rounded(weights: Sequence[float]) -> tuple[int, ...]:
    """Return `weights` as multiples of 1/65,536 that sum to 1; 0 stays 0."""
    named = [number for number, weight in enumerate(weights) if weight]
    values = [0] * len(weights)
    for number, value in zip(named, round_weights([weights[number] for number in named]), strict=True):
        values[number] = value
    return tuple(values)


def ramp(first: npt.ArrayLike, last: npt.ArrayLike, count: int) -> npt.NDArray[np.int32]:
    """Return the weights of the pieces of a linear ramp, a row each.

    Each piece has the weights of its middle, as multiples of 1/65,536, by largest remainder.

    Example:
        >>> ramp([65536, 0], [0, 65536], 2).tolist()
        [[49152, 16384], [16384, 49152]]
    """
    part = np.arange(1, 2 * count, 2, dtype=np.int64)[:, np.newaxis]
    exact = np.asarray(first, dtype=np.int64) * (2 * count - part) + np.asarray(last, dtype=np.int64) * part
    found, rest = np.divmod(exact, 2 * count)
    by_rest = np.argsort(-rest, axis=1, kind="stable")
    for row, order, missing in zip(found, by_rest, DENOMINATOR - found.sum(axis=1), strict=True):
        row[order[:missing]] += 1
    return found.astype(np.int32)


def apportion(wanted: Integers, count: int) -> Integers:
    """Return whole numbers near `wanted` that sum to `count`, none below 0.

    By largest remainder. `wanted` are multiples of 1/65,536 that sum to `count`; they may be negative.

    Example:
        >>> apportion(np.array([98304, 98304, -65536 // 2]), 3).tolist()
        [2, 1, 0]
    """
    found: Integers = np.maximum(wanted >> 16, 0)
    missing = count - int(found.sum())
    rest = wanted - (found << 16)
    if missing > 0:
        found[np.argsort(-rest, kind="stable")[:missing]] += 1
    while missing < 0:
        there = np.flatnonzero(found)
        found[there[np.argmin(rest[there])]] -= 1
        rest = wanted - (found << 16)
        missing += 1
    return found
