"""Epochs of a pipe that reads by a plan."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, cast

from typing_extensions import override

from torchdata_ais._util.arguments import check_number, whole_number
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.index import Schedule
from torchdata_ais.loaders.engine import EngineOptions, Step
from torchdata_ais.loaders.epoch_runner import EpochOptions, EpochRunner, another_epoch
from torchdata_ais.loaders.rank_setup import RankSetup
from torchdata_ais.loaders.state import check_plan_state, check_same
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.planned.batches import SlotBatcher, not_steps
from torchdata_ais.pipes.planned.stage import Share, Task
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import PLAN_VERSION, Epoch, MicroRun, Run, RunSegment, Sources
from torchdata_ais.plan.changes import Skip
from torchdata_ais.plan.order import Opened, Windows
from torchdata_ais.reading.planned import PlannedData
from torchdata_ais.state import EpochBegin, PlanState, Segment, SourceCounts, damaged, packed

_log = logging.getLogger("torchdata_ais")
_MOST_BATCH = 1 << 31
ALLOWED = ("weights", "sources", "batch", "schedule")
"""Changes at a resume that `allow=` permits."""


@dataclass
class RunUnderWay:
    """Batches yielded so far, of a run over all ranks.

    Attributes:
        given: Its seed, and options that override those of `data`.
        epoch_steps: Steps of an epoch, as given.
        workers: Of each rank.
        batch: Samples of a rank's batch, where the pipe has it.
        step: Global batches given out, and steps skipped.
        schedule: Changes by step that took the place of those given, from the last segment on.
    """

    data: PlannedData
    given: EpochOptions
    epoch_steps: int | None
    meeting: RankSetup
    workers: int
    batch: int | None
    step: int = 0
    schedule: Schedule | None = None
    _coming: tuple[int, Schedule] | None = None
    _run: Run | None = None
    _segments: list[RunSegment] = field(default_factory=list)
    _earlier: dict[str, int] = field(default_factory=dict)  # digests and samples of a state's sources

    def __post_init__(self) -> None:
        check_number(self.given.global_batch, 1, "global_batch", optional=True)
        self.data.check(self.epoch_steps, self.given.tail)

    def order(self) -> str:
        """Return in words how the order is made."""
        return self.data.order(self.epoch_steps, self.given.tail)

    @property
    def changes_by_step(self) -> Schedule:
        """The schedule that holds now."""
        return self.given.schedule if self.schedule is None else self.schedule

    def global_batch(self) -> int:
        """Return how many samples all ranks take together in the first step."""
        ranks, first = self.meeting.world.size, dict(self.given.schedule.batches).get(0)
        if first and self.given.global_batch not in (None, first):
            raise UsageError.at(
                f"global_batch={self.given.global_batch}, and the schedule begins with {first}",
                todo="leave one out",
            )
        if first:
            return first
        if self.given.global_batch is not None:
            return whole_number(self.given.global_batch, "global_batch", 1, _MOST_BATCH)
        if self.batch is None and ranks * self.workers > 1:
            raise UsageError.at(
                f"{ranks} ranks of {self.workers} workers share batches, and nothing says what a batch is",
                todo="put .batched(n) below .read_samples(), or pass global_batch= to ais_loader",
            )
        return (self.batch or 1) * ranks * self.given.micro_batches

    def run(self) -> Run:
        """Return the run at its current position."""
        if self._run is None:
            sources = self._run_sources()
            if not self._segments:
                weights = sources.weights_at(0)
                none = (0,) * len(weights)
                self._segments = [RunSegment(0, 0, 0, self.global_batch(), weights, none, 0, 0)]
            self._run = self._run_of(sources, self._segments)
            for source in self._run.never_drawn():
                _log.warning(
                    "source %d of the mixture has a weight and gives no sample: an epoch is too short for it. "
                    'Raise its weight, use stop="all", or say epoch_steps=',
                    source,
                )
        return self._run

    def _run_of(self, sources: Sources, segments: list[RunSegment]) -> Run:
        """Return a run of some segments, or raise `UsageError`."""
        ranks, shares = self.meeting.world.size, self.given.rank_weights
        if shares and len(shares) != ranks:
            raise UsageError.at(
                f"rank_weights= has {len(shares)} numbers, and there are {ranks} ranks",
                todo="give one for each rank",
            )
        run = Run(sources, self.given.seed, segments, ranks=ranks, shares=shares).checked()
        if run.smallest_slice() < self.given.micro_batches:
            raise UsageError.at(
                f"micro_batches={self.given.micro_batches}, and a rank has {run.smallest_slice()} samples of a step",
                todo="use a larger global batch, or fewer micro-batches",
            )
        return run

    def _names(self) -> list[str]:
        """Return the digests of all sources of the run, removed ones included."""
        return list(dict.fromkeys([*self._earlier, *self.data.digests()]))

    def places(self) -> list[int | None]:
        """Return each run source's index in the mixture; None for removed ones."""
        now = self.data.digests()
        return [now.index(digest) if digest in now else None for digest in self._names()]

    def _run_sources(self) -> Sources:
        """Return the sources of the run, numbered as in the run."""
        sources = self.data.sources_with(self.epoch_steps, self.given.tail)
        places, schedule = self.places(), self.changes_by_step
        earlier = list(self._earlier.values())
        schedule.check(len(sources.samples), sources.epoch_steps, sources.stop)
        mean = sources.mean_bytes or (1.0,) * len(sources.samples)
        weights = tuple(0 if place is None else sources.weights[place] for place in places)
        return replace(
            sources,
            samples=tuple(
                earlier[number] if place is None else sources.samples[place]
                for number, place in enumerate(places)
            ),
            mean_bytes=tuple(1.0 if place is None else mean[place] for place in places),
            weights=weights,
            changes=schedule.changes(weights, places),
            excluded=self.data.excluded(schedule),
        )

    def epoch(self) -> Epoch:
        """Return the epoch that the next batch is of."""
        return self.run().epoch_of(self.step)

    def begin_of(self, number: int) -> int:
        """Return the first step of an epoch, if it is in the known part."""
        last = self._segments[-1].step if self._segments else 0
        known = self.run().epoch_of(last)
        if number < known.number or (number == known.number and known.first_step < last):
            raise UsageError.at(
                f"epoch {number} begins before the change at the resume, from which on this run is known",
                todo="set a later epoch, or begin a run: a loader without load_state_dict()",
            )
        epoch = self.run().epoch(number)
        if epoch.position >= 1 << 61:
            raise UsageError.at(
                f"epoch {number} lies beyond what can be counted", todo="begin with an earlier one"
            )
        return epoch.step

    def seen(self) -> tuple[int, ...]:
        """Return how many samples of each index of the mixture were drawn."""
        counts = self.run().counts(self.run().position(self.step))
        now = [number for number, place in enumerate(self.places()) if place is not None]
        return tuple(counts[number] for number in now)

    def state(self) -> PlanState:
        """Return where the run is: after the batch that was given out last."""
        run, epoch, segments = self.run(), self.epoch(), self._needed_segments()
        return PlanState(
            plan=PLAN_VERSION,
            sources=bytes.fromhex("".join(self._names())),
            weights=self.data.weights_digest(),
            schedule=self.given.schedule.digest() if self.given.schedule else "",
            changes=self._changes_text(),
            order=self.order(),
            seed=self.given.seed,
            segments=[None if one is None else _saved(one) for one in segments],
            step=self.step,
            epoch=_begin(epoch),
            counts=self._counts(run, run.windows(self.step)),
        )

    def _counts(self, run: Run, windows: Windows | None) -> SourceCounts:
        """Return the numbers of the sources for a state."""
        samples = packed(run.sources.samples)
        removed = [number for number, place in enumerate(self.places()) if place is None]
        if windows is None:
            draws = run.counts(run.position(self.step))
            return SourceCounts(samples, packed(draws), packed(run.origin.draws), removed=removed)
        left = [end - draw for end, draw in zip(windows.ends, windows.draws, strict=True)]
        return SourceCounts(
            samples,
            packed(windows.draws),
            packed(windows.begins),
            packed(left),
            packed(windows.until) if windows.until else b"",
            [
                [packed([begin for begin, _ in one]), packed([end for _, end in one])]
                for one in zip_longest(*windows.opened, fillvalue=(0, 0))
            ],
            removed,
        )

    def _changes_text(self) -> str:
        """Return the schedules that took the place of the given one, for a state."""
        if self.schedule is None and self._coming is None:
            return ""
        step, coming = self._coming or (None, None)
        shown = [None if one is None else one.to_json() for one in (self.schedule, coming)]
        return json.dumps([shown[0], step, shown[1]], separators=(",", ":"))

    def _needed_segments(self) -> list[RunSegment | None]:
        """Return the segments that say what comes; see `PlanState`."""
        first, last = self._segments[0], self._segments[-1]
        if last is first:
            return [first]
        origin = self.run().order_begin(self.step)
        goes_on = not last.begins_order and (last.step > origin.step or origin in self._segments)
        begin = origin if origin.begins_order else None
        return [first, begin, last] if goes_on else [first, begin]

    def change_at(self, step: int, schedule: Schedule) -> None:
        """Let another schedule hold from a step on that has not come."""
        copy(self)._change(step, schedule)  # raises where it cannot be
        self._coming = step, schedule
        self.adopt()

    def adopt(self) -> bool:
        """Take a schedule whose step has come; return whether there was one."""
        if self._coming is None or self.run().next_given(self.step) < self._coming[0]:
            return False
        here, (step, schedule) = self.step, self._coming
        self._change(step, schedule)
        self.step = max(here, step)
        return True

    def steps_left(self, number: int) -> int:
        """Return how many steps of an epoch are left, 0 after its end."""
        here = self.epoch()
        return self.run().count_steps(self.step, here.end) if here.number == number else 0

    def _change(self, step: int, schedule: Schedule) -> None:
        before, self.step, self._coming = self.changes_by_step, step, None
        state, run = self.state(), self.run()
        self.schedule = schedule.since(step, state.epoch.step)
        new_order = (before.weights, before.max_repeats) != (schedule.weights, schedule.max_repeats)
        sources = self._run_sources()
        self._segments = _changed_segments(
            state, sources, self.global_batch(), self._segments[0], None if new_order else run
        )
        self._run = self._run_of(sources, self._segments)

    def load(self, state: PlanState, allow: Collection[str]) -> None:
        """Resume at `state`; an allowed change starts a new segment.

        Raises:
            StateError: Another plan, seed, order; or other sources, weights or global batch, and that is not allowed.
        """
        check_same("the plan's version", state.plan, PLAN_VERSION, "resume with the version that took it")
        check_same("the seed", state.seed, self.given.seed, "pass the same seed=")
        check_same("the order", state.order, self.order(), "build the pipe as it was")
        loaded = copy(self)
        loaded._load(state, allow)  # an error leaves this run as it was
        vars(self).update(vars(loaded))

    def _load(self, state: PlanState, allow: Collection[str]) -> None:
        now = self.data.digests()
        there = [digest for number, digest in enumerate(state.digests) if number not in state.counts.removed]
        changed = set()
        if set(there) != set(now):
            _allowed("sources", f"{len(there)} sources, and this pipe others: {_others(there, now)}", allow)
            changed.add("sources")
        self._earlier = dict(zip(state.digests, state.samples, strict=True))
        self.schedule, coming = _schedules_in(state.changes)
        given = self.given.schedule.digest() if self.given.schedule else ""
        if given != state.schedule:
            _allowed("schedule", "another schedule" if state.schedule else "no schedule", allow)
            changed.add("schedule")
        elif "sources" in changed and any(
            one and one.names_sources for one in (self.schedule, coming and coming[1])
        ):
            _allowed("schedule", "a schedule of set_schedule() for other sources", allow)
            changed.add("schedule")
        if "schedule" in changed:
            self.schedule = None
        sources = self._run_sources()
        self._segments = _segments(state, sources)
        last = self._segments[-1]
        if not changed and state.weights != self.data.weights_digest():
            _allowed("weights", f"other weights, and this pipe {sources.weights} of 65,536", allow)
            changed.add("weights")
        batch = self.global_batch()
        expected = sources.changes.batch_at(last.step, batch)
        if "schedule" not in changed and expected != last.global_batch:
            batch = expected
            _allowed("batch", f"a global batch of {last.global_batch}, and this loader {batch}", allow)
            changed.add("batch")
        self._run, self.step = None, state.step
        self._coming = None if "schedule" in changed else coming
        if changed:
            before = None if changed - {"batch"} else Run(sources, self.given.seed, self._segments)
            self._segments = _changed_segments(state, sources, batch, self._segments[0], before)
            self.run()  # raises where that cannot be
            return
        run = self.run()
        epoch = run.epoch_of(state.step)
        saved = (state.position, state.epoch, state.counts)
        if saved != (run.position(state.step), _begin(epoch), self._counts(run, run.windows(state.step))):
            raise damaged("its numbers are not those of its step")


def _changed_segments(
    state: PlanState, sources: Sources, batch: int, first: RunSegment, run: Run | None
) -> list[RunSegment]:
    """Return the segments after a change at a state.

    `sources` are those from now on, `batch` is the global batch before any entry of their schedule, `first` the segment
    that the run began with. `run` is the run before, if the change is of the batch alone.
    """
    scheduled = sources.epoch_steps is not None and (sources.changes.stages or sources.changes.most)
    begins_order = run is None or bool(scheduled) or sources.batch_is_of_order
    origin = None if run is None or begins_order else run.order_begin(state.step)
    segment = RunSegment(
        state.step,
        state.position,
        state.epoch.number,
        sources.changes.batch_at(state.step, batch),
        sources.weights_at(state.step) if origin is None else origin.weights,
        _filled(state.draws, sources),
        state.epoch.step,
        state.epoch.position,
    )
    if origin is not None:
        return [first, origin, segment]
    return [first, segment.beginning(_windows(state, sources), sources)]


def _windows(state: PlanState, sources: Sources) -> Windows | None:
    """Return the windows of the epoch that a state is in."""
    if not state.left:
        return None
    draws = _filled(state.draws, sources)
    left = _filled(state.left, sources)
    until = state.until
    return Windows(
        draws,
        _filled(state.begins, sources),
        tuple(draw + rest for draw, rest in zip(draws, left, strict=True)),
        (*until, *sources.samples[len(until) :]) if until else (),
        _opened(state, sources),
    )


def _opened(state: PlanState, sources: Sources) -> Opened:
    """Return the windows of each source that were interrupted before a state."""
    opened = tuple(map(tuple, state.opened))
    return opened + ((),) * (len(sources.samples) - len(opened)) if state.counts.opened else ()


def _schedules_in(text: str) -> tuple[Schedule | None, tuple[int, Schedule] | None]:
    """Return the schedules of `PlanState.changes`: of now, and to come."""
    if not text:
        return None, None
    try:
        now, step, coming = json.loads(text)
        found = None if now is None else Schedule.from_json(now)
        return found, None if step is None else (whole_number(step, "step"), Schedule.from_json(coming))
    except (ValueError, TypeError) as error:
        raise damaged(f"its changes cannot be read: {error}") from None


def _segments(state: PlanState, sources: Sources) -> list[RunSegment]:
    """Return the segments of a state."""
    found: list[RunSegment] = []
    for saved in state.segments:
        if saved is None:
            found.append(found[0])
            continue
        begin = (saved.step, saved.position, saved.epoch, saved.global_batch, sources.weights_at(saved.step))
        if len(found) != 1:
            none = (0,) * len(sources.samples)
            found.append(RunSegment(*begin, none, saved.epoch_step, saved.epoch_position))
            continue
        origin = RunSegment(
            *begin,
            _filled(state.begins, sources) if saved.position else (0,) * len(sources.samples),
            saved.epoch_step,
            saved.epoch_position,
            begins_order=True,
            opened=_opened(state, sources),
        )
        found.append(origin if origin.begins_epoch else replace(origin, until=_filled(state.until, sources)))
    return found


def _begin(epoch: Epoch) -> EpochBegin:
    return EpochBegin(epoch.number, epoch.first_step, epoch.first_position)


def _saved(segment: RunSegment) -> Segment:
    """Return a segment for a state, without numbers of sources and weights."""
    epoch = segment.epoch_step or 0, segment.epoch_position or 0
    return Segment(segment.step, segment.position, segment.epoch, segment.global_batch, *epoch)


def _filled(numbers: Sequence[int], sources: Sources) -> tuple[int, ...]:
    """Return numbers, one a source of the run: 0 for those that came later."""
    return tuple(numbers) + (0,) * (len(sources.samples) - len(numbers))


def _allowed(change: str, what: str, allow: Collection[str]) -> None:
    if change not in allow:
        raise StateError.at(
            f"the state was taken with {what}",
            todo=f"build it as it was, or go on with the change: load_state_dict(state, allow={{{change!r}}})",
        )


def _others(then: list[str], now: list[str]) -> str:
    gone, new = len(set(then) - set(now)), len(set(now) - set(then))
    return f"{gone} of them are gone, {new} are new"


class PlannedRunner(EpochRunner):
    """Runs epochs of a planned pipe, and tracks the run's position."""

    def __init__(
        self,
        pipe: IterDataPipe[object],
        reader: AISSampleReader,
        how: EngineOptions,
        given: EpochOptions,
        meeting: RankSetup,
    ) -> None:
        super().__init__(pipe, how, given, meeting)
        if isinstance(given.epoch_steps, str):
            raise UsageError.at(
                f"epoch_steps={given.epoch_steps!r} with .read_samples(), whose ranks take equal steps anyway",
                todo='leave it out; tail="short", "drop" or "pad" says what becomes of the remainder',
            )
        batchers = [stage for stage in upstream(pipe) if isinstance(stage, SlotBatcher)]
        batches = [stage.batchsize for stage in batchers]
        if batchers:
            batchers[-1].say_to(reader)
        self._reader = reader
        batch = batches[-1] if batches else reader.batch_size
        self._under_way = RunUnderWay(reader.data, given, given.epoch_steps, meeting, self.workers, batch)
        self._not_steps: str | None = None
        self._begun_at: int | None = None
        self._loaded = False
        self._came = self._parts_given = 0  # batches of the epoch, and of a step that is not whole yet
        self._micro = given.micro_batches
        self._changes = 0  # of the schedule, equal on all ranks

    def _why_not_steps(self) -> str | None:
        """Return why the items of the pipe are not the run's steps, or None."""
        return not_steps(self._pipe, self._under_way.global_batch() // self.meeting.world.size // self._micro)

    @property
    @override
    def length(self) -> int:
        why = self._why_not_steps()
        if why is not None:
            raise TypeError(f"how many items come is not known before: {why}")
        return self._current().steps * self._micro

    @property
    @override
    def under_way(self) -> bool:
        return self._loaded and self.steps_given(0) > 0

    @override
    def check_epoch(self, epoch: int, following: int) -> None:
        here = self._under_way.epoch().number if self._loaded else epoch
        if epoch != here and self.under_way:
            raise another_epoch(epoch, here)
        self._loaded = self._loaded and epoch == here

    @override
    def steps_given(self, step: int) -> int:
        run = self._under_way
        return run.run().count_steps(self._current().first_step, run.step) * self._micro + self._parts_given

    def _current(self) -> Epoch:
        """Return the epoch under way, also after its last step, or the next one."""
        return self._under_way.epoch() if self._begun_at is None else self._epoch

    @override
    def settings(self, epoch: int) -> dict[str, object]:
        run = self._under_way
        step = run.step if self._loaded else run.begin_of(epoch)
        return super().settings(run.run().epoch_of(step).number) | {
            "epoch_steps": run.epoch_steps,
            "global_batch": run.global_batch(),
            "order": run.order(),
            "schedule": run.changes_by_step.digest(),
            "micro_batches": self._micro,
            "rank_weights": list(self._under_way.given.rank_weights),
            "step": step,  # ranks that begin at different steps would end at different ones
        }

    @override
    def begin(self, epoch: int) -> tuple[int, int]:
        run = self._under_way
        if not self._loaded:
            run.step = run.begin_of(epoch)
        if run.adopt() and not self._loaded:
            run.step = run.begin_of(epoch)
        run.run().check_step(run.run().next_given(run.step))
        self._loaded, self._begun_at, self._parts_given = False, None, 0
        return self._under_way.epoch().number, self.steps_given(0)

    @override
    def epoch(self, done: int) -> Iterator[Step]:
        world = self.meeting.world
        under_way = self._under_way
        self._not_steps = self._why_not_steps()
        self._begun_at, self._came = under_way.step, 0
        self._epoch = under_way.epoch()
        number = self._epoch.number
        while True:
            run, step, places = under_way.run(), under_way.step, under_way.places()
            plans = []
            for worker, plan in enumerate(self._fresh(number)):
                share = Share(world.rank, world.size, worker, self.workers, not world.processes)
                task = Task(run, share, step, places)
                if self._micro > 1:
                    task = task._replace(run=MicroRun(run, self._micro), step=step * self._micro)
                plans.append(replace(plan, task=task))
            steps = self._watched(plans)
            while (given := next(steps, None)) is not None:
                yield given
                under_way.adopt()
                if under_way.run() is not run:  # another schedule holds from the next step on
                    break
            else:
                return
            cast(Generator[Step, None, None], steps).close()
            if not under_way.steps_left(number):
                return
            self._epoch = under_way.epoch()

    @override
    def record_output(self, worker: int, state: bytes | None) -> None:
        if self._not_steps is None:
            run = self._under_way
            self._came += 1
            self._parts_given = (self._parts_given + 1) % self._micro
            if not self._parts_given:
                run.step = run.run().next_given(run.step) + 1

    @override
    def given(self, step: int) -> int:
        return self._under_way.step * self._micro + self._parts_given - 1

    @override
    def finish(self) -> None:
        if self._begun_at is None:
            return
        run = self._under_way
        left = run.steps_left(self._epoch.number) * self._micro - self._parts_given
        if self._not_steps is None and left:
            raise UsageError.at(
                f"{self._came} batches came of the {self._came + left} that were planned",
                todo="a stage below .batched() leaves some out, or an error policy has ended the epoch: filter samples,"
                " above .batched()",
            )
        end = run.epoch().end if left else run.step
        run.step, self._begun_at = end, None

    @override
    def repeated(self) -> int:
        run = self._under_way.run()
        return run.repeated(self._under_way.epoch(), self.meeting.world.rank)

    @override
    def samples_of(self, step: int) -> list[tuple[str, str]]:
        run = self._under_way.run()
        last = run.segments[-1]
        step = whole_number(step, "step", most=(1 << 62) // last.global_batch)
        if step < last.step:
            raise UsageError.at(
                f"step {step} lies before step {last.step}, where batch, weights, sources or schedule were changed",
                todo="ask a loader as it was before the change",
            )
        run.check_step(step)
        if not run.given_steps(step, step + 1):
            raise UsageError.at(f"step {step} is skipped by the schedule", todo="ask for another step")
        whole = Run(run.sources, run.seed, run.segments)
        found = self._reader.data.look_up(whole, whole.positions(step), places=self._under_way.places())
        return [(wanted.reference.key, wanted.reference.shard.name) for wanted in found]

    @override
    def saved(self, epoch: int, next_epoch: int, step: int) -> PlanState:
        if self._not_steps is not None and self._begun_at is not None:
            raise StateError.at(
                f"the position in this epoch is not known: {self._not_steps}",
                todo="make one item a step: .batched(n), and below it only stages that give one item for each; or take"
                " the state between epochs",
            )
        return self._under_way.state()

    @override
    def start_at(self, step: int) -> None:
        self._under_way.step = step
        self._loaded, self._begun_at, self._parts_given = True, None, 0

    @property
    @override
    def run_step(self) -> int:
        return self._under_way.step

    @property
    @override
    def schedule(self) -> Schedule:
        return self._under_way.changes_by_step

    @override
    def set_schedule(self, schedule: Schedule) -> int:
        return self._change_schedule(["schedule", schedule.to_json()], lambda _: schedule)

    @override
    def skip(self, steps: int | range, how: Skip) -> int:
        named = steps if isinstance(steps, int) else [steps.start, steps.stop]

        def changed(step: int) -> Schedule:
            span = range(step, step + steps) if isinstance(steps, int) else steps
            if span.start < step:
                raise UsageError.at(
                    f"skip({span}) begins before step {step}, which is the next",
                    todo="skip steps that are to come",
                )
            return self.schedule.skipping(span.start, span.stop, how)

        return self._change_schedule(["skip", named, how], changed)

    def _change_schedule(self, change: list[Any], changed: Callable[[int], Schedule]) -> int:
        """Change the schedule on all ranks; return the step from which it holds.

        That is the first step that no rank has passed. The ranks compare `change`, which is the call; `changed` returns
        the schedule for that step.
        """
        self._changes += 1
        here = self._under_way.step + (self._parts_given > 0)
        step, ranks = self._under_way.run().next_given(here), self.meeting.ranks
        if ranks is not None:
            key, call = f"schedule/{self._changes}", json.dumps(change)
            ranks.tell(f"{key}/{ranks.rank}", json.dumps([step, call]))
            values = ranks.hear({rank: f"{key}/{rank}" for rank in range(ranks.world_size)})
            calls = {rank: json.loads(value) for rank, value in values.items()}
            other = [rank for rank, (_, there) in calls.items() if there != call]
            if other:
                raise UsageError.at(
                    f"rank {other[0]} changes the schedule in another way than rank {ranks.rank}",
                    todo="call set_schedule() and skip() alike on all ranks",
                )
            step = max(step, *(there for there, _ in calls.values()))
        self._under_way.change_at(step, changed(step))
        return step

    @override
    def samples_seen(self) -> tuple[int, ...]:
        return self._under_way.seen()

    @override
    def load(self, state: object, allow: Collection[str]) -> None:
        self._under_way.load(check_plan_state(state), allow)
        self._loaded, self._begun_at, self._parts_given = True, None, 0
