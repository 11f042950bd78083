"""A whole run as a function of the step: which samples each rank gets, over all epochs and changes on the way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy.typing as npt
from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.plan.order import Draws, MixedOrder, Order, Stop
from torchdata_ais.plan.slots import Slots, Tail, too_large

PLAN_VERSION = 1
"""Which function of the position the order is; kept in states."""

Shuffle = Literal["samples", "runs"] | None
_RUN_BYTES = 8 << 20


@dataclass(frozen=True)
class Sources:
    """What is drawn from, and how.

    Attributes:
        samples: How many samples each source has.
        mean_bytes: The mean size of a sample of each.
        schedule: ``(from_position, weights)``: rounded weights, of each source one, that sum to 65,536.
        stop: When an epoch ends; see `MixedOrder`.
        shuffle: ``"samples"``, ``"runs"`` (neighbours in the stored order stay together), or None.
        run_bytes: How many bytes of neighbours, at most an eighth of a global batch.
        epoch_steps: Steps of an epoch; None: `stop` decides.
        tail: What becomes of the remainder of an epoch; see `Slots`.
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
    """A part of a run in which global batch, sources and weights are the same; see `torchdata_ais.state.Segment`."""

    step: int
    position: int
    epoch: int
    global_batch: int
    weights: tuple[int, ...]
    draws: tuple[int, ...]


@dataclass(frozen=True)
class Epoch:
    """An epoch, or what a segment has of one.

    Attributes:
        number: Which one, from the beginning of the run.
        step: Its first step.
        position: Its first position.
        slots: Its steps.
    """

    number: int
    step: int
    position: int
    slots: Slots

    @property
    def end(self) -> int:
        """The step after its last."""
        return self.step + len(self.slots)


class Run:
    """The steps of a run.

    Args:
        sources: What is drawn from.
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
        self._orders = [
            Order(samples, seed, shuffle=sources.shuffle is not None, run=self._run_of(number), source=number)
            for number, samples in enumerate(sources.samples)
        ]
        origin = self.segments[0]  # where the weights that hold now began
        self._order = self._order_from(origin.position, origin.weights, origin.draws)
        for before, segment in pairwise(self.segments):
            # A schedule that was changed may come to the same weights, and have drawn otherwise before.
            if before.weights != segment.weights or self.counts(segment.position) != segment.draws:
                origin = segment
                self._order = self._order_from(origin.position, origin.weights, origin.draws)
        given = (sources.epoch_steps or 1) * self.segments[-1].global_batch
        self._length = self._order_from(0, origin.weights, None).length or given
        self._whole = self._slots(self._length)
        self._first = self._begun(origin)

    @classmethod
    def begun(cls, sources: Sources, seed: int, global_batch: int, ranks: int = 1) -> Self:
        """Return a run from its beginning."""
        weights = sources.weights_at(0)
        return cls(
            sources, seed, [RunSegment(0, 0, 0, global_batch, weights, (0,) * len(weights))], ranks=ranks
        )

    def _run_of(self, source: int) -> int:
        """Return how many neighbours stay together: the same over the whole run, and for any topology."""
        if self.sources.shuffle != "runs":
            return 1
        mean = self.sources.mean_bytes[source] if self.sources.mean_bytes else 1.0
        return max(1, min(int(self.sources.run_bytes / max(mean, 1.0)), self.segments[0].global_batch // 8))

    def _order_from(
        self, position: int, weights: tuple[int, ...], draws: tuple[int, ...] | None
    ) -> MixedOrder:
        later = [one for one in self.sources.schedule if one[0] > position]
        stop: Stop = "never" if self.sources.epoch_steps is not None else self.sources.stop
        schedule = [(position, weights), *later]
        return MixedOrder(self._orders, schedule, stop, position=position, draws=draws)

    def _slots(self, length: int) -> Slots:
        return Slots(length, self.segments[-1].global_batch, self.ranks, self.sources.tail)

    def _begun(self, origin: RunSegment) -> Epoch:
        """Return what the last segment has of the epoch that it begins in."""
        last, steps = self.segments[-1], self.sources.epoch_steps
        if steps is not None:
            number, left = last.step // steps, (steps - last.step % steps) * last.global_batch
        else:
            number, left = origin.epoch, origin.position + (self._order.length or 0) - last.position
            if left <= 0:
                more, into = divmod(-left, self._length)
                number, left = number + 1 + more, self._length - into
        if self.sources.tail == "drop" and left < min(last.global_batch, self._length):
            return Epoch(number + 1, last.step, last.position + left, self._whole)
        return Epoch(number, last.step, last.position, self._slots(left))

    def checked(self) -> Self:
        """Return this run, if an epoch of it has at least one whole global batch.

        Raises:
            UsageError: It has none; names both numbers.
        """
        batch = self.segments[-1].global_batch
        if self._length < batch:
            raise too_large(batch, self._length)
        return self

    def epoch_of(self, step: int) -> Epoch:
        """Return the epoch that a step belongs to; of those before the last segment nothing is known here."""
        first = self._first
        if step < first.step:
            raise IndexError(f"step {step} lies before step {first.step}, from which on this run is known")
        if step < first.end:
            return first
        whole, _ = divmod(step - first.end, len(self._whole))
        begin = first.position + first.slots.length + whole * self._length
        return Epoch(first.number + 1 + whole, first.end + whole * len(self._whole), begin, self._whole)

    def epoch(self, number: int) -> Epoch:
        """Return an epoch by its number."""
        first = self._first
        if number < first.number:
            raise IndexError(f"epoch {number} lies before epoch {first.number}")
        more = number - first.number
        return first if not more else self.epoch_of(first.end + (more - 1) * len(self._whole))

    def positions(self, step: int, rank: int = 0) -> Integers:
        """Return the positions of the run that `rank` gets in `step`."""
        epoch = self.epoch_of(step)
        result: Integers = epoch.slots.positions(step - epoch.step, rank) + epoch.position
        return result

    def position(self, step: int) -> int:
        """Return where the run stands before `step`: all positions below were given out, or dropped."""
        epoch = self.epoch_of(step)
        return epoch.position + (step - epoch.step) * epoch.slots.global_batch

    def at(self, positions: npt.ArrayLike) -> Draws:
        """Return the samples at positions."""
        return self._order.at(positions)

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how many samples of each source stand before a position."""
        return tuple(self._order.counts(position).tolist())
