"""The order of one source or of a mixture: which sample stands at a position, over all epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.hashing import Integers, derived_key
from torchdata_ais.plan.mixture import Quota
from torchdata_ais.plan.permutation import Permutation

Stop = Literal["first", "all", "never"]


@dataclass(frozen=True)
class Draws:
    """What stands at some positions, as three arrays of int64 of the same length.

    Attributes:
        source: Number of the source in the mixture; 0 without one.
        index: Number of the sample in its source's stored order.
        draw: How many samples of this source stand at positions before it.
    """

    source: Integers
    index: Integers
    draw: Integers


class Order:
    """The samples of one source, epoch after epoch: each once in an epoch.

    Args:
        samples: How many samples the source has, at least 1.
        seed: Any integer.
        shuffle: True for another order in each epoch, False for the stored one.
        run: How many samples that are neighbours in the stored order stay together. 1 shuffles samples.
            The one shorter run at the end of the stored order comes last in each epoch.
        source: Number of the source, which takes part in the seed.

    Example:
        >>> order = Order(samples=6, seed=0, run=2)
        >>> first, second = order.take(range(6)).tolist(), order.take(range(6, 12)).tolist()
        >>> sorted(first) == sorted(second) == list(range(6))
        True
        >>> all(b == a + 1 for a, b in zip(first[::2], first[1::2]))
        True
    """

    def __init__(
        self, samples: int, seed: int = 0, *, shuffle: bool = True, run: int = 1, source: int = 0
    ) -> None:
        if samples < 1:
            raise UsageError(f"an order has at least one sample, not {samples}")
        if run < 1:
            raise UsageError(f"a run has at least one sample, not {run}")
        self.samples = samples
        self._seed, self._shuffle, self._run, self._source = seed, shuffle, run, source

    def take(self, draws: npt.ArrayLike) -> Integers:
        """Return the number of the sample at each of `draws`; draw ``j`` belongs to epoch ``j // samples``."""
        wanted = np.asarray(draws, dtype=np.int64)
        if wanted.size and int(wanted.min()) < 0:
            raise IndexError(f"position {wanted.min()} is before the first")
        epochs, places = np.divmod(wanted, self.samples)
        if not self._shuffle:
            return places
        if epochs.size and int(epochs.min()) == int(epochs.max()):  # as nearly always
            return self._in_epoch(int(epochs.flat[0]), places)
        result = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            result[here] = self._in_epoch(int(epoch), places[here])
        return result

    def _in_epoch(self, epoch: int, places: Integers) -> Integers:
        whole = self.samples // self._run
        permutation = _permutation(whole, derived_key(self._seed, self._source, epoch))
        if self._run == 1:
            return permutation.take(places)
        result = places.copy()  # the short run keeps its place, the last
        runs, within = np.divmod(places, self._run)
        moved = runs < whole
        result[moved] = permutation.take(runs[moved]) * self._run + within[moved]
        return result


_permutation = lru_cache(maxsize=256)(Permutation)


class MixedOrder:
    """The samples of several sources, mixed by weights, all of a source before any of it repeats.

    Args:
        orders: One `Order` a source.
        schedule: ``(from_position, weights)``, ascending, the first from `position` or before: which rounded weights
            hold from where. A weight of 0 leaves its source out.
        stop: ``"first"`` ends the epoch before any sample comes again, ``"all"`` when each was seen,
            ``"never"`` has no end.
        position: Where the first weights begin to count.
        draws: How many samples of each source stand before it.

    Attributes:
        length: Positions of the first epoch, from `position` on; None: it has no end.

    Example:
        >>> mixed = MixedOrder([Order(4), Order(100, source=1)], [(0, [1, 3])], stop="first")
        >>> mixed.length, mixed.counts(mixed.length).tolist()
        (18, [4, 14])
    """

    def __init__(
        self,
        orders: Sequence[Order],
        schedule: Sequence[tuple[int, Sequence[int]]],
        stop: Stop = "first",
        *,
        position: int = 0,
        draws: Sequence[int] | None = None,
    ) -> None:
        starts = [start for start, _ in schedule]
        if not starts or starts[0] > position or starts[0] < 0 or starts != sorted(set(starts)):
            raise UsageError(f"a schedule begins at position 0 and ascends, not {starts}")
        for _, weights in schedule:
            if len(weights) != len(orders):
                raise UsageError(f"{len(weights)} weights for {len(orders)} sources")
        if stop not in get_args(Stop):
            raise UsageError(f"stop is one of {', '.join(get_args(Stop))}, not {stop!r}")
        self._orders = list(orders)
        first = sum(start <= position for start in starts) - 1
        self._starts = np.array([position, *starts[first + 1 :]], dtype=np.int64)
        self._quotas = [Quota(weights, least=0) for _, weights in schedule[first:]]
        taken = [np.array(draws or [0] * len(orders), dtype=np.int64)]
        for number, end in enumerate(self._starts[1:].tolist()):
            taken.append(taken[-1] + self._quotas[number].counts(end - int(self._starts[number])))
        self._taken = taken
        self.length = None if stop == "never" else self._length(stop)

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return what stands at `positions`, which may lie in any epoch."""
        wanted = np.asarray(positions, dtype=np.int64)
        if wanted.size and int(wanted.min()) < int(self._starts[0]):
            raise IndexError(f"position {wanted.min()} is before the first")
        if len(self._starts) == 1:
            source, draw = self._in_segment(0, wanted)
        else:
            segments = np.searchsorted(self._starts, wanted, side="right") - 1
            source, draw = np.empty_like(wanted), np.empty_like(wanted)
            for number in np.unique(segments).tolist():
                here = segments == number
                source[here], draw[here] = self._in_segment(number, wanted[here])
        if len(self._orders) == 1:
            return Draws(source, self._orders[0].take(draw), draw)
        index = np.empty_like(wanted)
        for number in np.flatnonzero(np.bincount(source)).tolist():
            here = np.flatnonzero(source == number)
            index[here] = self._orders[number].take(draw[here])
        return Draws(source, index, draw)

    def _in_segment(self, number: int, wanted: Integers) -> tuple[Integers, Integers]:
        """Return source and draw at positions that all lie in one segment."""
        quota, within = self._quotas[number], wanted - self._starts[number]
        source = quota.sources(within)
        return source, quota.draws(within) + self._taken[number][source]

    def counts(self, position: int) -> Integers:
        """Return how many samples of each source stand at positions below `position`."""
        number = max(0, int(np.searchsorted(self._starts, position, side="right")) - 1)
        within = position - int(self._starts[number])
        result: Integers = self._taken[number] + self._quotas[number].counts(within)
        return result

    def _position_of(self, source: int, draw: int) -> int | None:
        """Return the position of a source's draw, in whichever segment it falls; None: it is not drawn again."""
        number = sum(int(taken[source]) <= draw for taken in self._taken) - 1
        within = self._quotas[number].position_of(source, draw - int(self._taken[number][source]))
        return None if within is None else int(self._starts[number]) + within

    def _length(self, stop: Stop) -> int:
        """Return how far the first epoch reaches: to the next time that a source was seen whole."""
        ends = []
        for source, order in enumerate(self._orders):
            round_end = (int(self._taken[0][source]) // order.samples + 1) * order.samples
            end = self._position_of(source, round_end - (stop == "all"))
            if end is not None:
                ends.append(end)
        if not ends:
            raise UsageError("no source of the mixture is ever drawn")
        begin = int(self._starts[0])
        return min(ends) - begin if stop == "first" else 1 + max(ends) - begin
