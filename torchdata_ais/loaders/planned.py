"""Epochs of a pipe that reads by a plan: which batches this rank gets, and how many were given."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from typing_extensions import override

from torchdata_ais.arguments import whole_number
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders.engine import EngineOptions, Step
from torchdata_ais.loaders.meeting import Meeting
from torchdata_ais.loaders.passes import Passes, PassOptions, another_epoch
from torchdata_ais.loaders.planned_run import RunUnderWay
from torchdata_ais.loaders.state import check_plan_state
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import Epoch, Run
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.planned import Share, Task
from torchdata_ais.stage.slots import SlotBatcher, not_steps
from torchdata_ais.stage.upstream import upstream
from torchdata_ais.state import PlanState


class PlannedPasses(Passes):
    """Runs epochs of a planned pipe, and knows where in the run each batch stands.

    Args:
        pipe: The pipe.
        reader: The stage of it that reads by the plan.
        how: See `EngineOptions`.
        given: What passes there are to be.
        meeting: This rank, and what is read.
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        reader: AISSampleReader,
        how: EngineOptions,
        given: PassOptions,
        meeting: Meeting,
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

    def _why_not_steps(self) -> str | None:
        """Return why the items of the pipe are not the run's steps, so that nothing follows of them; or None."""
        return not_steps(self._pipe, self._under_way.global_batch() // self.meeting.world.size)

    @property
    @override
    def length(self) -> int:
        why = self._why_not_steps()
        if why is not None:
            raise TypeError(f"how many items come is not known before: {why}")
        return self._current().steps

    @property
    @override
    def under_way(self) -> bool:
        return self._loaded and self._under_way.step > self._under_way.epoch().first_step

    @override
    def check_epoch(self, epoch: int, following: int) -> None:
        here = self._under_way.epoch().number if self._loaded else epoch
        if epoch != here and self.under_way:
            raise another_epoch(epoch, here)
        self._loaded = self._loaded and epoch == here

    @override
    def steps_given(self, step: int) -> int:
        return self._under_way.step - self._current().first_step

    def _current(self) -> Epoch:
        """Return the epoch under way, also after its last step; between epochs the next one."""
        begun = self._begun_at
        return self._under_way.epoch() if begun is None else self._under_way.run().epoch_of(begun)

    @override
    def settings(self, epoch: int) -> dict[str, Any]:
        run = self._under_way
        step = run.step if self._loaded else run.begin_of(epoch)
        return super().settings(run.run().epoch_of(step).number) | {
            "epoch_steps": run.epoch_steps,
            "global_batch": run.global_batch(),
            "order": run.order(),
            "step": step,  # ranks that begin at different steps would end at different ones
        }

    @override
    def begin(self, epoch: int) -> tuple[int, int]:
        if not self._loaded:
            self._under_way.step = self._under_way.begin_of(epoch)
        self._loaded, self._begun_at = False, None
        here = self._under_way.epoch()
        return here.number, self._under_way.step - here.first_step

    @override
    def epoch(self, done: int) -> Iterator[Step]:
        world = self.meeting.world
        run, step, places = self._under_way.run(), self._under_way.step, self._under_way.places()
        self._not_steps = self._why_not_steps()
        self._begun_at = step
        epoch = run.epoch_of(step).number
        plans = []
        for worker, plan in enumerate(self._fresh(epoch)):
            share = Share(world.rank, world.size, worker, self.workers, not world.processes)
            plans.append(replace(plan, task=Task(run, share, step, places)))
        return self._watched(plans)

    @override
    def gave(self, worker: int, state: bytes | None) -> None:
        if self._not_steps is None:
            self._under_way.step += 1

    @override
    def given(self, step: int) -> int:
        return self._under_way.step - 1

    @override
    def finish(self) -> None:
        if self._begun_at is None:
            return
        run = self._under_way
        end = run.run().epoch_of(self._begun_at).end
        if self._not_steps is None and run.step != end:
            raise UsageError.at(
                f"{run.step - self._begun_at} batches came of the {end - self._begun_at} that were planned",
                todo="a stage below .batched() leaves some out, or an error policy has ended the epoch: filter samples,"
                " above .batched()",
            )
        run.step, self._begun_at = end, None

    @override
    def repeated(self) -> int:
        return self._under_way.epoch().slots.repeated(self.meeting.world.rank)

    @override
    def samples_of(self, step: int) -> list[tuple[str, str]]:
        run = self._under_way.run()
        last = run.segments[-1]
        step = whole_number(step, "step", most=(1 << 62) // last.global_batch)
        if step < last.step:
            raise UsageError.at(
                f"step {step} lies before step {last.step}, where the state was taken that was loaded with a change",
                todo="ask a loader as it was before the change",
            )
        whole = Run(run.sources, run.seed, run.segments)
        found = self._reader.data.look_up(whole, whole.positions(step), places=self._under_way.places())
        return [(wanted.reference.key, wanted.reference.shard.name) for wanted in found]

    @override
    def saved(self, epoch: int, next_epoch: int, step: int) -> PlanState:
        if self._not_steps is not None and self._begun_at is not None:
            raise StateError.at(
                f"where this epoch stands is not known: {self._not_steps}",
                todo="make one item a step: .batched(n), and below it only stages that give one item for each; or take"
                " the state between epochs",
            )
        return self._under_way.state()

    @override
    def load(self, state: Any, allow: Collection[str]) -> None:
        self._under_way.load(check_plan_state(state), allow)
        self._loaded, self._begun_at = True, None
