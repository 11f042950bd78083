"""Batches that are laid down before a sample is read: who knows for which of them an item is.

Under a plan the samples of each batch are known from the start. A stage that leaves some out makes its batch smaller,
and never takes from the next: so ``.batched()`` does not count, but asks the stage above that knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torchdata_ais.errors import EmptyBatchError, UsageError
from torchdata_ais.plan import Run
from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.pipe import IterDataPipe, parents

__all__ = [
    "PlannedStage",
    "Share",
    "SlotBatcher",
    "SlotStage",
    "Task",
    "check_planned",
    "gives_as_many",
    "planned_above",
    "refuse_below_plan",
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


class SlotStage(Stage):
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

    run_seed: int = 0
    slots_given: int = 0

    def take_task(self, task: Task) -> None:
        """Give this in the next iteration: a loader says so."""
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


def refuse_below_plan(pipe: IterDataPipe[Any], what: str, todo: str) -> None:
    """Raise `UsageError` if `pipe` stands below a plan."""
    if planned_above(pipe) is not None:
        raise UsageError.at(f"{what} below .read_samples()", todo=todo)


def check_planned(tail: IterDataPipe[Any]) -> PlannedStage | None:
    """Return the stage of a pipe that reads by a plan, if it has one.

    Raises:
        UsageError: A stage below it holds items back, or counts them off, so that batches would not be those planned.
    """
    below: list[IterDataPipe[Any]] = []
    pipe = tail
    while len(above := parents(pipe)) == 1:
        below.append(pipe)
        pipe = above[0]
    if not isinstance(pipe, PlannedStage):
        return None
    for stage in map(stage_of, reversed(below)):
        effect = stage.effect()
        if effect.mixes:
            raise UsageError.at(
                f"{stage.describe()} below .read_samples(): it would mix the batches that the plan has laid down",
                todo='leave it out: .read_samples(shuffle="samples") has mixed all samples already',
            )
        if effect.gives == "batches" and not isinstance(stage, SlotBatcher):
            raise UsageError.at(
                f"{stage.describe()} below .read_samples(): it counts items off, and does not know where a batch ends",
                todo="use .batched(n)",
            )
        if effect.gives == "batches":
            break
    return pipe


class SlotBatcher(Stage):
    """A stage that makes the batches that a plan has laid down.

    Attributes:
        batchsize: Samples of a rank's batch, where the loader does not say otherwise.
    """

    batchsize: int
