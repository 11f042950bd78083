"""Mixture by weights as a quota sequence.

Every prefix is within one sample of the weights.

Each draw of a source is a job of one position with a first and a last allowed position. Between them the exact share
passes from one whole number to the next. Taking the job that is due first always meets every last position, as
earliest due date first is optimal for jobs of one length. Such a sequence exists for any shares (Tijdeman, "The
chairman assignment problem", 1980). So after p positions a source with share w was drawn at least ``floor(w * p)``
and at most ``ceil(w * p)`` times.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.permutation import Integers

DENOMINATOR = 1 << 16


def round_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return `weights` as multiples of 1/65,536 with the sum 65,536.

    Rounds by largest remainder. Each weight gets at least 1/65,536, so no named source is left out.

    Args:
        weights: Positive finite numbers; only their proportions count.

    Raises:
        UsageError: A weight is not a positive finite number, there is none, or there are more than 65,536.

    Example:
        >>> round_weights([1, 1, 2])
        (16384, 16384, 32768)
        >>> sum(round_weights([0.1, 0.2, 0.7]))
        65536
    """
    if not 0 < len(weights) <= DENOMINATOR:
        raise UsageError(f"a mixture has 1 to {DENOMINATOR} weights, not {len(weights)}")
    for weight in weights:
        if not (weight > 0 and math.isfinite(weight)):
            raise UsageError(f"a weight is a positive finite number, not {weight!r}")
    largest = max(weights)
    total = math.fsum(weight / largest for weight in weights)
    exact = [weight / largest / total * DENOMINATOR for weight in weights]
    rounded = [max(1, math.floor(share)) for share in exact]
    missing = DENOMINATOR - sum(rounded)
    # Where weights below 1/65,536 were raised to it, the largest give: they deviate least by it.
    while missing < 0:
        rounded[max(range(len(rounded)), key=lambda number: (rounded[number], -number))] -= 1
        missing += 1
    by_remainder = sorted(
        range(len(exact)), key=lambda number: (math.floor(exact[number]) - exact[number], number)
    )
    for number in by_remainder[:missing]:
        rounded[number] += 1
    return tuple(rounded)


class Quota:
    """Endless sequence of sources by rounded weights, for each position.

    Args:
        weights: Whole numbers, as of `round_weights`; each source's share is its part of their sum.
        least: The minimum of each; with 0 there may be sources that are never drawn.

    Memory: 12 bytes a position of one period; a period is at most the sum of the weights.

    Example:
        >>> Quota([1, 3]).sources(range(8)).tolist()
        [1, 1, 0, 1, 1, 1, 0, 1]
    """

    def __init__(self, weights: Sequence[int], *, least: int = 1) -> None:
        if not any(weights) or min(weights) < least:
            raise UsageError(f"rounded weights are whole numbers of at least 1, not {list(weights)}")
        self.weights = tuple(weights)
        common = math.gcd(*self.weights)
        self._shares = np.array([weight // common for weight in self.weights], dtype=np.int64)
        self._period = int(self._shares.sum())
        self._source, self._before, self._where, self._first = _period(tuple(self._shares.tolist()))

    def sources(self, positions: npt.ArrayLike) -> Integers:
        """Return the number of the source at each of `positions`."""
        return self._source[np.asarray(positions, dtype=np.int64) % self._period]

    def draws(self, positions: npt.ArrayLike) -> Integers:
        """Return for each of `positions` how often its source was drawn before."""
        wanted = np.asarray(positions, dtype=np.int64)
        place = wanted % self._period
        result: Integers = wanted // self._period * self._shares[self._source[place]] + self._before[place]
        return result

    def counts(self, position: int) -> Integers:
        """Return how often each source is drawn at positions below `position`."""
        whole, rest = divmod(position, self._period)
        result: Integers = whole * self._shares + np.bincount(
            self._source[:rest], minlength=len(self._shares)
        ).astype(np.int64)
        return result

    def position_of(self, source: int, draw: int) -> int | None:
        """Return the position of draw number `draw` of `source`; None without any."""
        share = int(self._shares[source])
        if not share:
            return None
        whole, rest = divmod(draw, share)
        return whole * self._period + int(self._where[int(self._first[source]) + rest])


@lru_cache(maxsize=8)
def _period(shares: tuple[int, ...]) -> tuple[Integers, Integers, Integers, Integers]:
    """Return one period, by positions and by sources.

    By position: the source, and its draws before. By source: its positions, and the index of its first one.
    """
    period = sum(shares)
    released: list[list[tuple[int, int, int]]] = [[] for _ in range(period)]
    for source, share in enumerate(shares):
        for draw in range(share):
            released[draw * period // share].append((-(-(draw + 1) * period // share), source, draw))
    waiting: list[tuple[int, int, int]] = []
    source_at = np.empty(period, dtype=np.int64)
    before = np.empty(period, dtype=np.int64)
    for position, jobs in enumerate(released):
        for job in jobs:
            heapq.heappush(waiting, job)
        _, source_at[position], before[position] = heapq.heappop(waiting)
    where: Integers = np.argsort(source_at, kind="stable").astype(np.int64)
    first: Integers = np.concatenate([[0], np.cumsum(shares)[:-1]]).astype(np.int64)
    for table in (source_at, before, where, first):
        table.setflags(write=False)
    return source_at, before, where, first
