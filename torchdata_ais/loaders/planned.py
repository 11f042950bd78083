"""Epochs of a pipe that reads by a plan: which batches this rank gets, and the state that says where a run stands."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from typing_extensions import override

from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders.engine_options import EngineOptions
from torchdata_ais.loaders.engines import Step
from torchdata_ais.loaders.epoch_steps import EpochSteps, StepsName
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.passes import Passes
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import PLAN_VERSION, Run, RunSegment, Sources, Tail
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.stage.pipe import IterDataPipe, upstream
from torchdata_ais.stage.slots import Share, SlotBatcher, Task, not_steps
from torchdata_ais.state import PlanState, Segment
from torchdata_ais.world import World, WorldOptions

__all__ = ["ALLOWED", "PlannedPasses", "PlannedSteps"]

ALLOWED = ("weights", "sources", "batch")
"""What may be changed at a resume, if the program says so."""


class PlannedSteps(EpochSteps):
    """All ranks take the same number of steps, by construction."""

    def __init__(self, given: StepsName) -> None:
        if isinstance(given, str):
            raise UsageError.at(
                f"epoch_steps={given!r} with .read_samples(), whose ranks take equal steps anyway",
                todo='leave it out; tail="short", "drop" or "pad" says what becomes of the remainder',
            )
        super().__init__(None)
        self.given = given

    @override
    def check(self, world: World, options: WorldOptions) -> None:
        pass


class PlannedPasses(Passes):
    """Runs epochs of a planned pipe, and knows where in the run each batch stands.

    Args:
        pipe: The pipe.
        reader: The stage of it that reads by the plan.
        how: See `EngineOptions`.
        seed: Seed of the run.
        world: How to find the ranks.
        global_batch: Samples a step over all ranks; None: what the pipe batches, for each rank.
        epoch_steps: Steps of an epoch, instead of all samples.
        tail: Instead of what the reader was told.

    Attributes:
        step: Global batches given out, over the whole run.
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        reader: AISSampleReader,
        how: EngineOptions,
        seed: int,
        world: WorldOptions,
        *,
        global_batch: int | None,
        epoch_steps: int | None,
        tail: Tail | None,
    ) -> None:
        super().__init__(pipe, how, seed, stateful=False, ahead=False)
        self._asks = False
        self.reader = reader
        self._world = world
        self._epoch_steps, self._tail = epoch_steps, tail
        self._global_batch = global_batch
        self._pipe = pipe
        self._not_steps: str | None = None
        self._begun_at: int | None = None
        self._batches = [stage.batchsize for stage in upstream(pipe) if isinstance(stage, SlotBatcher)][-1:]
        self._run: Run | None = None
        self._segments: list[RunSegment] = []
        self._state_sources: list[str] | None = None
        self.step = 0

    def _sources(self) -> Sources:
        return self.reader.sources_with(self._epoch_steps, self._tail)

    def order(self) -> str:
        """Return in words how the order is made."""
        return self.reader.order(self._epoch_steps, self._tail)

    def global_batch(self) -> int:
        """Return how many samples all ranks take together in a step.

        Raises:
            UsageError: Nothing says so.
        """
        ranks = self._world.find().size
        if self._global_batch is not None:
            return self._global_batch
        size = self._batches[0] if self._batches else self.reader.batch_size
        if size is None and ranks * self.workers > 1:
            raise UsageError.at(
                f"{ranks} ranks of {self.workers} workers share batches, and nothing says what a batch is",
                todo="put .batched(n) below .read_samples(), or pass global_batch= to ais_loader",
            )
        return (size or 1) * ranks

    def run(self) -> Run:
        """Return the run, as it stands."""
        if self._run is None:
            if not self._segments:
                sources = self._sources()
                weights = sources.weights_at(0)
                draws = (0,) * len(sources.samples)
                self._segments = [RunSegment(0, 0, 0, self.global_batch(), weights, draws)]
            self._run = Run(self._run_sources(), self.seed, self._segments, ranks=self._world.find().size)
        return self._run

    def _names(self) -> list[str]:
        """Return the digests of all sources of the run, those that were removed included."""
        now = self.reader.digests()
        before = self._state_sources or []
        return before + [digest for digest in now if digest not in before]

    def _places(self) -> list[int | None]:
        """Return which index of the mixture each source of the run is; None for one that was removed."""
        now = self.reader.digests()
        return [now.index(digest) if digest in now else None for digest in self._names()]

    def _run_sources(self) -> Sources:
        """Return the sources of the run, numbered as in the run."""
        sources, places = self._sources(), self._places()
        if places == list(range(len(sources.samples))):
            return sources
        mean = sources.mean_bytes or (1.0,) * len(sources.samples)
        return replace(
            sources,
            samples=tuple(1 if place is None else sources.samples[place] for place in places),
            mean_bytes=tuple(1.0 if place is None else mean[place] for place in places),
            schedule=tuple(
                (start, tuple(0 if place is None else weights[place] for place in places))
                for start, weights in sources.schedule
            ),
        )

    @property
    def length(self) -> int:
        """How many batches each rank gets in the epoch under way, or the next."""
        why = self.not_steps()
        if why is not None:
            raise TypeError(f"how many items come is not known before: {why}")
        return len(self.run().epoch_of(self.step).slots)

    def begin(self, epoch: int) -> tuple[int, int]:
        """Go to an epoch; return its number, and how many of its batches were given out before."""
        run = self.run()
        self._begun_at = None
        here = run.epoch_of(self.step)
        if epoch != here.number:
            if epoch < run.epoch_of(self._segments[-1].step).number:
                raise UsageError.at(
                    f"epoch {epoch} lies before the change at the resume, from which on this run is known",
                    todo="go on with a later epoch, or begin a run anew: a loader without load_state_dict()",
                )
            here = run.epoch(epoch)
            self.step = here.step
        return here.number, self.step - here.step

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self.run().epoch_of(self.step).number

    def not_steps(self) -> str | None:
        """Return why the items of the pipe are not the run's steps, so that nothing follows of them; or None."""
        return not_steps(self._pipe, self.global_batch() // self._world.find().size)

    @override
    def one(self, world: World, listing: Listing) -> Iterator[Step]:
        run = self.run()
        places = self._places()
        self._not_steps = self.not_steps()
        self._begun_at = self.step
        epoch = run.epoch_of(self.step).number
        plans = [
            replace(
                InstancePlan.of(
                    self.seed, epoch, world.size * self.workers, world.rank + worker * world.size
                ),
                task=Task(
                    run,
                    Share(world.rank, world.size, worker, self.workers, not world.processes),
                    self.step,
                    places,
                ),
            )
            for worker in range(self.workers)
        ]
        return self._begun(world, listing).epoch(plans)

    @override
    def gave(self, worker: int, state: bytes | None) -> None:
        if self._not_steps is None:
            self.step += 1

    @override
    def end(self) -> None:
        if self._begun_at is None:
            return
        end = self.run().epoch_of(self._begun_at).end
        if self._not_steps is None and self.step != end:
            raise UsageError.at(
                f"{self.step - self._begun_at} batches came of the {end - self._begun_at} that were planned",
                todo="a stage below .batched() leaves some out, or an error policy has ended the epoch: filter samples,"
                " above .batched()",
            )
        self.step, self._begun_at = end, None

    @override
    def take_state(self) -> None:
        pass

    def repeated(self) -> int:
        """Return how many positions this rank gets in addition to another in the epoch under way."""
        return self.run().epoch_of(self.step).slots.repeated(self._world.find().rank)

    def samples_of(self, step: int) -> list[tuple[str, str]]:
        """Return key and shard of each sample of a global step, in their order; see `AISLoader.samples_of`."""
        run = self.run()
        whole = Run(run.sources, run.seed, run.segments)
        found = self.reader.looked_up(whole, whole.positions(step), self._places())
        return [(wanted.reference.key, wanted.reference.shard.name) for wanted in found]

    def state(self) -> PlanState:
        """Return where the run stands: after the batch that was given out last.

        Raises:
            StateError: In the middle of an epoch whose items are not its batches.
        """
        if self._not_steps is not None and self._begun_at is not None:
            raise StateError.at(
                f"where this epoch stands is not known: {self._not_steps}",
                todo="make one item a step: .batched(n), and below it only stages that give one item for each; or take"
                " the state between epochs",
            )
        run = self.run()
        here = run.epoch_of(self.step)
        position = run.position(self.step)
        return PlanState(
            plan=PLAN_VERSION,
            sources=self._names(),
            order=self.order(),
            seed=self.seed,
            segments=[
                Segment(
                    one.step, one.position, one.epoch, one.global_batch, list(one.weights), list(one.draws)
                )
                for one in self._segments
            ],
            step=self.step,
            position=position,
            epoch=here.number,
            draws=list(run.counts(position)),
        )

    def load(self, state: PlanState, allow: Collection[str]) -> None:
        """Go on where `state` was taken; a change that is allowed begins a new segment.

        Raises:
            StateError: Another plan, seed, order; or other sources, weights or global batch, and that is not allowed.
        """
        _same("the plan's version", state.plan, PLAN_VERSION, "resume with the version that took it")
        _same("the seed", state.seed, self.seed, "pass the same seed=")
        _same(
            "the order",
            state.order,
            self.order(),
            "build the pipe as it was",
        )
        before = self._state_sources, self._segments, self._run, self.step
        try:
            self._load(state, allow)
        except BaseException:
            self._state_sources, self._segments, self._run, self.step = before
            raise

    def _load(self, state: PlanState, allow: Collection[str]) -> None:
        now = self.reader.digests()
        last = state.segments[-1]
        there = [digest for digest, weight in zip(state.sources, last.weights, strict=True) if weight]
        # A source of no weight was removed, or its turn in the schedule comes later.
        weights = self._sources().weights_at(last.position)
        drawn = [
            digest
            for digest, weight in zip(now, weights, strict=True)
            if weight or digest in there or digest not in state.sources
        ]
        changed = set()
        if set(there) != set(drawn):
            _allowed("sources", f"{len(there)} sources, and this pipe others: {_others(there, drawn)}", allow)
            changed.add("sources")
        self._state_sources = list(state.sources)
        sources = self._run_sources()
        self._segments = [_segment(one, sources) for one in state.segments]
        begun = self._segments[-1]
        weights = sources.weights_at(begun.position)
        if not changed and weights != begun.weights:
            _allowed("weights", f"the weights {begun.weights} of 65,536, and this pipe {weights}", allow)
            changed.add("weights")
        batch = self.global_batch()
        if batch != begun.global_batch:
            _allowed("batch", f"a global batch of {begun.global_batch}, and this loader {batch}", allow)
            changed.add("batch")
        self._run, self.step, self._begun_at = None, state.step, None
        draws = _filled(state.draws, sources)
        if not changed & {"sources", "weights"} and self.run().counts(state.position) != draws:
            _allowed("weights", "another schedule of weights", allow)
            changed.add("weights")
        if changed:
            held = sources.weights_at(state.position) if changed & {"sources", "weights"} else begun.weights
            self._segments.append(RunSegment(state.step, state.position, state.epoch, batch, held, draws))
            self._run = None


def _segment(saved: Segment, sources: Sources) -> RunSegment:
    weights, draws = _filled(saved.weights, sources), _filled(saved.draws, sources)
    return RunSegment(saved.step, saved.position, saved.epoch, saved.global_batch, weights, draws)


def _filled(numbers: list[int], sources: Sources) -> tuple[int, ...]:
    """Return numbers, one a source of the run: 0 for those that came later."""
    return tuple(numbers) + (0,) * (len(sources.samples) - len(numbers))


def _same(what: str, then: Any, now: Any, todo: str) -> None:
    if then != now:
        raise StateError.at(f"{what} was {then!r} when the state was taken, and is {now!r}", todo=todo)


def _allowed(change: str, what: str, allow: Collection[str]) -> None:
    if change not in allow:
        raise StateError.at(
            f"the state was taken with {what}",
            todo=f"build it as it was, or go on with the change: load_state_dict(state, allow={{{change!r}}})",
        )


def _others(then: list[str], now: list[str]) -> str:
    gone, new = len(set(then) - set(now)), len(set(now) - set(then))
    return f"{gone} of them are gone, {new} are new"
