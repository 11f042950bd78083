"""Base class of epoch runners."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from torchdata_ais._util.world import World, instance_of, ranks_of_node
from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.index import Schedule
from torchdata_ais.loaders.engine import (
    Engine,
    EngineOptions,
    EngineSettings,
    InProcessEngine,
    Step,
    WorkerEngine,
)
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.observe.diagnosis.flight_record import ProcessPart
from torchdata_ais.observe.diagnosis.readiness import RankRecorder
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.plan import Tail
from torchdata_ais.plan.changes import Skip
from torchdata_ais.state import State
from torchdata_ais.workers.producer import ended

if TYPE_CHECKING:
    import torch

    from torchdata_ais.loaders.rank_setup import RankSetup

StepsName = int | Literal["pad", "shortest"] | None
"""Values of ``epoch_steps=``."""


@dataclass(frozen=True)
class EpochOptions:
    """Parameters of epochs; the fields are the arguments of `ais_loader`.

    `tail` None: as the reader has it.
    """

    seed: int
    epoch_steps: StepsName
    global_batch: int | None
    tail: Tail | None
    schedule: Schedule = field(default_factory=Schedule)
    rank_weights: tuple[int, ...] = ()
    micro_batches: int = 1


def another_epoch(wanted: int, under_way: int) -> UsageError:
    """Return the error for an epoch set while another one is unfinished."""
    return UsageError.at(
        f"set_epoch({wanted}), and the state that was loaded is of epoch {under_way}, which is not finished",
        todo=f"iterate that one first, without set_epoch() or after set_epoch({under_way}); or make a loader without "
        "load_state_dict()",
    )


def _by_index(name: str) -> UsageError:
    return UsageError.at(
        f"{name} of a stream, which counts its steps in each epoch alone",
        todo="begin the pipe with .read_samples(), which reads by an index",
    )


class EpochRunner:
    """Runs epochs of a pipe, and tracks the position.

    Attributes:
        seed: Seed of all epochs.
        meeting: This rank, and the listing.
        recorder: Records the training loop's waits, if requested.
        gpu: The device of the yielded items; None: unchanged.
    """

    def __init__(
        self, pipe: IterDataPipe[object], how: EngineOptions, given: EpochOptions, meeting: RankSetup
    ) -> None:
        self.seed = given.seed
        self.meeting = meeting
        self.recorder: RankRecorder | None = None
        self.gpu: torch.device | None = None
        self._pipe = pipe
        self._how = how
        self._stateful = False
        self._engine: Engine | None = None
        self._past_reports: list[Report] = []

    @property
    def workers(self) -> int:
        """Number of instances of the pipe that this rank runs."""
        return max(1, self._how.num_workers)

    @property
    def length(self) -> int:
        """Batches of this rank in an epoch; raises TypeError if that is unknown."""
        raise NotImplementedError

    @property
    def under_way(self) -> bool:
        """True if the next epoch resumes one that a state was taken in."""
        raise NotImplementedError

    def check_epoch(self, epoch: int, following: int) -> None:
        """Take `epoch` in place of `following`, or raise `UsageError`."""
        raise NotImplementedError

    def steps_given(self, step: int) -> int:
        """Return the batches of this epoch, `step` of them given by this loader."""
        raise NotImplementedError

    def settings(self, epoch: int) -> dict[str, object]:
        """Return the arguments that must be equal on all ranks, by name.

        `epoch` is the one that starts, if nothing else is under way.
        """
        return {"loader": "ais_loader", "seed": self.seed, "epoch": epoch}

    def check(self, world: World) -> None:
        """Raise or warn where several ranks cannot step together."""

    def warn_after_listing(self) -> None:
        """Warn of likely mistakes once the listing is known."""

    def begin(self, epoch: int) -> tuple[int, int]:
        """Go to `epoch`, or finish one; return its number and batches so far."""
        raise NotImplementedError

    def epoch(self, done: int) -> Iterator[Step]:
        """Yield the steps of an epoch, without the first `done`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Note that all steps of the epoch were given."""
        raise NotImplementedError

    def forget(self) -> None:
        """Resume at the current position: a state was loaded, or an error came."""

    def record_output(self, worker: int, state: bytes | None) -> None:
        """Record the output of an item of `worker`, and the worker's position."""
        raise NotImplementedError

    def given(self, step: int) -> int:
        """Return the number on all ranks of the last batch, `step` of the epoch."""
        return step

    def repeated(self) -> int:
        """Return how many more samples of this epoch this rank gets than another."""
        return 0

    def samples_of(self, step: int) -> list[tuple[str, str]]:
        """Return key and shard of each sample of a step; see `AISLoader`."""
        raise NotImplementedError

    def start_at(self, step: int) -> None:
        """Make the next epoch begin at a step of the run."""
        raise _by_index(f"start_step={step}")

    @property
    def run_step(self) -> int:
        """Number of global batches given out over the run."""
        raise _by_index("loader.step")

    def set_schedule(self, schedule: Schedule) -> int:  # noqa: ARG002 - of the runner by index
        """Change the schedule; return the step from which on it holds."""
        raise _by_index("loader.set_schedule()")

    def skip(self, steps: int | range, how: Skip) -> int:  # noqa: ARG002 - of the runner by index
        """Skip steps that are to come; return the step as `set_schedule`."""
        raise _by_index("loader.skip()")

    @property
    def schedule(self) -> Schedule:
        """The schedule that holds now."""
        raise _by_index("loader.schedule")

    def samples_seen(self) -> tuple[int, ...]:
        """Return how many samples of each source were drawn over the run."""
        raise _by_index("loader.samples_seen()")

    def take_state(self) -> None:
        """Save the position: the engine may be gone when it is requested."""

    def saved(self, epoch: int, next_epoch: int, step: int) -> State:
        """Return the position of the rank, `step` batches after the epoch's begin.

        `epoch` is the one under way, or the last one, as the user counts.

        Raises:
            StateError: The position is unknown.
        """
        raise NotImplementedError

    def load(self, state: object, allow: Collection[str]) -> None:
        """Resume at `state`; see `AISLoader.load_state_dict`."""
        raise NotImplementedError

    def _fresh(self, epoch: int) -> list[InstancePlan]:
        """Return the plan of an epoch for each worker of this rank."""
        world = self.meeting.world
        instances = [instance_of(world.rank, world.size, worker) for worker in range(self.workers)]
        return [InstancePlan.of(self.seed, epoch, world.size * self.workers, one) for one in instances]

    def _watched(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the engine's steps for `plans`, and record them."""
        engine = self._started_engine()
        by_job = self.meeting.world.size * self.workers > 1
        on_node = ranks_of_node() * self.workers
        steps = engine.epoch([replace(plan, errors_by_job=by_job, on_node=on_node) for plan in plans])
        steps = self._on_device(steps, engine)
        return steps if self.recorder is None else self.recorder.watch(steps, engine)

    def _on_device(self, steps: Iterator[Step], engine: Engine) -> Iterator[Step]:
        """Return the steps with their items on the GPU, if there is one."""
        if self.gpu is None:
            return steps
        from torchdata_ais.loaders.to_device import CudaCopies, ahead

        return ahead(steps, engine.ready, partial(CudaCopies, self.gpu))

    def _started_engine(self) -> Engine:
        """Return the engine, a new one if there is none."""
        if self._engine is None:
            self._past_reports = [ended(report) for report in self._past_reports]
            try:
                kind = WorkerEngine if self._how.num_workers else InProcessEngine
                self._engine = kind(self._settings(stateful=self._stateful))
            except AISError as error:
                raise error.with_traceback(None)  # noqa: B904 - the frames down to the copy of the pipes do not help
        return self._engine

    def _settings(self, *, stateful: bool) -> EngineSettings:
        listing = self.meeting.listing
        assert listing is not None
        return EngineSettings(self._pipe, stateful, listing, self.meeting.world, self._how)

    def reports(self) -> list[Report]:
        """Return the last value of `report_of` in each process, ended ones too."""
        now = self._engine.reports() if self._engine is not None else []
        return [*self._past_reports, *now] or [report_of(self._pipe)]

    def doing(self) -> list[ProcessPart]:
        """Return the current activity of the worker processes."""
        return [] if self._engine is None else self._engine.doing()

    def stop(self) -> None:
        """End the processes; the next pass begins new ones."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            self._past_reports += engine.reports()
