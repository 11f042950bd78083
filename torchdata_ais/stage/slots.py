"""Batches that are laid down before a sample is read: who knows for which of them an item is.

Under a plan the samples of each batch are known from the start. A stage that leaves some out makes its batch smaller,
and never takes from the next: so ``.batched()`` does not count, but asks the stage above that knows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchdata_ais.errors import EmptyBatchError, UsageError
from torchdata_ais.plan import Run
from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.pipe import IterDataPipe, check_below_plan, parents, upstream

__all__ = [
    "DrawnStage",
    "PlannedStage",
    "Share",
    "SlotBatcher",
    "SlotStage",
    "Task",
    "check_planned",
    "drawn_above",
    "gives_as_many",
    "not_steps",
    "plan_of",
    "planned_above",
    "refuse_below_plan",
    "say_no_steps",
    "slots_above",
]


class Share(NamedTuple):
    """What one worker of one rank gives in an epoch.

    Attributes:
        rank: This rank.
        ranks: How many ranks share each global batch.
        worker: This worker: it gives the batches ``worker``, ``worker + workers``, ... of what is left.
        workers: How many workers the rank has.
        alone: Whether no other process gets the same data. Where some do, what goes wrong for one of them alone
            (transport) is never skipped.
    """

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1
    alone: bool = True


class Task(NamedTuple):
    """What a planned stage is to give in an iteration.

    Attributes:
        run: The run.
        share: Which part of it.
        step: The first step.
        places: Which of its indexes each source of the run is; None for one that is not drawn any more.
    """

    run: Run
    share: Share
    step: int
    places: list[int | None]


class DrawnStage(Stage):
    """A stage that knows of which draw its last item is.

    Attributes:
        drawn: The number of the source, and how many samples of it were drawn before; of a batch, those of its first.
    """

    drawn: tuple[int, int] = (0, -1)


class SlotStage(DrawnStage):
    """A stage that knows for which batch its last item is.

    Attributes:
        slot: The number of that batch among those of this worker in this iteration.
    """

    slot: int = -1


class PlannedStage(SlotStage):
    """A stage that reads by a plan.

    Attributes:
        run_seed: What the order, and each random draw below, depends on.
        slots_given: How many batches this worker had in the last iteration, once it is over.
    """

    planned = True
    run_seed: int = 0
    slots_given: int = 0

    def take_task(self, task: Task) -> None:
        """Give this in the next iteration: a loader says so."""
        raise NotImplementedError

    def take_share(self, share: Share) -> None:
        """Be this part of all ranks and workers, until `forget_split`: a loader says so."""
        raise NotImplementedError

    def set_seed(self, seed: int) -> Any:
        """Take the seed of the next epoch, the same in all ranks and workers: loaders call it."""
        raise NotImplementedError

    def forget_split(self) -> None:
        """Forget what loaders have said of ranks and workers."""
        raise NotImplementedError

    def use_batches_of(self, size: int) -> None:
        """Take `size` as the batch of a rank, unless a loader has said otherwise."""
        raise NotImplementedError

    def size_of(self, slot: int) -> int:
        """Return how many samples are planned for a batch."""
        raise NotImplementedError

    def lost(self, slot: int) -> EmptyBatchError | None:
        """Return the error for a batch of which nothing is left; None: the batch before is given again."""
        raise NotImplementedError

    def batches(self) -> int:
        """Return how many batches this rank gets in the next epoch."""
        raise NotImplementedError


def _chain(pipe: IterDataPipe[Any]) -> Iterator[IterDataPipe[Any]]:
    """Yield the pipes above `pipe`, as long as there is one; a stage that batches is the last."""
    above = parents(pipe)
    while len(above) == 1:
        yield above[0]
        if stage_of(above[0]).effect().gives == "batches":
            return
        above = parents(above[0])


def planned_above(pipe: IterDataPipe[Any]) -> PlannedStage | None:
    """Return the stage that reads by a plan above `pipe`, if no batches are made in between."""
    *_, last = [None, *_chain(pipe)]
    return last if isinstance(last, PlannedStage) else None


def slots_above(pipe: IterDataPipe[Any]) -> SlotStage | None:
    """Return the nearest stage above `pipe` that knows for which batch an item is; None without a plan."""
    if planned_above(pipe) is None:
        return None
    return next(above for above in _chain(pipe) if isinstance(above, SlotStage) and above.effect().holds)


def gives_as_many(pipe: IterDataPipe[Any]) -> bool:
    """Return whether no stage between `pipe` and the plan gives more items than it takes."""
    stages = (stage_of(above) for above in _chain(pipe))
    return all(
        stage.effect().gives in ("each", "fewer") or isinstance(stage, PlannedStage) for stage in stages
    )


def drawn_above(pipe: IterDataPipe[Any]) -> DrawnStage | None:
    """Return the nearest stage above `pipe` that knows of which draw an item is; None without a plan."""
    for above in _chain(pipe):
        if isinstance(above, SlotBatcher):
            return above if planned_above(above) is not None else None
        if isinstance(above, SlotStage) and above.effect().holds:
            return above if planned_above(pipe) is not None else None
    return None


def refuse_below_plan(pipe: IterDataPipe[Any], what: str, todo: str) -> None:
    """Raise `UsageError` if `pipe` stands below a plan."""
    if planned_above(pipe) is not None:
        raise UsageError.at(f"{what} below .read_samples()", todo=todo)


def say_no_steps(source: IterDataPipe[Any], name: str) -> None:
    """Warn that items below batches that a plan has laid down are no steps any more; called where a stage is made."""
    batched = any(stage_of(above).effect().gives == "batches" for above in upstream(source))
    if batched and plan_of(source) is not None:
        warnings.warn(
            f".{name}() below .read_samples() and .batched(): its items are no steps of the plan any more, so len() is "
            "not known, and ais_loader gives a state between epochs only",
            stacklevel=4,
        )


def plan_of(tail: IterDataPipe[Any]) -> PlannedStage | None:
    """Return the stage of a pipe that reads by a plan, if it has one."""
    return next((above for above in upstream(tail) if isinstance(above, PlannedStage)), None)


def check_planned(tail: IterDataPipe[Any]) -> PlannedStage | None:
    """Return the stage of a pipe that reads by a plan, if it has one.

    Raises:
        UsageError: A stage below it holds items back, or counts them off, so that batches would not be those planned.
    """
    check_below_plan(tail)
    return plan_of(tail)


def not_steps(tail: IterDataPipe[Any], size: int) -> str | None:
    """Return why the items of a planned pipe are not its batches, one for one; None if they are.

    Args:
        tail: The last stage.
        size: Samples of a rank's batch.
    """
    batcher: IterDataPipe[Any] | None = None
    for pipe in upstream(tail):
        stage = stage_of(pipe)
        if isinstance(stage, PlannedStage):
            break
        if isinstance(stage, SlotBatcher) and planned_above(pipe) is not None:
            batcher = pipe
            break
        if stage.effect().gives != "each":
            return f"{stage.describe()} gives more or fewer items than it takes"
    return None if batcher is not None or size == 1 else f"no .batched(n) makes one item of {size} samples"


class SlotBatcher(DrawnStage):
    """A stage that makes the batches that a plan has laid down.

    Attributes:
        batchsize: Samples of a rank's batch, where the loader does not say otherwise.
    """

    batchsize: int
