"""Planned batches.

Under a plan the samples of each batch are known from the start. A stage that leaves some out makes its batch smaller,
and never takes from the next: so ``.batched()`` does not count, but asks the stage above that knows.

A worker that is resumed, or another number of them, gives what a worker gives that has not stopped. So nothing is kept
of the batches that were made before: a second copy of the chain reads the positions of the substitute.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from torchdata_ais.errors import EmptyBatchError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy
from torchdata_ais.pipes.base.torch_pipes import copy_pipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import check_below_plan, parents, upstream, with_above
from torchdata_ais.pipes.planned.stage import DrawnStage, PlannedStage, SlotStage, Task
from torchdata_ais.plan.permutation import Integers


class Substitutes:
    """Finds what is given in the place of an empty batch.

    That is what is left of the slices of the other ranks in that step. If nothing is, it is the nearest batch of the
    epoch before it, and else after it, of which something is left. So a step gives the same samples for any number of
    ranks.
    """

    def __init__(self, task: Task, rows_of: Callable[[Task], list[Any]]) -> None:
        self._task, self._rows_of = task, rows_of
        self._own: int | None = None  # the last step of which something is left in the slice of this worker
        # A step, and the nearest batch up to it, if any; likewise from a step on.
        self._before: tuple[int, Integers | None] | None = None
        self._after: tuple[int, Integers] | None = None

    def note(self, step: int) -> None:
        """Note that something is left of the slice of this worker in `step`."""
        self._own = step

    def rows(self, step: int, left: int) -> list[Any]:
        """Return the rows that replace the empty batch of `step`."""
        run, rank = self._task.run, self._task.share.rank
        for other in range(1, run.ranks):
            if rows := self._read(run.positions(step, (rank + other) % run.ranks)):
                return rows
        rows, positions = self._nearest_before(step)
        self._before = step, positions
        rows = rows or self._nearest_after(step)
        if not rows:
            raise EmptyBatchError.at(
                f"a worker has {left} batches left in this epoch, and nothing is left of them or of any other",
                todo="filter when the index is chosen (index.select)",
            )
        return rows

    def _nearest_before(self, step: int) -> tuple[list[Any], Integers | None]:
        run, rank = self._task.run, self._task.share.rank
        for number, slices in run.steps_before(step, rank):
            if number == self._own:
                own = run.positions(number, rank)
                return self._read(own), own
            if self._before is not None and self._before[0] == number:
                known = self._before[1]
                return ([], None) if known is None else (self._read(known), known)
            for positions in slices:
                if rows := self._read(positions):
                    return rows, positions
        return [], None

    def _nearest_after(self, step: int) -> list[Any]:
        run, rank = self._task.run, self._task.share.rank
        if self._after is not None and self._after[0] > step:
            return self._read(self._after[1])
        for number in run.given_steps(step + 1, run.epoch_of(step).end):
            for other in range(run.ranks):
                positions = run.positions(number, (rank + other) % run.ranks)
                if rows := self._read(positions):
                    self._after = number, positions
                    return rows
        return []

    def _read(self, positions: Integers) -> list[Any]:
        return self._rows_of(self._task._replace(only=positions))


def separate(
    pipe: IterDataPipe[object], made: dict[int, IterDataPipe[object]] | None = None
) -> IterDataPipe[object]:
    """Return a copy of a graph that runs next to it, with its own counts.

    `made` has the copies of pipes by their ``id()``: one that several read from is copied once.
    """
    made = {} if made is None else made
    if id(pipe) in made:
        return made[id(pipe)]
    other = with_above(pipe, partial(separate, made=made))
    other = made[id(pipe)] = copy_pipe(pipe) if other is pipe else other
    vars(other).pop("_meter", None)
    if isinstance(other, Pipe):
        policy = other.error_policy()
        if policy is not None:
            vars(other)["_policy"] = ErrorPolicy(policy.on_error)
        if "epoch_seed" in vars(other):
            vars(other)["epoch_seed"] = copy.copy(vars(other)["epoch_seed"])
    return other


def _chain(pipe: IterDataPipe[object]) -> Iterator[IterDataPipe[object]]:
    """Yield the pipes above `pipe`, up to one that batches, or to a junction."""
    above = parents(pipe)
    while len(above) == 1:
        yield above[0]
        if stage_of(above[0]).effect().gives == "batches":
            return
        above = parents(above[0])


def planned_above(pipe: IterDataPipe[object]) -> PlannedStage | None:
    """Return the planned stage upstream of `pipe`, with no batches between."""
    *_, last = [None, *_chain(pipe)]
    return last if isinstance(last, PlannedStage) else None


def slots_above(pipe: IterDataPipe[object]) -> SlotStage | None:
    """Return the nearest stage above that knows an item's batch in the plan."""
    if planned_above(pipe) is None:
        return None
    return next(above for above in _chain(pipe) if isinstance(above, SlotStage) and above.effect().holds)


def gives_as_many(pipe: IterDataPipe[object]) -> bool:
    """Return whether no stage from `pipe` to the plan gives additional items."""
    stages = (stage_of(above) for above in _chain(pipe) if not isinstance(above, PlannedStage))
    return all(stage.effect().gives in ("each", "fewer") for stage in stages)


def drawn_above(pipe: IterDataPipe[object]) -> DrawnStage | None:
    """Return the nearest stage above that knows an item's draw of the plan."""
    for above in _chain(pipe):
        if isinstance(above, SlotBatcher):
            return above if planned_above(above) is not None else None
        if isinstance(above, SlotStage) and above.effect().holds:
            return above if planned_above(pipe) is not None else None
    return None


def maker_of_rows(pipe: IterDataPipe[object]) -> Stage | None:
    """Return the stage above that can make rows, if all between hand them on."""
    for above in _chain(pipe):
        stage = stage_of(above)
        if stage.makes_rows():
            return stage
        if not stage.passes_on:
            break
    return None


def say_no_steps(source: IterDataPipe[object], name: str) -> None:
    """Warn that items downstream of planned batches are not steps."""
    batched = any(stage_of(above).effect().gives == "batches" for above in upstream(source))
    if batched and plan_of(source) is not None:
        warnings.warn(
            f".{name}() below .read_samples() and .batched(): its items are no steps of the plan any more, so len() is "
            "not known, and ais_loader gives a state between epochs only",
            stacklevel=4,
        )


def plan_of(tail: IterDataPipe[object]) -> PlannedStage | None:
    """Return the stage of a pipe that reads by a plan, if it has one."""
    return next((above for above in upstream(tail) if isinstance(above, PlannedStage)), None)


def check_planned(tail: IterDataPipe[object]) -> PlannedStage | None:
    """Return the stage that reads by a plan, if any, after `check_below_plan`."""
    check_below_plan(tail)
    return plan_of(tail)


def not_steps(tail: IterDataPipe[object], size: int) -> str | None:
    """Return why a planned pipe's items are not batches of `size`, or None."""
    for pipe in upstream(tail):
        stage = stage_of(pipe)
        if isinstance(stage, PlannedStage):
            break
        if isinstance(stage, SlotBatcher) and planned_above(pipe) is not None:
            return None
        if stage.effect().gives != "each":
            return f"{stage.describe()} gives more or fewer items than it takes"
    return None if size == 1 else f"no .batched(n) makes one item of {size} samples"


class SlotBatcher(Pipe[Any], DrawnStage):
    """Base of the stages that make batches, planned or of a stream.

    Attributes:
        batchsize: Samples of a rank's batch, where the loader does not say otherwise.
    """

    resumable = True
    batchsize = 1

    def say_to(self, plan: PlannedStage) -> None:
        """Give a planned stage its batch size: loaders and iterating call it."""
        plan.use_batches_of(self.batchsize)

    def __len__(self) -> int:
        plan = planned_above(self)
        if plan is None:
            return super().__len__()
        self.say_to(plan)
        return plan.batches()

    def _items(self) -> Iterator[object]:
        plan, slots = planned_above(self), slots_above(self)
        if plan is None or slots is None:
            yield from self._of_stream()
            return
        self.say_to(plan)
        yield from self._given_of(plan, self._as_planned(plan, slots))

    def _given_of(self, plan: PlannedStage, left: Iterable[list[Any]]) -> Iterator[object]:
        """Yield a batch for each laid down, of what is `left`, or a substitute."""
        substitutes: Substitutes | None = None
        maker: SlotBatcher = self
        for slot, items in enumerate(left):
            error = plan.lost(slot) if not items else None
            if error is not None:
                raise error
            if plan.gives_again and substitutes is None and plan.under_way is not None:
                maker = cast(SlotBatcher, separate(self))
                substitutes = Substitutes(plan.under_way, maker.rows_of)
            if substitutes is None:
                yield self._batch(items)
                continue
            step = plan.steps()[slot]
            if items:
                substitutes.note(step)
                yield self._batch(items)
                continue
            self.stats.skip(EmptyBatchError.at("a batch is empty, and another is given in its place"))
            yield maker._batch(substitutes.rows(step, len(plan.steps()) - slot))

    def rows_of(self, task: Task) -> list[Any]:
        """Return what stages leave of the one batch of a task."""
        plan, slots = planned_above(self), slots_above(self)
        if plan is None or slots is None:
            return []
        self.say_to(plan)
        plan.take_task(task)
        found = list(self._as_planned(plan, slots))
        return found[0] if found else []

    def _of_stream(self) -> Iterator[object]:
        """Yield batches of what comes, where nothing was laid down."""
        raise NotImplementedError

    def _batch(self, items: list[Any]) -> object:
        """Return the batch of what was put together."""
        raise NotImplementedError

    def _as_planned(self, plan: PlannedStage, slots: SlotStage) -> Iterator[list[Any]]:
        """Yield what is left of each batch that was laid down."""
        return self._rows_as_planned(plan, slots)

    def _rows_as_planned(
        self, plan: PlannedStage, slots: SlotStage, draws: list[tuple[int, int]] | None = None
    ) -> Iterator[list[Any]]:
        """Yield the rows left of each batch; `draws` is given their draws."""
        at_once = gives_as_many(self)  # a batch is whole when as many have come as were planned
        rows: list[Any] = []
        filling, size = 0, 0
        for row in self._source:
            drawn = slots.drawn
            while filling < slots.slot:
                yield rows
                rows, filling = [], filling + 1
            if not rows:
                self.drawn, size = drawn, plan.size_of(filling)
            rows.append(row)
            if draws is not None:
                draws.append(drawn)
            if at_once and len(rows) == size:
                yield rows
                rows, filling = [], filling + 1
        while filling < plan.slots_given:
            yield rows
            rows, filling = [], filling + 1
        if rows:  # an error policy has ended the epoch in the middle of a batch
            yield rows
