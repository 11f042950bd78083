"""A whole run as a function of the step: the samples of each rank.

It covers all epochs and changes on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.order import Draws, MixedOrder, Order, Stop, cut_to_round
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.plan.steps import Slots, Tail, too_large

PLAN_VERSION = 2
"""Version of the function from position to sample; kept in states."""

Shuffle = Literal["samples", "runs"] | None
_RUN_BYTES = 8 << 20
_AT_ONCE = 1 << 12  # positions that are looked up at a time, to fill a batch up


@dataclass(frozen=True)
class Sources:
    """Sources of a run and how to draw from them.

    Attributes:
        samples: How many samples each source has.
        mean_bytes: The mean size of a sample of each.
        schedule: ``(from_position, weights)``: rounded weights, of each source one, that sum to 65,536.
        stop: When an epoch ends; see `MixedOrder`.
        shuffle: ``"samples"``, ``"runs"`` (adjacent samples of the stored order stay together), or None.
        run_bytes: How many bytes of adjacent samples, at most an eighth of a global batch.
        epoch_steps: Steps of an epoch; None: `stop` decides.
        tail: The use of the remainder of an epoch; see `Slots`.
    """

    samples: tuple[int, ...]
    mean_bytes: tuple[float, ...] = ()
    schedule: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (1 << 16,)),)
    stop: Stop = "first"
    shuffle: Shuffle = None
    run_bytes: int = _RUN_BYTES
    epoch_steps: int | None = None
    tail: Tail = "short"

    def __post_init__(self) -> None:
        if self.shuffle not in ("samples", "runs", None):
            raise UsageError.at(f"shuffle={self.shuffle!r}", todo='use "samples", "runs" or None')
        if self.tail not in get_args(Tail):
            raise UsageError.at(f"tail={self.tail!r}", todo='use "short", "drop" or "pad"')
        if self.epoch_steps is not None and self.epoch_steps < 1:
            raise UsageError.at(f"epoch_steps={self.epoch_steps}", todo="use at least 1")
        if not self.samples or min(self.samples) < 1:
            raise UsageError.at("the index is empty", todo="build it of shards that have samples")
        if self.stop == "never" and self.epoch_steps is None:
            raise UsageError.at('stop="never" has no end', todo="say how long an epoch is: epoch_steps=")

    def weights_at(self, position: int) -> tuple[int, ...]:
        """Return the weights that hold at a position of the run."""
        return self.schedule[bisect_right([start for start, _ in self.schedule], position) - 1][1]


@dataclass(frozen=True)
class RunSegment:
    """A part of a run with one global batch and fixed sources and weights.

    See `torchdata_ais.state.Segment`.

    `Run.segment` makes the next one. Those with `given` and `left` begin another order, those without continue the
    order of the one before.
    """

    step: int
    position: int
    epoch: int
    global_batch: int
    weights: tuple[int, ...]
    draws: tuple[int, ...]
    epoch_step: int | None = None
    epoch_position: int | None = None
    given: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def begins_epoch(self) -> bool:
        """Return whether an epoch begins with it."""
        return self.epoch_position in (None, self.position)


@dataclass(frozen=True)
class Epoch:
    """An epoch, or the rest of one after a segment has started in it.

    Attributes:
        number: Which one, from the beginning of the run.
        step: The first step of `slots`.
        position: The first position of `slots`.
        slots: Its steps, or those left.
        first_step: Its first step.
        first_position: Its first position.
        known: The first position of it that this run can look up.
    """

    number: int
    step: int
    position: int
    slots: Slots
    first_step: int
    first_position: int
    known: int

    @property
    def end(self) -> int:
        """The step after its last."""
        return self.step + len(self.slots)

    @property
    def steps(self) -> int:
        """Number of steps of the whole epoch."""
        return self.end - self.first_step


@dataclass(frozen=True)
class _Span:
    """Whole epochs of one length that follow each other."""

    number: int
    step: int
    position: int
    count: int
    slots: Slots


class Run:
    """The steps of a run.

    Args:
        sources: The sources to draw from.
        seed: Any integer.
        segments: At least one; the first begins the run.
        ranks: How many ranks share each global batch.

    Example:
        >>> run = Run(Sources((10,), shuffle="samples"), 0, [RunSegment(0, 0, 0, 4, (1 << 16,), (0,))], ranks=2)
        >>> [run.positions(step, rank=0).tolist() for step in range(4)]
        [[0, 1], [4, 5], [8], [10, 11]]
        >>> run.epoch_of(3).number, sorted(run.at(range(10)).index.tolist()) == list(range(10))
        (1, True)
    """

    def __init__(
        self, sources: Sources, seed: int, segments: Sequence[RunSegment], *, ranks: int = 1
    ) -> None:
        self.sources, self.seed, self.ranks = sources, seed, ranks
        self.segments = list(segments)
        begun = [segment for segment in self.segments if segment.given or segment is self.segments[0]]
        self._origin = origin = begun[-1]  # where the order that holds now begins
        opened, until = _windows(begun, sources.samples)
        self._orders = [
            Order(
                samples,
                seed,
                shuffle=sources.shuffle is not None,
                run=self._run_of(number),
                source=number,
                opened=opened[number],
            )
            for number, samples in enumerate(sources.samples)
        ]
        later = [one for one in sources.schedule if one[0] > origin.position]
        self._order = MixedOrder(
            self._orders,
            [(origin.position, origin.weights), *later],
            "never" if sources.epoch_steps is not None else sources.stop,
            position=origin.position,
            draws=origin.draws,
            number=origin.epoch,
            until=None if origin.begins_epoch else until,
            whole=self.segments[-1].global_batch if sources.tail == "drop" else 1,
        )
        self._first, self._spans = self._of_steps() if sources.epoch_steps is not None else self._of_windows()

    @classmethod
    def begun(cls, sources: Sources, seed: int, global_batch: int, ranks: int = 1) -> Self:
        """Return a run from its beginning."""
        weights = sources.weights_at(0)
        return cls(
            sources, seed, [RunSegment(0, 0, 0, global_batch, weights, (0,) * len(weights))], ranks=ranks
        )

    def _run_of(self, source: int) -> int:
        """Return how many adjacent samples stay together.

        The number is the same over the whole run, and for any topology.
        """
        if self.sources.shuffle != "runs":
            return 1
        mean = self.sources.mean_bytes[source] if self.sources.mean_bytes else 1.0
        return max(1, min(int(self.sources.run_bytes / max(mean, 1.0)), self.segments[0].global_batch // 8))

    def _slots(self, length: int, before: int = 0) -> Slots:
        return Slots(length, self.segments[-1].global_batch, self.ranks, self.sources.tail, before)

    def _of_steps(self) -> tuple[Epoch | None, list[_Span]]:
        """Return epochs that are so many steps."""
        last, steps = self.segments[-1], self.sources.epoch_steps or 1
        number, done = divmod(last.step, steps)
        left = (steps - done) * last.global_batch
        whole = self._slots(steps * last.global_batch)
        begin = last.position if last.epoch_position is None or not done else last.epoch_position
        first = Epoch(
            number,
            last.step,
            last.position,
            self._slots(left),
            last.step - done,
            begin,
            max(begin, self._origin.position),
        )
        return first, [_Span(number + 1, first.end, last.position + left, 1 << 62, whole)]

    def _of_windows(self) -> tuple[Epoch | None, list[_Span]]:
        """Return epochs that are windows of the sources.

        These are the last segment's part of the first epoch, and the others.
        """
        last = self.segments[-1]
        number, begin, length = self._order.epoch_at(last.position)
        first, step, position = None, last.step, last.position
        inside = begin < position if last.epoch_position is None else not last.begins_epoch
        if inside and number == last.epoch:  # else nothing is left of it
            left = begin + length - position
            if self.sources.tail != "drop" or left >= last.global_batch:
                whole_begin = begin if last.epoch_position is None else last.epoch_position
                known = max(whole_begin, self._origin.position)
                first_step = step if last.epoch_step is None else last.epoch_step
                slots = self._slots(left, position - known)
                first = Epoch(number, step, position, slots, first_step, whole_begin, known)
                step = first.end
            position, number = begin + length, number + 1
        spans = []
        for stretch in self._order.stretches:
            skipped = max(0, number - stretch.number)
            if skipped < stretch.count:
                slots = self._slots(stretch.length)
                spans.append(_Span(number, step, position, stretch.count - skipped, slots))
                step += spans[-1].count * len(slots)
                number, position = stretch.number + stretch.count, stretch.end
        return first, spans

    def checked(self) -> Self:
        """Return this run if each epoch has at least one whole global batch.

        Raises:
            UsageError: One has none; names both numbers.
        """
        batch = self.segments[-1].global_batch
        shortest = min(span.slots.length for span in self._spans if span.count > 1)
        if shortest < batch:
            raise too_large(batch, shortest)
        return self

    def never_drawn(self) -> list[int]:
        """Return sources with a weight at the end that no epoch draws from."""
        last = self._order.stretches[-1]
        return [source for source in last.drawn_from if not last.each[source]]

    def epoch_of(self, step: int) -> Epoch:
        """Return the epoch of a step.

        Epochs before the last segment are unknown here.
        """
        first = self._first
        if step < self.segments[-1].step:
            raise IndexError(
                f"step {step} is before step {self.segments[-1].step}, from which on this run is known"
            )
        if first is not None and step < first.end:
            return first
        span = self._spans[bisect_right([one.step for one in self._spans], step) - 1]
        return self._of_span(span, (step - span.step) // len(span.slots))

    @staticmethod
    def _of_span(span: _Span, more: int) -> Epoch:
        step = span.step + more * len(span.slots)
        position = span.position + more * span.slots.length
        return Epoch(span.number + more, step, position, span.slots, step, position, position)

    def epoch(self, number: int) -> Epoch:
        """Return an epoch by its number."""
        first = self._first if self._first is not None else self._of_span(self._spans[0], 0)
        if number < first.number:
            raise IndexError(f"epoch {number} is before epoch {first.number}")
        if number == first.number:
            return first
        span = self._spans[bisect_right([one.number for one in self._spans], number) - 1]
        return self._of_span(span, number - span.number)

    def positions(self, step: int, rank: int = 0) -> Integers:
        """Return the positions of the run that `rank` gets in `step`."""
        epoch = self.epoch_of(step)
        slots, number = epoch.slots, step - epoch.step
        result: Integers = slots.positions(number, rank) + epoch.position
        begin, end = slots.slice_of(number, rank)
        if end > slots.length:
            distinct = self.sources.stop == "first" or len(self.sources.samples) == 1
            if not distinct or slots.before + slots.length < slots.global_batch:
                first = number * slots.global_batch
                result = self._padded(epoch, number)[begin - first : end - first]
        return result

    def _padded(self, epoch: Epoch, number: int) -> Integers:
        """Return the last batch of an epoch, filled up with further samples.

        They come from the epoch, from its start on, and then from the next one, while any is not in the batch yet.
        """
        slots = epoch.slots
        begin, end = epoch.position + number * slots.global_batch, epoch.position + slots.length
        following = self.epoch(epoch.number + 1)
        chosen = list(range(begin, end))
        there = set(self._samples_at(np.arange(begin, end)))
        more = [(epoch.known, begin), (following.position, following.position + following.slots.length)]
        for first, last in more:
            for some in range(first, last, _AT_ONCE):
                numbers = np.arange(some, min(last, some + _AT_ONCE))
                for position, sample in zip(numbers.tolist(), self._samples_at(numbers), strict=True):
                    if len(chosen) == slots.global_batch:
                        return np.array(chosen, dtype=np.int64)
                    if sample not in there:
                        there.add(sample)
                        chosen.append(position)
        missing = slots.global_batch - len(chosen)  # all samples are in it
        again = epoch.known + np.arange(missing) % (end - epoch.known)
        return np.concatenate([np.array(chosen, dtype=np.int64), again])

    def _samples_at(self, positions: Integers) -> Iterator[tuple[int, int]]:
        draws = self.at(positions)
        return zip(draws.source.tolist(), draws.index.tolist(), strict=True)

    def position(self, step: int) -> int:
        """Return the position before `step`.

        All positions before it were returned or dropped.
        """
        epoch = self.epoch_of(step)
        return epoch.position + (step - epoch.step) * epoch.slots.global_batch

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return the samples at positions."""
        return self._order.at(positions)

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how many samples of each source are before a position."""
        return tuple(self._order.counts(position).tolist())

    def segment(self, step: int, global_batch: int, weights: tuple[int, ...] | None = None) -> RunSegment:
        """Return the segment that starts at a step.

        It has another global batch, or also other weights.
        """
        epoch, position = self.epoch_of(step), self.position(step)
        given, left = self.windows(step)
        begins_order = weights is not None or (self.sources.tail == "drop" and len(self.sources.samples) > 1)
        none = (0,) * len(self.sources.samples)
        return RunSegment(
            step,
            position,
            epoch.number,
            global_batch,
            self.segments[-1].weights if weights is None else weights,
            self.counts(position),
            epoch.first_step,
            epoch.first_position,
            (given or none) if begins_order else (),
            (left or none) if begins_order else (),
        )

    def windows(self, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the samples of each source before `step` and left in its epoch.

        Samples returned before a change of the order in this epoch are not counted.

        Both are empty between epochs, and where an epoch is so many steps.
        """
        epoch, position = self.epoch_of(step), self.position(step)
        if self.sources.epoch_steps is not None or position == epoch.first_position:
            return (), ()
        draws = self.counts(position)
        begins, ends = self._order.window_at(position)
        given = tuple(draw - begin for draw, begin in zip(draws, begins, strict=True))
        return given, tuple(end - draw for draw, end in zip(draws, ends, strict=True))


def _windows(
    begun: Sequence[RunSegment], samples: Sequence[int]
) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """Return each source's interrupted windows and the current one's end.

    Under `stop="all"` that is the draw by which each sample has come, under ``"first"`` the one before any repeats.
    Both are as many draws after the first of the epoch as there are samples. If the change came in the middle of a
        permuted part, only the end of the part has all of it.
    """
    opened: list[list[tuple[int, int]]] = [[] for _ in samples]
    until: list[int] = []
    for before, segment in pairwise(begun):
        goes_on = before.epoch == segment.epoch and until
        ends = []
        for source, count in enumerate(samples):
            draw = segment.draws[source]
            end = until[source] if goes_on else draw - segment.given[source] + count
            window = max(draw - segment.given[source], before.draws[source]), draw + segment.left[source]
            first, last = cut_to_round(*window, draw // count, count)
            if first < draw < last:
                opened[source].append((first, last))
                end = draw if first >= end else max(end, last)
            ends.append(end)
        until = ends
    return opened, until
