"""Stages that read by a plan, and what loaders tell them: who reads which part of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from torchdata_ais.errors import EmptyBatchError
from torchdata_ais.plan import Run
from torchdata_ais.reading.packing import Grouping
from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES
from torchdata_ais.world import known_ranks


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
        given: How many batches of this share, from the first step on, were given before.
        into: How many samples of the next one.
    """

    run: Run
    share: Share
    step: int
    places: list[int | None]
    given: int = 0
    into: int = 0


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
        batch_size: Samples of a rank's batch; None where nobody has said.
        run_seed: What the order, and each random draw below, depends on.
        slots_given: How many batches this worker had in the last iteration, once it is over.
        under_way: What is given in the iteration under way, or was in the last.
    """

    planned = True
    splits = True
    batch_size: int | None = None
    run_seed: int = 0
    slots_given: int = 0
    under_way: Task | None = None

    _task: Task | None = None
    _given: Share | None = None
    _groups: Mapping[Any, tuple[int, int]] = MappingProxyType({})

    def take_task(self, task: Task) -> None:
        """Give this in the next iteration: a loader says so."""
        self._task = task

    def take_share(self, share: Share) -> None:
        """Be this part of all ranks and workers, until `forget_split`: a loader says so."""
        self._given = share

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: Any = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Take a part of a split over ranks or workers: loaders call it."""
        self._groups = {**self._groups, sharding_group: (num_of_instances, instance_id)}

    def forget_split(self) -> None:
        """Forget what loaders have said of ranks and workers."""
        self._groups, self._given = {}, None

    def use_batches_of(self, size: int) -> None:
        """Take `size` as the batch of a rank, unless a loader has said otherwise."""
        self.batch_size = size

    def use_groups(self, grouping: Grouping) -> None:
        """Draw groups of samples, of which one is the batch of a rank, unless a loader has said otherwise."""
        raise NotImplementedError

    def group_of(self, drawn: tuple[int, int]) -> tuple[int, int]:
        """Return source and number of the drawn group that an item is of."""
        raise NotImplementedError

    def share(self) -> Share:
        """Return which part of the data this instance reads, as loaders have said."""
        if self._task is not None or self._given is not None:
            return self._task.share if self._task is not None else self._given or Share()
        ranks = workers = 1
        rank = worker = 0
        for group, (number, instance) in self._groups.items():
            info = get_worker_info()
            if group == SHARDING_PRIORITIES.MULTIPROCESSING:
                workers, worker = number, instance
            elif group == SHARDING_PRIORITIES.DEFAULT and info is not None:
                # torch's DataLoader numbers all workers, those of one number on all ranks one after the other.
                workers, ranks = info.num_workers, number // info.num_workers
                worker, rank = divmod(instance, ranks)
            else:
                ranks, rank = number, instance
        return Share(rank, ranks, worker, workers)

    def rank_share(self) -> Share:
        """Return what this rank reads; where no loader has said, the rank is that of torch.distributed."""
        if self._task is not None or self._given is not None or self._groups:
            return self.share()
        rank, ranks = known_ranks()
        return Share(rank or 0, ranks)

    def set_seed(self, seed: int) -> Any:
        """Take the seed of the next epoch, the same in all ranks and workers: loaders call it."""
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
