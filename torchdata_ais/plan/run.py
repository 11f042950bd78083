"""A whole run, with its changes, as a function from step to samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, override

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.changes import NO_CHANGES, Changes, Skip
from torchdata_ais.plan.mixture import DENOMINATOR
from torchdata_ais.plan.order import (
    Draws,
    EndlessOrder,
    MixedOrder,
    Opened,
    Order,
    Stop,
    Weights,
    Windows,
)
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.plan.steps import Slots, Tail, too_large

PLAN_VERSION = 2
"""Version of the function from position to sample; kept in states."""

Shuffle = Literal["samples", "runs"] | None
_RUN_BYTES = 8 << 20
_NO_END = 1 << 80
_AT_ONCE = 1 << 12  # positions that are looked up at a time, to fill a batch up


@dataclass(frozen=True)
class Sources:
    """Sources of a run and how to draw from them.

    Attributes:
        samples: How many samples each source has.
        mean_bytes: The mean size of a sample of each.
        weights: Rounded weights, of each source one, that sum to 65,536; empty for a single source.
        stop: When an epoch ends; see `MixedOrder`.
        shuffle: ``"samples"``, ``"runs"`` (adjacent samples of the stored order stay together), or None.
        run_bytes: How many bytes of adjacent samples, at most an eighth of a global batch.
        epoch_steps: Steps of an epoch; None: `stop` decides.
        tail: The use of the remainder of an epoch; see `Slots`.
        changes: Changes by step.
        excluded: ``(source, numbers)``: numbers of samples that are left out, ascending.
    """

    samples: tuple[int, ...]
    mean_bytes: tuple[float, ...] = ()
    weights: tuple[int, ...] = ()
    stop: Stop = "first"
    shuffle: Shuffle = None
    run_bytes: int = _RUN_BYTES
    epoch_steps: int | None = None
    tail: Tail = "short"
    changes: Changes = NO_CHANGES
    excluded: tuple[tuple[int, Integers], ...] = ()

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

    @property
    def batch_is_of_order(self) -> bool:
        """True if another global batch makes another order."""
        return self.epoch_steps is None and self.tail == "drop" and len(self.samples) > 1

    def weights_at(self, step: int) -> tuple[int, ...]:
        """Return the weights that hold at a step of the run."""
        stages = self.changes.stages
        number = bisect_right([begin for begin, _ in stages], step)
        return tuple(map(int, stages[number - 1][1])) if number else self.weights or (DENOMINATOR,)


@dataclass(frozen=True)
class RunSegment:
    """A part of a run with one global batch and fixed sources and weights.

    See `torchdata_ais.state.Segment`. `Run.segment` makes the next one.

    Attributes:
        step: Its first step.
        position: Its first position.
        epoch: The epoch of that position.
        global_batch: Positions a step, over all ranks.
        weights: Rounded weights.
        draws: How many samples of each source are before it.
        epoch_step: The first step of that epoch.
        epoch_position: The first position of that epoch.
        begins_order: Whether another order begins with it; else that of the segment before continues.
        opened: Windows of each source that were interrupted; see `Order`. Empty for none.
        until: The draw of each source at which the rest of the epoch ends; see `Windows.interrupted`.
    """

    step: int
    position: int
    epoch: int
    global_batch: int
    weights: tuple[int, ...]
    draws: tuple[int, ...]
    epoch_step: int | None = None
    epoch_position: int | None = None
    begins_order: bool = False
    opened: Opened = ()
    until: tuple[int, ...] = ()

    @property
    def begins_epoch(self) -> bool:
        """Return whether an epoch begins with it."""
        return self.epoch_position in (None, self.position)

    def beginning(self, windows: Windows | None, sources: Sources) -> RunSegment:
        """Return it as one that begins another order; `windows` are interrupted."""
        opened, until = windows.interrupted(sources.samples) if windows is not None else ((), ())
        return replace(self, begins_order=True, opened=opened, until=() if self.begins_epoch else until)


@dataclass(frozen=True)
class Epoch:
    """An epoch of a run.

    Attributes:
        number: Which one, from the beginning of the run.
        step: Its first step that this run knows.
        position: The position of that step.
        first_step: Its first step, at `first_position`.
        known: The first position of it that this run can look up.
        end: The step after its last.
        steps: How many of its steps are given.
    """

    number: int
    step: int
    position: int
    first_step: int
    first_position: int
    known: int
    end: int
    steps: int


@dataclass(frozen=True)
class _PartEpoch:
    """An epoch, or the rest of one after a segment has started in it.

    `step` and `position` are the first of `slots`, the steps left; the others are as in `Epoch`.
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


@dataclass(frozen=True)
class _Span:
    """Whole epochs of one length that follow each other."""

    number: int
    step: int
    position: int
    count: int
    slots: Slots


class _Part:
    """The steps of a run from a segment on, as if no change came after it.

    Args:
        order: That of the part before, which goes on; None: its own.
        skip: How its steps are skipped, or None.
        dropped: Positions of steps before that were skipped: no batch is filled up with them.
    """

    def __init__(
        self,
        sources: Sources,
        seed: int,
        segments: Sequence[RunSegment],
        *,
        ranks: int = 1,
        order: MixedOrder | EndlessOrder | None = None,
        skip: Skip | None = None,
        dropped: Sequence[range] = (),
        shares: tuple[int, ...] = (),
    ) -> None:
        self.shares = shares
        self.sources, self.ranks, self.skip, self.dropped = sources, ranks, skip, list(dropped)
        self.segments = list(segments)
        self.begin = self.segments[-1].step
        self.origin = _origin(self.segments)  # where the order that holds now begins
        self.order = order or _mixed_order(sources, seed, self.segments)
        self._first, self._spans = self._of_steps() if sources.epoch_steps is not None else self._of_windows()

    def _slots(self, length: int, before: int = 0) -> Slots:
        return Slots(
            length, self.segments[-1].global_batch, self.ranks, self.sources.tail, before, self.shares
        )

    def _of_steps(self) -> tuple[_PartEpoch | None, list[_Span]]:
        """Return epochs that are so many steps."""
        last, steps = self.segments[-1], self.sources.epoch_steps or 1
        number, done = divmod(last.step, steps)
        left = (steps - done) * last.global_batch
        whole = self._slots(steps * last.global_batch)
        begin = last.position if last.epoch_position is None or not done else last.epoch_position
        first = _PartEpoch(
            number,
            last.step,
            last.position,
            self._slots(left),
            last.step - done,
            begin,
            max(begin, self.origin.position),
        )
        return first, [_Span(number + 1, first.end, last.position + left, 1 << 62, whole)]

    def _of_windows(self) -> tuple[_PartEpoch | None, list[_Span]]:
        """Return the last segment's part of its first epoch, and later epochs."""
        last = self.segments[-1]
        assert isinstance(self.order, MixedOrder)
        number, begin, length = self.order.epoch_at(last.position)
        first, step, position = None, last.step, last.position
        inside = begin < position if last.epoch_position is None else not last.begins_epoch
        if inside and number == last.epoch:  # else nothing is left of it
            left = begin + length - position
            if self.sources.tail != "drop" or left >= last.global_batch:
                whole_begin = begin if last.epoch_position is None else last.epoch_position
                known = max(whole_begin, self.origin.position)
                first_step = step if last.epoch_step is None else last.epoch_step
                slots = self._slots(left, position - known)
                first = _PartEpoch(number, step, position, slots, first_step, whole_begin, known)
                step = first.end
            position, number = begin + length, number + 1
        spans = []
        for stretch in self.order.stretches:
            skipped = max(0, number - stretch.number)
            if skipped < stretch.count:
                slots = self._slots(stretch.length)
                spans.append(_Span(number, step, position, stretch.count - skipped, slots))
                step += spans[-1].count * len(slots)
                number, position = stretch.number + stretch.count, stretch.end
        return first, spans

    def shortest(self) -> int:
        """Return the positions of the shortest whole epoch."""
        return min(span.slots.length for span in self._spans if span.count > 1)

    @property
    def first_number(self) -> int:
        """The number of its first epoch."""
        return (self._first or self._of_span(self._spans[0], 0)).number

    def epoch_of(self, step: int) -> _PartEpoch:
        """Return the epoch of a step that is not before the last segment."""
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
    def _of_span(span: _Span, more: int) -> _PartEpoch:
        step = span.step + more * len(span.slots)
        position = span.position + more * span.slots.length
        return _PartEpoch(span.number + more, step, position, span.slots, step, position, position)

    def epoch(self, number: int) -> _PartEpoch:
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
            if not distinct or self.dropped or slots.before + slots.length < slots.global_batch:
                first = number * slots.global_batch
                result = self._padded(epoch, number)[begin - first : end - first]
        return result

    def _padded(self, epoch: _PartEpoch, number: int) -> Integers:
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
                    if sample not in there and not any(position in span for span in self.dropped):
                        there.add(sample)
                        chosen.append(position)
        missing = slots.global_batch - len(chosen)  # all samples are in it
        if self.dropped:
            return np.resize(np.array(chosen, dtype=np.int64), slots.global_batch)
        again = epoch.known + np.arange(missing) % (end - epoch.known)
        return np.concatenate([np.array(chosen, dtype=np.int64), again])

    def _samples_at(self, positions: Integers) -> Iterator[tuple[int, int]]:
        draws = self.order.at(positions)
        return zip(draws.source.tolist(), draws.index.tolist(), strict=True)

    def position(self, step: int) -> int:
        """Return the position before `step`: all before were returned or dropped."""
        epoch = self.epoch_of(step)
        return epoch.position + (step - epoch.step) * epoch.slots.global_batch

    def segment(self, step: int, global_batch: int, weights: tuple[int, ...] | None = None) -> RunSegment:
        """Return the segment of another batch, or weights, from a step on."""
        epoch, position = self.epoch_of(step), self.position(step)
        segment = RunSegment(
            step,
            position,
            epoch.number,
            global_batch,
            self.segments[-1].weights if weights is None else weights,
            tuple(self.order.counts(position).tolist()),
            epoch.first_step,
            epoch.first_position,
        )
        if weights is None and not self.sources.batch_is_of_order:
            return segment
        return segment.beginning(self.windows(step), self.sources)

    def windows(self, step: int) -> Windows | None:
        """Return a step's windows, or None where an epoch is so many steps."""
        if not isinstance(self.order, MixedOrder):
            return None
        return self.order.windows_at(self.position(step))


class Run:
    """The steps of a run: its segments, and the changes that come after them.

    Args:
        sources: The sources to draw from.
        seed: Any integer.
        segments: At least one; the first begins the run.
        ranks: How many ranks share each global batch.
        shares: Of the ranks in a global batch; see `Slots`.

    Example:
        >>> run = Run(Sources((10,), shuffle="samples"), 0, [RunSegment(0, 0, 0, 4, (1 << 16,), (0,))], ranks=2)
        >>> [run.positions(step, rank=0).tolist() for step in range(4)]
        [[0, 1], [4, 5], [8], [10, 11]]
        >>> run.epoch_of(3).number, sorted(run.at(range(10)).index.tolist()) == list(range(10))
        (1, True)
        >>> changed = Run.begun(Sources((10,), changes=Changes(batches=((1, 2),))), 0, 4)
        >>> [changed.positions(step).tolist() for step in range(5)]
        [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    """

    def __init__(
        self,
        sources: Sources,
        seed: int,
        segments: Sequence[RunSegment],
        *,
        ranks: int = 1,
        shares: tuple[int, ...] = (),
    ) -> None:
        self.sources, self.seed, self.ranks, self.shares = sources, seed, ranks, shares
        self.segments = list(segments)
        changes, last = sources.changes, self.segments[-1]
        breaks = {step for step in changes.breaks() if step > last.step}
        if sources.epoch_steps is None:
            breaks |= {step for step, _ in changes.stages if step > last.step}
        self._breaks = sorted(breaks)
        order = self._endless_order() if sources.epoch_steps is not None else None
        skip = changes.skip_at(last.step)
        self._parts = [
            _Part(sources, seed, self.segments, ranks=ranks, order=order, skip=skip, shares=shares)
        ]

    @classmethod
    def begun(cls, sources: Sources, seed: int, global_batch: int, ranks: int = 1) -> Self:
        """Return a run from its beginning.

        Args:
            sources: The sources to draw from.
            seed: Any integer.
            global_batch: That of the first step, if the changes name none.
            ranks: How many ranks share each global batch.
        """
        batch, weights = sources.changes.batch_at(0, global_batch), sources.weights_at(0)
        return cls(sources, seed, [RunSegment(0, 0, 0, batch, weights, (0,) * len(weights))], ranks=ranks)

    def _endless_order(self) -> EndlessOrder:
        """Return the order of a run whose epochs are so many steps."""
        sources, origin = self.sources, self.origin
        changes = sources.changes
        step, position = origin.step, origin.position
        stages: list[tuple[int, Weights]] = [(position, origin.weights)]
        breaks = [one for one in changes.breaks() if one > step] if changes.stages else []
        for begin, weights in changes.stages:
            if begin <= origin.step:
                continue
            while step < begin:
                following = breaks.pop(0) if breaks and breaks[0] < begin else begin
                if changes.skip_at(step) != "defer":
                    position += (following - step) * changes.batch_at(step, origin.global_batch)
                step = following
            if position == stages[-1][0]:
                stages.pop()
            stages.append((position, weights))
        limits = zip(changes.most, sources.samples, strict=False)
        most = [None if times is None else times * count for times, count in limits]
        return EndlessOrder(
            _orders(sources, self.seed, self.segments),
            stages,
            position=origin.position,
            draws=origin.draws,
            most=most,
        )

    @property
    def origin(self) -> RunSegment:
        """The segment that the order of the last one begins with."""
        return _origin(self.segments)

    def order_begin(self, step: int) -> RunSegment:
        """Return a segment that the order of a step can begin with.

        That is the last change of the order, or the beginning of the epoch if that is later.
        """
        origin = self._parts[self._part_of(step)].origin
        epoch = self.epoch_of(step)
        if self.sources.epoch_steps is not None or not origin.position or epoch.number == origin.epoch:
            return origin
        return RunSegment(
            epoch.first_step,
            epoch.first_position,
            epoch.number,
            self._parts[self._part_of(epoch.first_step)].segments[-1].global_batch,
            origin.weights,
            self.counts(epoch.first_position),
            epoch.first_step,
            epoch.first_position,
            begins_order=True,
            opened=origin.opened,
        )

    def _batches(self) -> list[int]:
        """Return the global batches from the last segment on."""
        last, later = self.segments[-1], self.sources.changes.batches
        return [last.global_batch, *(batch for step, batch in later if step > last.step)]

    # Parts

    def _next_part(self) -> bool:
        """Make the part after the last one; return whether there was one to make."""
        if len(self._parts) > len(self._breaks):
            return False
        before, step = self._parts[-1], self._breaks[len(self._parts) - 1]
        changes = self.sources.changes
        batch = changes.batch_at(step, before.segments[-1].global_batch)
        weights = None
        if self.sources.epoch_steps is None and any(one == step for one, _ in changes.stages):
            weights = self.sources.weights_at(step)
        skip = changes.skip_at(step)
        if before.skip == "defer":
            segment = replace(before.segment(before.begin, batch, weights), step=step)
            if self.sources.epoch_steps is not None:
                segment = self._after_deferred(segment)
        else:
            segment = before.segment(step, batch, weights)
        order = None if segment.begins_order else before.order
        segments = [before.segments[0], before.origin, segment]
        dropped = before.dropped
        if before.skip == "drop":
            dropped = [*dropped, range(before.segments[-1].position, segment.position)]
        part = _Part(
            self.sources,
            self.seed,
            segments,
            ranks=self.ranks,
            order=order,
            skip=skip,
            dropped=dropped,
            shares=self.shares,
        )
        self._parts.append(part)
        return True

    def _after_deferred(self, segment: RunSegment) -> RunSegment:
        """Return the segment after deferred steps, for epochs of so many steps."""
        number, done = divmod(segment.step, self.sources.epoch_steps or 1)
        same = number == segment.epoch
        return replace(
            segment,
            epoch=number,
            epoch_step=segment.step - done,
            epoch_position=segment.epoch_position if same else segment.position,
        )

    def _part_of(self, step: int) -> int:
        """Return the number of the part that a step is in."""
        if step < self._parts[0].begin:
            raise IndexError(
                f"step {step} is before step {self._parts[0].begin}, from which on this run is known"
            )
        if not self._breaks:  # as nearly always
            return 0
        while self._end_of(len(self._parts) - 1) <= step and self._next_part():
            pass
        return bisect_right([part.begin for part in self._parts], step) - 1

    def _end_of(self, number: int) -> int:
        """Return the step at which a part ends."""
        return self._breaks[number] if number < len(self._breaks) else _NO_END

    def _part_at(self, position: int) -> _Part:
        """Return the part whose order a position is of."""
        while self._parts[-1].segments[-1].position <= position and self._next_part():
            pass
        return self._parts[bisect_right([part.segments[-1].position for part in self._parts], position) - 1]

    def _parts_of(self, epoch: Epoch) -> Iterator[tuple[_PartEpoch, int, int]]:
        """Yield the parts of an epoch, with first step and the one after."""
        number, step, last = self._part_of(epoch.step), epoch.step, min(epoch.end, self.last_step)
        while step < last:
            part, end = self._parts[number], min(self._end_of(number), last)
            if part.skip is None:
                yield part.epoch_of(step), step, end
            number, step = number + 1, end
            if step < last:
                self._part_of(step)

    # Epochs

    def epoch_of(self, step: int) -> Epoch:
        """Return the epoch of a step that is not before the last segment."""
        number = self._part_of(step)
        while self._parts[number].skip == "defer":  # its samples are those of the steps after it
            step = self._end_of(number)
            number = self._part_of(step)
        here = self._parts[number].epoch_of(step)
        first, first_epoch = number, here
        while first and self._parts[first].begin > here.first_step:
            first -= 1
            before = self._parts[first]
            if before.skip != "defer":
                first_epoch = before.epoch_of(max(before.begin, here.first_step))
        end = self._epoch_end(number, here)
        return Epoch(
            here.number,
            first_epoch.step,
            first_epoch.position,
            here.first_step,
            here.first_position,
            first_epoch.known,
            end,
            self.count_steps(here.first_step, end),
        )

    def _epoch_end(self, number: int, here: _PartEpoch) -> int:
        """Return the step after an epoch, which is that of a step in a part."""
        if self.sources.epoch_steps is not None:
            return (here.number + 1) * self.sources.epoch_steps
        end = here.end
        while self._end_of(number) < end or self._parts[number].skip == "defer":
            step = self._end_of(number)
            number = self._part_of(step)
            following = self._parts[number].epoch_of(step)
            if following.number != here.number:
                return step
            end = following.end
        return end

    def epoch(self, number: int) -> Epoch:
        """Return an epoch by its number."""
        if self.sources.epoch_steps is not None:
            first = max(number * self.sources.epoch_steps, self._parts[0].begin)
            found = self.epoch_of(first)
        else:
            here = 0
            while True:
                part = self._parts[here].epoch(max(number, self._parts[here].first_number))
                if (
                    part.number == number
                    and part.step < self._end_of(here)
                    and self._parts[here].skip != "defer"
                ):
                    found = self.epoch_of(part.step)
                    break
                here += 1
                if here == len(self._parts) and not self._next_part():
                    raise IndexError(f"epoch {number} is before epoch {self._parts[0].first_number}")
        if found.number != number:
            raise IndexError(f"epoch {number} is before epoch {found.number}")
        return found

    def given_steps(self, begin: int, end: int) -> Sequence[int]:
        """Return the steps from `begin` to before `end` that are given."""
        return self.sources.changes.given_steps(begin, max(begin, min(end, self.last_step)))

    def next_given(self, step: int) -> int:
        """Return the first step from `step` on that is not skipped."""
        return self.sources.changes.next_given(step)

    def count_steps(self, begin: int, end: int) -> int:
        """Return how many of the steps from `begin` to before `end` are given."""
        end = min(end, self.last_step)
        return max(0, end - begin) - self.sources.changes.skipped(begin, end)

    @cached_property
    def last_step(self) -> int:
        """The first step for which there are no samples, or a very large one."""
        order = self._parts[0].order
        if not isinstance(order, EndlessOrder) or not order.is_limited:
            return _NO_END
        number = 0
        while True:
            self._part_of(self._parts[number].begin)
            part, end = self._parts[number], self._end_of(number)
            batch, position = part.segments[-1].global_batch, part.segments[-1].position
            last = part.begin + max(0, order.end - position) // batch
            if part.skip != "defer" and last < end:
                return last
            number += 1
            self._part_of(end)

    def check_step(self, step: int) -> None:
        """Raise `UsageError` if there are no samples for a step."""
        if step >= self.last_step:
            raise UsageError.at(
                f"step {step} has no samples: each source of it has come max_repeats times",
                todo=f"end the run before step {self.last_step}, or give another source a weight",
            )

    def length(self, epoch: Epoch) -> int:
        """Return how many positions an epoch gives; none counts twice."""
        return sum(
            min(here.slots.length, (end - here.step) * here.slots.global_batch)
            - (begin - here.step) * here.slots.global_batch
            for here, begin, end in self._parts_of(epoch)
        )

    def given(self, epoch: Epoch, rank: int = 0) -> int:
        """Return how many positions `rank` gets in an epoch."""
        count = 0
        for here, begin, end in self._parts_of(epoch):
            count += (end - begin - 1) * here.slots.size(begin - here.step, rank)
            count += here.slots.size(end - 1 - here.step, rank)
        return count

    def repeated(self, epoch: Epoch, rank: int | None = None) -> int:
        """Return how many positions an epoch repeats, for `rank` or for all."""
        return sum(here.slots.repeated(rank) for here, _, end in self._parts_of(epoch) if end == here.end)

    def checked(self) -> Self:
        """Return this run if each epoch has at least one whole global batch.

        Raises:
            UsageError: One has none, names both numbers; or ranks are more than the samples of a global batch.
        """
        last = self.segments[-1]
        batches = self._batches()
        shortest = self._parts[0].shortest()
        if self.sources.epoch_steps is None and shortest < max(batches):
            raise too_large(max(batches), shortest)
        for batch in batches:
            Slots(batch, batch, self.ranks, shares=self.shares)
        for begin, end, how in self.sources.changes.skips if self.sources.epoch_steps is None else ():
            if how == "drop" and begin >= last.step:
                self._check_skip(begin, end)
        return self

    def _check_skip(self, begin: int, end: int) -> None:
        """Raise `UsageError` if skipped steps are all those of an epoch."""
        epoch = self.epoch_of(begin)
        while epoch.steps and epoch.end < end:
            epoch = self.epoch(epoch.number + 1)
        if not epoch.steps:
            raise UsageError.at(
                f"skip of steps {begin} to {end} leaves epoch {epoch.number} without a step",
                todo="skip fewer steps, or begin behind them: start_step=",
            )

    def smallest_slice(self) -> int:
        """Return the fewest positions of a rank in a whole global batch."""
        batches = self._batches()
        slots = Slots(min(batches), min(batches), self.ranks, shares=self.shares)
        return min(slots.size(0, rank) for rank in (range(self.ranks) if self.shares else (0,)))

    def never_drawn(self) -> list[int]:
        """Return sources with a weight at the end that no epoch draws from."""
        order = self._parts[0].order
        if not isinstance(order, MixedOrder) or self.sources.changes.stages:
            return []
        last = order.stretches[-1]
        return [source for source in order.drawn_from if not last.each[source]]

    # Steps

    def positions(self, step: int, rank: int = 0) -> Integers:
        """Return the positions of the run that `rank` gets in `step`.

        Raises:
            UsageError: Every source has come as often as the changes allow.
        """
        self.check_step(step)
        return self._parts[self._part_of(step)].positions(step, rank)

    def size(self, step: int, rank: int = 0) -> int:
        """Return how many positions `rank` gets in `step`."""
        here = self._parts[self._part_of(step)].epoch_of(step)
        return here.slots.size(step - here.step, rank)

    def steps_before(self, step: int, rank: int) -> Iterator[tuple[int, list[Integers]]]:
        """Yield the steps of an epoch before `step`, the nearest first.

        Each comes with the slices of all ranks, that of `rank` first. Steps before the last segment of the run are
        counted in its first global batches.
        """
        ranks = [(rank + other) % self.ranks for other in range(self.ranks)]
        epoch = self.epoch_of(step)
        for number in reversed(self.given_steps(epoch.step, step)):
            yield number, [self.positions(number, one) for one in ranks]
        slots = self._parts[self._part_of(epoch.step)].epoch_of(epoch.step).slots
        number, end = epoch.step - 1, epoch.position
        while end > epoch.known:
            begin = max(end - slots.global_batch, epoch.known)
            yield number, [part for one in ranks if len(part := slots.part(begin, end, one))]
            number, end = number - 1, begin

    def position(self, step: int) -> int:
        """Return the position before `step`: all before were returned or dropped."""
        part = self._parts[self._part_of(step)]
        return part.position(part.begin if part.skip == "defer" else step)

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return the samples at positions."""
        wanted = np.asarray(positions, dtype=np.int64)
        if isinstance(self._parts[0].order, EndlessOrder) or not self._breaks or not wanted.size:
            return self._parts[0].order.at(wanted)
        self._part_at(int(wanted.max()))
        begins = [part.segments[-1].position for part in self._parts]
        found = Draws(*(np.empty_like(wanted) for _ in range(3)))
        numbers = np.searchsorted(begins, wanted, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            draws = self._parts[max(number, 0)].order.at(wanted[here])
            found.source[here], found.index[here], found.draw[here] = draws.source, draws.index, draws.draw
        return found

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how many samples of each source are before a position."""
        order = self._parts[0].order
        order = order if isinstance(order, EndlessOrder) else self._part_at(position).order
        return tuple(order.counts(position).tolist())

    def windows(self, step: int) -> Windows | None:
        """Return a step's windows, or None where an epoch is so many steps."""
        part = self._parts[self._part_of(step)]
        return part.windows(part.begin if part.skip == "defer" else step)

    def segment(self, step: int, global_batch: int, weights: tuple[int, ...] | None = None) -> RunSegment:
        """Return the segment of another batch, or weights, from a step on."""
        return self._parts[self._part_of(step)].segment(step, global_batch, weights)


class MicroRun(Run):
    """A run whose steps are given in parts, the micro-batches.

    Part `m` of step `s` has the number ``s * parts + m``; so have all steps that are taken and returned here.

    Args:
        whole: The run.
        parts: Parts of a step.

    Example:
        >>> run = MicroRun(Run.begun(Sources((10,)), 0, 5), 2)
        >>> [run.positions(number).tolist() for number in range(4)], run.epoch_of(3).end
        ([[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]], 4)
    """

    def __init__(self, whole: Run, parts: int) -> None:
        self.sources, self.seed = whole.sources, whole.seed
        self.ranks, self.segments = whole.ranks, whole.segments
        self._whole, self._count = whole, parts

    @override
    def epoch_of(self, step: int) -> Epoch:
        epoch, parts = self._whole.epoch_of(step // self._count), self._count
        return replace(
            epoch,
            step=epoch.step * parts,
            first_step=epoch.first_step * parts,
            end=epoch.end * parts,
            steps=epoch.steps * parts,
        )

    @override
    def given_steps(self, begin: int, end: int) -> Sequence[int]:
        steps = self._whole.given_steps(begin // self._count, -(-end // self._count))
        if isinstance(steps, range):
            return range(max(begin, steps.start * self._count), min(end, steps.stop * self._count))
        numbers = (step * self._count + part for step in steps for part in range(self._count))
        return [number for number in numbers if begin <= number < end]

    @override
    def given(self, epoch: Epoch, rank: int = 0) -> int:
        return self._whole.given(self._whole.epoch_of(epoch.step // self._count), rank)

    @override
    def positions(self, step: int, rank: int = 0) -> Integers:
        number, part = divmod(step, self._count)
        return self._part_of_slice(self._whole.positions(number, rank), part)

    @override
    def size(self, step: int, rank: int = 0) -> int:
        return len(self.positions(step, rank))

    @override
    def steps_before(self, step: int, rank: int) -> Iterator[tuple[int, list[Integers]]]:
        ranks = [(rank + other) % self.ranks for other in range(self.ranks)]
        for number in range(step - 1, step - step % self._count - 1, -1):
            yield number, [self.positions(number, one) for one in ranks]
        for number, slices in self._whole.steps_before(step // self._count, rank):
            for part in reversed(range(self._count)):
                yield number * self._count + part, [self._part_of_slice(one, part) for one in slices]

    @override
    def at(self, positions: npt.ArrayLike) -> Draws:
        return self._whole.at(positions)

    def _part_of_slice(self, positions: Integers, part: int) -> Integers:
        """Return a part of a rank's positions; some come twice if parts are more."""
        begin, end = part * len(positions) // self._count, (part + 1) * len(positions) // self._count
        if begin == end:
            begin = min(begin, len(positions) - 1)
            end = begin + 1
        return positions[begin:end]


def _origin(segments: Sequence[RunSegment]) -> RunSegment:
    """Return the segment that the order of the last one begins with."""
    return next((one for one in reversed(segments) if one.begins_order), segments[0])


def _orders(sources: Sources, seed: int, segments: Sequence[RunSegment]) -> list[Order]:
    """Return the order of each source.

    How many adjacent samples stay together is the same over the whole run, and for any topology.
    """
    batch, found = segments[0].global_batch, []
    opened = _origin(segments).opened
    for number, samples in enumerate(sources.samples):
        mean = sources.mean_bytes[number] if sources.mean_bytes else 1.0
        adjacent = max(1, min(int(sources.run_bytes / max(mean, 1.0)), batch // 8))
        found.append(
            Order(
                samples,
                seed,
                shuffle=sources.shuffle is not None,
                run=adjacent if sources.shuffle == "runs" else 1,
                source=number,
                opened=opened[number] if opened else (),
            )
        )
    return found


def _mixed_order(sources: Sources, seed: int, segments: Sequence[RunSegment]) -> MixedOrder:
    """Return the order, from its last change, of epochs that end by `stop`."""
    origin = _origin(segments)
    return MixedOrder(
        _orders(sources, seed, segments),
        origin.weights,
        sources.stop,
        position=origin.position,
        draws=origin.draws,
        number=origin.epoch,
        until=None if origin.begins_epoch else origin.until,
        whole=segments[-1].global_batch if sources.tail == "drop" else 1,
    )
