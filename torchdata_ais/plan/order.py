"""Order of one source or a mixture: samples by position, all epochs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.mixture import Quota
from torchdata_ais.plan.permutation import Integers, Permutation, derived_key

Stop = Literal["first", "all", "never"]
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
        self.samples = samples
        self._seed, self._shuffle, self._run, self._source = seed, shuffle, run, source
        self._opened = tuple(opened)

    def take(self, draws: npt.ArrayLike) -> Integers:
        """Return the number of the sample at each of `draws`.

        Draw ``j`` belongs to round ``j // samples``.
        """
        wanted = np.asarray(draws, dtype=np.int64)
        if wanted.size and int(wanted.min()) < 0:
            raise IndexError(f"position {wanted.min()} is before the first")
        rounds, places = np.divmod(wanted, self.samples)
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
        for begin, end in reversed(self._opened):
            if end - begin == self.samples:
                return self._in_round(begin // self.samples, places)
            first = begin % self.samples
            here = (places >= first) & (places < first + end - begin)
            places = places.copy()
            places[here] = self._permuted((begin, end), places[here])
        return self._mixed(self.samples, derived_key(self._seed, self._source, _CYCLIC), places)

    def _mixed(self, count: int, key: int, places: Integers) -> Integers:
        """Return the numbers at `places` of a permutation of ``range(count)``.

        These are samples, or runs of samples.
        """
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
class _Piece:
    """A part of an epoch in which the weights are the same."""

    offset: int
    quota: Quota
    taken: Integers  # draws of each source in the epoch before


@dataclass(frozen=True)
class Stretch:
    """Epochs that follow each other and take as many samples of each source.

    Attributes:
        number: Number of the first.
        position: Its first position.
        length: Positions of each.
        count: How many there are.
        pieces: Parts of each.
        draws: Samples of each source before the first.
        each: Samples of each source in one.
    """

    number: int
    position: int
    length: int
    count: int
    pieces: tuple[_Piece, ...]
    draws: Integers
    each: Integers

    @property
    def end(self) -> int:
        """The position after them."""
        return self.position + self.count * self.length

    @property
    def drawn_from(self) -> list[int]:
        """The sources that have a weight."""
        weights = [piece.quota.weights for piece in self.pieces]
        return [number for number, given in enumerate(zip(*weights, strict=True)) if any(given)]

    def counts(self, offset: int) -> Integers:
        """Return how many samples of each source an epoch has before an offset."""
        piece = [one for one in self.pieces if one.offset <= offset][-1]
        result: Integers = piece.taken + piece.quota.counts(offset - piece.offset)
        return result

    def drawn(self, offsets: Integers) -> tuple[Integers, Integers]:
        """Return for offsets of an epoch the sources and their earlier draws."""
        if len(self.pieces) == 1:
            quota = self.pieces[0].quota
            return quota.sources(offsets), quota.draws(offsets)
        source, draw = np.empty_like(offsets), np.empty_like(offsets)
        begins = np.array([piece.offset for piece in self.pieces])
        for number, here in _groups(np.searchsorted(begins, offsets, side="right") - 1):
            piece = self.pieces[number]
            within = offsets[here] - piece.offset
            source[here] = piece.quota.sources(within)
            draw[here] = piece.quota.draws(within) + piece.taken[source[here]]
        return source, draw


class MixedOrder:
    """Samples of several sources, mixed by weights.

    All samples of a source come before any of them repeats.

    An epoch takes of each source the window of its draws that begins where the epoch before has ended. The sequence of
    sources starts again with each epoch. So all epochs are of one length while the weights stay; an epoch in which
    they change ends where its own windows end.

    Args:
        orders: One `Order` a source.
        schedule: ``(from_position, weights)``: rounded weights and their first position, ascending, the first at most
            `position`. A weight of 0 leaves its source out.
        stop: ``"first"`` ends an epoch before any sample comes again in it, ``"all"`` when it has each sample,
            ``"never"`` is one epoch without end.
        position: Where the first weights begin to count.
        draws: How many samples of each source are before it.
        number: The epoch that it is in.
        until: Draw of each source at which the rest of that epoch ends; None: an epoch begins there.
        whole: An epoch of several sources has a multiple of so many positions.

    Attributes:
        stretches: The epochs.

    Example:
        >>> mixed = MixedOrder([Order(4), Order(100, source=1)], [(0, [1, 3])], stop="first")
        >>> mixed.stretches[0].length, mixed.counts(18).tolist(), mixed.counts(36).tolist()
        (18, [4, 14], [8, 28])
    """

    def __init__(
        self,
        orders: Sequence[Order],
        schedule: Sequence[tuple[int, Sequence[int]]],
        stop: Stop = "first",
        *,
        position: int = 0,
        draws: Sequence[int] | None = None,
        number: int = 0,
        until: Sequence[int] | None = None,
        whole: int = 1,
    ) -> None:
        starts = [start for start, _ in schedule]
        if not starts or starts[0] > position or starts[0] < 0 or starts != sorted(set(starts)):
            raise UsageError(f"a schedule begins at position 0 and ascends, not {starts}")
        for _, weights in schedule:
            if len(weights) != len(orders):
                raise UsageError(f"{len(weights)} weights for {len(orders)} sources")
        if stop not in get_args(Stop):
            raise UsageError(f"stop is one of {', '.join(get_args(Stop))}, not {stop!r}")
        self._orders, self._stop, self._whole = list(orders), stop, whole
        self._samples = np.array([order.samples for order in orders], dtype=np.int64)
        first = sum(start <= position for start in starts) - 1
        self._starts = [position, *starts[first + 1 :], _ENDLESS]
        self._quotas = [Quota(weights, least=0) for _, weights in schedule[first:]]
        self.stretches = self._stretches(number, np.array(draws or [0] * len(orders), dtype=np.int64), until)
        self._begins = np.array([stretch.position for stretch in self.stretches], dtype=np.int64)

    def _stretches(self, number: int, draws: Integers, until: Sequence[int] | None) -> list[Stretch]:
        """Return all epochs: at most two stretches for each change of the weights."""
        found: list[Stretch] = []
        position, rest = self._starts[0], until is not None
        while True:
            ends = draws + self._samples if until is None else np.asarray(until, dtype=np.int64)
            length, pieces = self._epoch(position, ends - draws, rest=rest)
            stage_end = next(start for start in self._starts if start > position)
            alike = len(pieces) == 1 and not rest
            count = (stage_end - position) // length if alike else 1
            if length:  # else nothing is left of the epoch that the order begins in
                each = Stretch(number, position, length, count, pieces, draws, draws).counts(length)
                found.append(Stretch(number, position, length, count, pieces, draws, each))
                if found[-1].end == _ENDLESS or (alike and stage_end == _ENDLESS):
                    return found
                position, draws = found[-1].end, draws + count * each
            number, until, rest = number + count, None, False

    def _epoch(self, position: int, left: Integers, *, rest: bool) -> tuple[int, tuple[_Piece, ...]]:
        """Return the length of an epoch, and its parts.

        Args:
            position: Its first position.
            left: Draws of each source until its window has its size.
            rest: Whether it is the rest of an epoch.
        """
        stage = bisect_right(self._starts, position) - 1
        pieces, offset, taken = [], 0, np.zeros_like(left)
        while True:
            quota = self._quotas[stage]
            pieces.append(_Piece(offset, quota, taken))
            size = self._starts[stage + 1] - position - offset
            end = self._end(quota, left - taken)
            if end <= size or self._starts[stage + 1] == _ENDLESS:
                break
            offset, taken, stage = offset + size, taken + quota.counts(size), stage + 1
        length = offset + min(end, size)
        drawn = np.any([piece.quota.weights for piece in pieces], axis=0)
        if drawn.sum() > 1 and (length >= self._whole or rest):
            length -= length % self._whole
        return length, tuple(pieces)

    def _end(self, quota: Quota, left: Integers) -> int:
        """Return the number of positions until `quota` has filled the windows."""
        if self._stop == "never":
            return _ENDLESS
        ends = [0]
        for source, draws in enumerate(left.tolist()):
            if self._stop == "first":
                end = quota.position_of(source, max(draws, 0))
            else:
                end = quota.position_of(source, draws - 1) if draws > 0 else None
                end = None if end is None else end + 1
            if end is not None:
                ends.append(end)
        return min(ends[1:]) if self._stop == "first" else max(ends)

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return the draws at `positions`, which may be of any epoch."""
        wanted = np.asarray(positions, dtype=np.int64)
        if wanted.size and int(wanted.min()) < self._starts[0]:
            raise IndexError(f"position {wanted.min()} is before the first")
        found = Draws(*(np.empty_like(wanted) for _ in range(3)))
        for number, here in _groups(np.searchsorted(self._begins, wanted, side="right") - 1):
            stretch = self.stretches[number]
            epochs, offsets = np.divmod(wanted[here] - stretch.position, stretch.length)
            source, within = stretch.drawn(offsets)
            before: Integers = (stretch.draws[source] + epochs * stretch.each[source]).astype(
                np.int64, copy=False
            )
            draw: Integers = within + before
            found.source[here], found.draw[here] = source, draw
            found.index[here] = self._indexes(stretch, epochs, source, draw)
        return found

    def _indexes(self, stretch: Stretch, epochs: Integers, source: Integers, draw: Integers) -> Integers:
        """Return the samples of draws that are all of a stretch."""
        result = np.empty_like(draw)
        for number, here in _groups(source):
            order, drawn = self._orders[number], draw[here]
            if self._stop == "never":
                result[here] = order.take(drawn)
                continue
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
        result: Integers = stretch.draws + epochs * stretch.each + stretch.counts(offset)
        return result

    def epoch_at(self, position: int) -> tuple[int, int, int]:
        """Return number, first position and length of a position's epoch."""
        stretch = self._stretch_at(position)
        epochs = (position - stretch.position) // stretch.length
        return stretch.number + epochs, stretch.position + epochs * stretch.length, stretch.length

    def window_at(self, position: int) -> tuple[list[int], list[int]]:
        """Return each source's first and last draw in a position's epoch.

        The last ones are None as far as they are not known.
        """
        stretch = self._stretch_at(position)
        begin = stretch.draws + (position - stretch.position) // stretch.length * stretch.each
        return begin.tolist(), (begin + stretch.each).tolist()
