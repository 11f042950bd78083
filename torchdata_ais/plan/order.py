"""Order of one source or a mixture: samples by position, all epochs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.changes import apportion, rounded
from torchdata_ais.plan.mixture import DENOMINATOR, Quota
from torchdata_ais.plan.permutation import Integers, Permutation, derived_key

Stop = Literal["first", "all", "never"]
Weights = Sequence[int] | npt.NDArray[np.int32]
Opened = tuple[tuple[tuple[int, int], ...], ...]
_ENDLESS = 1 << 62
_CYCLIC = -1  # used in a key in place of the number of a round


@dataclass(frozen=True)
class Draws:
    """Draws at some positions: three arrays of int64 of the same length.

    Attributes:
        source: Number of the source in the mixture; 0 without one.
        index: Number of the sample in its source's stored order.
        draw: How many samples of this source are at positions before it.
    """

    source: Integers
    index: Integers
    draw: Integers


class Order:
    """The samples of one source, round after round: each once in a round.

    Args:
        samples: How many samples the source has, at least 1.
        seed: Any integer.
        shuffle: True for another order in each round, False for the stored one.
        run: How many samples that are adjacent in the stored order stay together. 1 shuffles samples.
            Where the runs are cut, and the position of the one shorter run, change with the round.
        source: Number of the source, which takes part in the seed.
        opened: Windows that a change of the plan has interrupted, ``(begin, end)`` in draws of one round, ascending.

    Example:
        >>> order = Order(samples=6, seed=0, run=2)
        >>> first, second = order.take(range(6)).tolist(), order.take(range(6, 12)).tolist()
        >>> sorted(first) == sorted(second) == list(range(6))
        True
    """

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        *,
        shuffle: bool = True,
        run: int = 1,
        source: int = 0,
        opened: Sequence[tuple[int, int]] = (),
    ) -> None:
        if samples < 1:
            raise UsageError(f"an order has at least one sample, not {samples}")
        if run < 1:
            raise UsageError(f"a run has at least one sample, not {run}")
        self.samples, self.opened = samples, tuple(opened)
        self._seed, self._shuffle, self._run, self._source = seed, shuffle, run, source

    def take(self, draws: npt.ArrayLike) -> Integers:
        """Return the number of the sample at each of `draws`.

        Draw ``j`` belongs to round ``j // samples``.
        """
        rounds, places = np.divmod(_from(draws, 0), self.samples)
        if not self._shuffle or self.samples == 1:
            return places
        result = np.empty_like(places)
        for number, here in _groups(rounds):
            result[here] = self._in_round(number, places[here])
        return result

    def in_window(self, draws: Integers, begin: int, end: int) -> Integers:
        """Return the numbers of the samples at `draws` of an epoch.

        The epoch takes the draws from `begin` to `end`.

        All rounds have one cyclic order, so a window of at most `samples` draws has no sample twice, and one of at
        least as many has each. The window is permuted as a set on each side of a border of two rounds, so a round
        remains whole.
        """
        rounds, places = np.divmod(draws, self.samples)
        if not self._shuffle or self.samples == 1:
            return places
        result = np.empty_like(places)
        for number, here in _groups(rounds):
            side = cut_to_round(begin, end, number, self.samples)
            if side[1] - side[0] == self.samples:
                result[here] = self._in_round(number, places[here])
            else:
                result[here] = self._cyclic(self._permuted(side, places[here]))
        return result

    def _in_round(self, number: int, places: Integers) -> Integers:
        return self._mixed(self.samples, derived_key(self._seed, self._source, number), places)

    def _permuted(self, side: tuple[int, int], places: Integers) -> Integers:
        """Return permuted places of a round, all in one permuted part of it."""
        begin, end = side
        first = begin % self.samples
        key = derived_key(self._seed, self._source, begin, end)
        return first + self._mixed(end - begin, key, places - first)

    def _cyclic(self, places: Integers) -> Integers:
        """Return the samples at places of the cyclic order.

        Only the order of an interrupted window knows which samples of its round it has returned. That order becomes
        part of the cyclic one, so that the returned samples stay a connected part.
        """
        for begin, end in reversed(self.opened):
            if end - begin == self.samples:
                return self._in_round(begin // self.samples, places)
            first = begin % self.samples
            here = (places >= first) & (places < first + end - begin)
            places = places.copy()
            places[here] = self._permuted((begin, end), places[here])
        return self._mixed(self.samples, derived_key(self._seed, self._source, _CYCLIC), places)

    def _mixed(self, count: int, key: int, places: Integers) -> Integers:
        """Return the numbers at `places` of ``range(count)``, permuted by runs."""
        whole, rest = divmod(count, self._run)
        permutation = _permutation(whole, key)
        if self._run == 1:
            return permutation.take(places)
        short = derived_key(key, 1) % (whole + 1) * self._run  # place of the run of `rest` samples
        result = places - short + whole * self._run
        moved = (places < short) | (places >= short + rest)
        runs, within = np.divmod(places[moved] - rest * (places[moved] >= short), self._run)
        result[moved] = permutation.take(runs) * self._run + within
        result += derived_key(key, 2) % count
        result %= count
        return result


_permutation = lru_cache(maxsize=256)(Permutation)


def cut_to_round(begin: int, end: int, number: int, samples: int) -> tuple[int, int]:
    """Return the part of a window of draws that is in a round.

    Example:
        >>> cut_to_round(6, 13, 1, 10), cut_to_round(6, 13, 0, 10)
        ((10, 13), (6, 10))
    """
    return max(begin, number * samples), min(end, (number + 1) * samples)


def _groups(numbers: Integers) -> list[tuple[int, Integers | slice]]:
    """Return each number that occurs, and where."""
    if not numbers.size:
        return []
    least, most = int(numbers.min()), int(numbers.max())
    if least == most:  # as nearly always
        return [(least, slice(None))]
    return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]


@dataclass(frozen=True)
class Stretch:
    """Epochs that follow each other and take as many samples of each source.

    Attributes:
        number, position: Those of the first.
        length: Positions of each.
        draws: Samples of each source before the first.
        each: Samples of each source in one.
    """

    number: int
    position: int
    length: int
    count: int
    draws: Integers
    each: Integers

    @property
    def end(self) -> int:
        """The position after them."""
        return self.position + self.count * self.length


@dataclass(frozen=True)
class Windows:
    """Windows of an epoch at a position: its draws of each source.

    Attributes:
        draws: How many samples of each source are before the position.
        begins: Where the windows begin.
        ends: Where they end.
        until: See `interrupted`, of a change earlier in the epoch; empty without one.
        opened: Windows of each source that were interrupted before; empty for none.
    """

    draws: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    until: tuple[int, ...] = ()
    opened: Opened = ()

    def interrupted(self, samples: Sequence[int]) -> tuple[Opened, tuple[int, ...]]:
        """Return what the order of the rest of the epoch must know.

        The first are each source's windows that were interrupted, this one included. The second is the draw of each
        source at which its window has the size of an epoch. Under ``stop="all"`` that is the draw by which each sample
        has come, under ``"first"`` the one before any repeats. Both are as many draws after the first of the epoch as
        there are samples. If the change comes in the middle of a permuted part, only the end of the part has all of it.
        """
        opened, until = [], []
        for source, count in enumerate(samples):
            draw, begin = self.draws[source], self.begins[source]
            end = self.until[source] if self.until else begin + count
            first, last = cut_to_round(begin, self.ends[source], draw // count, count)
            windows = self.opened[source] if self.opened else ()
            if first < draw < last:
                windows = (*windows, (first, last))
                end = draw if first >= end else max(end, last)
            opened.append(_relevant(windows, {draw % count, begin % count, end % count}, count))
            until.append(end)
        return tuple(opened) if any(opened) else (), tuple(until)


def _relevant(
    windows: Sequence[tuple[int, int]], places: set[int], count: int
) -> tuple[tuple[int, int], ...]:
    """Return the interrupted windows of a source that its order still needs.

    The samples before each of some places of a round must stay the same set: where the samples that came end, and where
    a window of the epoch begins. A window changes that set only if the place is inside of it, or if it overlaps a later
    window that does. `windows` are in the order of their interruptions.
    """
    parts = [(place, place) for place in places]
    kept: list[tuple[int, int]] = []
    for begin, end in reversed(windows):
        first, last = begin % count, begin % count + end - begin
        touched = [first < part[1] and part[0] < last for part in parts]
        if any(touched):
            kept.append((begin, end))
            parts = [
                (min(part[0], first), max(part[1], last)) if hit else part
                for part, hit in zip(parts, touched, strict=True)
            ]
            if end - begin == count:
                break
    return tuple(reversed(kept))


class MixedOrder:
    """Samples of several sources, mixed by weights.

    All samples of a source come before any of them repeats.

    An epoch takes of each source the window of its draws that begins where the epoch before has ended. The sequence of
    sources starts again with each epoch. So all epochs are of one length.

    Args:
        orders: One `Order` a source.
        weights: Rounded weights. A weight of 0 leaves its source out.
        stop: ``"first"`` ends an epoch before any sample comes again in it, ``"all"`` when it has each sample.
        position: Where the order begins.
        draws: How many samples of each source are before it.
        number: The epoch that it is in.
        until: Draw of each source at which the rest of that epoch ends; None: an epoch begins there.
        whole: An epoch of several sources has a multiple of so many positions.

    Attributes:
        stretches: The epochs.

    Example:
        >>> mixed = MixedOrder([Order(4), Order(100, source=1)], [1, 3], stop="first")
        >>> mixed.stretches[0].length, mixed.counts(18).tolist(), mixed.counts(36).tolist()
        (18, [4, 14], [8, 28])
    """

    def __init__(
        self,
        orders: Sequence[Order],
        weights: Sequence[int],
        stop: Stop = "first",
        *,
        position: int = 0,
        draws: Sequence[int] | None = None,
        number: int = 0,
        until: Sequence[int] | None = None,
        whole: int = 1,
    ) -> None:
        _check_weights(orders, weights)
        if stop not in ("first", "all"):
            raise UsageError(f"stop is one of first, all, not {stop!r}")
        self._orders, self._stop, self._whole = list(orders), stop, whole
        self._samples = np.array([order.samples for order in orders], dtype=np.int64)
        self._position, self._quota = position, Quota(weights, least=0)
        self._number, self._until = number, until
        self.stretches = self._stretches(number, np.array(draws or [0] * len(orders), dtype=np.int64), until)
        self._begins = np.array([stretch.position for stretch in self.stretches], dtype=np.int64)

    @property
    def drawn_from(self) -> list[int]:
        """The sources that have a weight."""
        return [number for number, weight in enumerate(self._quota.weights) if weight]

    def _stretches(self, number: int, draws: Integers, until: Sequence[int] | None) -> list[Stretch]:
        """Return all epochs: the rest of one, and those after it."""
        found: list[Stretch] = []
        position = self._position
        if until is not None:
            length = self._length(np.asarray(until, dtype=np.int64) - draws, rest=True)
            if length:  # else nothing is left of the epoch that the order begins in
                each = self._quota.counts(length)
                found.append(Stretch(number, position, length, 1, draws, each))
                position, draws = position + length, draws + each
            number += 1
        length = self._length(self._samples, rest=False)
        count = (_ENDLESS - position) // length
        return [*found, Stretch(number, position, length, count, draws, self._quota.counts(length))]

    def _length(self, left: Integers, *, rest: bool) -> int:
        """Return the length of an epoch, or of the rest of one.

        `left` are the draws of each source until its window has its size.
        """
        ends = [0]
        for source, draws in enumerate(left.tolist()):
            if self._stop == "first":
                end = self._quota.position_of(source, max(draws, 0))
            else:
                end = self._quota.position_of(source, draws - 1) if draws > 0 else None
                end = None if end is None else end + 1
            if end is not None:
                ends.append(end)
        length = min(ends[1:]) if self._stop == "first" else max(ends)
        if len(self.drawn_from) > 1 and (length >= self._whole or rest):
            length -= length % self._whole
        return length

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return the draws at `positions`, which may be of any epoch."""
        wanted = _from(positions, self._position)
        found = Draws(*(np.empty_like(wanted) for _ in range(3)))
        for number, here in _groups(np.searchsorted(self._begins, wanted, side="right") - 1):
            stretch = self.stretches[number]
            epochs, offsets = np.divmod(wanted[here] - stretch.position, stretch.length)
            source = self._quota.sources(offsets)
            before: Integers = (stretch.draws[source] + epochs * stretch.each[source]).astype(
                np.int64, copy=False
            )
            draw: Integers = self._quota.draws(offsets) + before
            found.source[here], found.draw[here] = source, draw
            found.index[here] = self._indexes(stretch, epochs, source, draw)
        return found

    def _indexes(self, stretch: Stretch, epochs: Integers, source: Integers, draw: Integers) -> Integers:
        """Return the samples of draws that are all of a stretch."""
        result = np.empty_like(draw)
        for number, here in _groups(source):
            order, drawn = self._orders[number], draw[here]
            each, found = int(stretch.each[number]), np.empty_like(drawn)
            for epoch, part in _groups(epochs[here]):
                begin = int(stretch.draws[number]) + epoch * each
                found[part] = order.in_window(drawn[part], begin, begin + each)
            result[here] = found
        return result

    def _stretch_at(self, position: int) -> Stretch:
        return self.stretches[int(np.searchsorted(self._begins, position, side="right")) - 1]

    def counts(self, position: int) -> Integers:
        """Return how many samples of each source are before `position`."""
        stretch = self._stretch_at(position)
        epochs, offset = divmod(position - stretch.position, stretch.length)
        result: Integers = stretch.draws + epochs * stretch.each + self._quota.counts(offset)
        return result

    def epoch_at(self, position: int) -> tuple[int, int, int]:
        """Return number, first position and length of a position's epoch."""
        stretch = self._stretch_at(position)
        epochs = (position - stretch.position) // stretch.length
        return stretch.number + epochs, stretch.position + epochs * stretch.length, stretch.length

    def windows_at(self, position: int) -> Windows:
        """Return the windows of a position's epoch."""
        stretch = self._stretch_at(position)
        begin = stretch.draws + (position - stretch.position) // stretch.length * stretch.each
        of_rest = self._until is not None and stretch.number == self._number
        return Windows(
            tuple(self.counts(position).tolist()),
            tuple(begin.tolist()),
            tuple((begin + stretch.each).tolist()),
            tuple(self._until or ()) if of_rest else (),
            tuple(order.opened for order in self._orders),
        )


class EndlessOrder:
    """Samples of several sources in one sequence, by weights that may change.

    All samples of a source come before any of them repeats. A part with constant weights is cut into whole periods of
    them and a rest. The rest has a whole number of samples of each source, and what that differs by from the weights
    goes on to the next part. So each prefix of a part is within one sample of its numbers.

    Args:
        orders: One `Order` a source.
        stages: ``(from_position, weights)``: rounded weights, ascending, the first at most `position`.
        position: Where the order begins.
        draws: How many samples of each source are before it.
        most: How many samples of each source are drawn at most, or None. Its weight then goes to the others in
            proportion. Empty: of none.

    Attributes:
        end: The position where no source is left, or a very large one.

    Memory: 8 bytes for each source of each part, and a period.

    Example:
        >>> order = EndlessOrder([Order(4), Order(100, source=1)], [(0, [32768, 32768]), (10, [0, 65536])])
        >>> order.at(range(8)).source.tolist(), order.counts(10).tolist(), order.counts(30).tolist()
        ([0, 1, 0, 1, 0, 1, 0, 1], [5, 5], [5, 25])
    """

    def __init__(
        self,
        orders: Sequence[Order],
        stages: Sequence[tuple[int, Weights]],
        *,
        position: int = 0,
        draws: Sequence[int] | None = None,
        most: Sequence[int | None] = (),
    ) -> None:
        starts = [start for start, _ in stages]
        if not starts or starts[0] > position or starts[0] < 0 or starts != sorted(set(starts)):
            raise UsageError(f"the stages of an order begin at its position and ascend, not {starts}")
        for _, weights in stages:
            _check_weights(orders, weights)
        self._orders = list(orders)
        self._position, self.end = position, _ENDLESS
        self._draws = np.array(draws or [0] * len(orders), dtype=np.int64)
        self._most = [_ENDLESS if one is None else one for one in most]
        first = bisect_right(starts, position) - 1
        self._make_parts([*starts[first + 1 :], _ENDLESS], [weights for _, weights in stages[first:]])

    @property
    def is_limited(self) -> bool:
        """True if it has an end."""
        return self.end < _ENDLESS

    def _make_parts(self, ends: Sequence[int], stages: Sequence[Weights]) -> None:
        """Cut the sequence into parts that have whole numbers of each source."""
        begins, before = [self._position], [self._draws]
        carry = np.zeros_like(self._draws)  # what the weights say beyond the samples drawn, in 1/65,536
        self._last: list[int] = []
        stage_at = 0
        while not self._last and self.end == _ENDLESS:
            weights = np.array(self._active(stages[stage_at], before[-1]), dtype=np.int64)
            if not weights.any():
                self.end = begins[-1]
                break
            until = self._until(ends[stage_at], begins[-1], weights, before[-1], carry)
            if until == _ENDLESS:
                self._last = weights.tolist()
                break
            length = until - begins[-1]
            period = DENOMINATOR // math.gcd(*weights.tolist())
            whole = length // period * period
            if whole:
                begins.append(begins[-1] + whole)
                before.append(before[-1] + weights * whole // DENOMINATOR)
            if whole < length:
                wanted = self._allowed(carry + weights * (length - whole), weights, before[-1])
                counts = apportion(wanted, length - whole)
                carry = wanted - counts * DENOMINATOR
                begins.append(until)
                before.append(before[-1] + counts)
            while stage_at < len(ends) - 1 and ends[stage_at] <= until:
                stage_at += 1
        self._begins = np.array(begins, dtype=np.int64)
        self._before = before  # no array: it would need twice the memory for a moment

    def _active(self, weights: Weights, drawn: Integers) -> Weights:
        """Return the weights, 0 for sources that may not come again."""
        if not self._most:
            return weights
        left = [weight if drawn[number] < self._most[number] else 0 for number, weight in enumerate(weights)]
        return left if left == list(weights) or not any(left) else rounded(left)

    def _until(self, end: int, begin: int, weights: Integers, drawn: Integers, carry: Integers) -> int:
        """Return where a first source may not come again, at most `end`."""
        all_left = 0
        for number, most in enumerate(self._most):
            weight, left = int(weights[number]), most - int(drawn[number])
            if weight and most < _ENDLESS:
                units = left * DENOMINATOR - max(int(carry[number]), 0)
                end = min(end, begin + max(1, -(-units // weight)))
            all_left += left if weight else 0
        return min(end, begin + all_left) if self._most else end

    def _allowed(self, wanted: Integers, weights: Integers, drawn: Integers) -> Integers:
        """Return `wanted` of samples that may come; other sources get the rest."""
        if not self._most:
            return wanted
        room = np.minimum(np.array(self._most) - drawn, 1 << 40) * DENOMINATOR
        while (over := np.maximum(wanted - room, 0)).any():
            wanted = wanted - over
            left = np.where(weights > 0, room - wanted, 0)
            wanted[int(np.argmax(left))] += over.sum()
        return wanted

    def _part(self, number: int) -> Quota:
        """Return the sequence of sources of a part."""
        if number + 1 < len(self._begins):
            return Quota((self._before[number + 1] - self._before[number]).tolist(), least=0)
        return Quota(self._last, least=0)

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return the draws at `positions`."""
        wanted = _from(positions, self._position)
        found = Draws(*(np.empty_like(wanted) for _ in range(3)))
        for number, here in _groups(np.searchsorted(self._begins, wanted, side="right") - 1):
            quota, within = self._part(number), wanted[here] - self._begins[number]
            found.source[here] = source = quota.sources(within)
            found.draw[here] = quota.draws(within) + self._before[number][source]
        for number, here in _groups(found.source):
            found.index[here] = self._orders[number].take(found.draw[here])
        return found

    def counts(self, position: int) -> Integers:
        """Return how many samples of each source are before `position`."""
        number = int(np.searchsorted(self._begins, position, side="right")) - 1
        begin = int(self._begins[number])
        result: Integers = self._before[number].copy()
        return result if position == begin else result + self._part(number).counts(position - begin)


def _from(positions: npt.ArrayLike, first: int) -> Integers:
    """Return `positions`, none before the first, as an array."""
    wanted = np.asarray(positions, dtype=np.int64)
    if wanted.size and int(wanted.min()) < first:
        raise IndexError(f"position {wanted.min()} is before the first")
    return wanted


def _check_weights(orders: Sequence[Order], weights: Weights) -> None:
    if len(weights) != len(orders):
        raise UsageError(f"{len(weights)} weights for {len(orders)} sources")
