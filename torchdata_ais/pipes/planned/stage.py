"""Stages that read by a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch.utils.data import get_worker_info
from typing_extensions import Self

from torchdata_ais._util.arguments import whole_number
from torchdata_ais._util.world import known_ranks
from torchdata_ais.errors import EmptyBatchError, UsageError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.seed import EpochCall, NextEpoch, mix_seed
from torchdata_ais.pipes.base.torch_pipes import SHARDING_PRIORITIES
from torchdata_ais.plan import Run

if TYPE_CHECKING:
    from torchdata_ais.plan import Epoch
    from torchdata_ais.plan.permutation import Integers
    from torchdata_ais.reading.packing import Grouping
    from torchdata_ais.reading.planned import PlannedData, PlannedReading

_NO_BATCH = 8192  # positions a step, where nobody makes batches


class Share(NamedTuple):
    """Share of one worker of one rank in an epoch.

    Attributes:
        ranks: How many ranks share each global batch.
        worker: This worker: it gives the batches ``worker``, ``worker + workers``, ... of what is left.
        alone: Whether no other process gets the same data. Where some do, what goes wrong for one of them alone
            (transport) is never skipped.
    """

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1
    alone: bool = True


class Task(NamedTuple):
    """Output of a planned stage in one iteration: a run's share from `step`.

    Attributes:
        places: Which of its indexes each source of the run is; None for one that is not drawn any more.
        given: How many batches of this share, from the first step on, were given before.
        into: How many samples of the next one.
        only: Positions that are read instead, as one batch; None: the steps.
    """

    run: Run
    share: Share
    step: int
    places: list[int | None]
    given: int = 0
    into: int = 0
    only: Integers | None = None


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
    """A stage that reads by a plan, with its next run, epoch and share.

    Attributes:
        data: What the plan is about.
        batch_size: Samples of a rank's batch; None if not set.
        run_seed: What the order, and each random draw below, depends on.
        slots_given: How many batches this worker had in the last iteration, once it is over.
        under_way: What is given in the iteration under way, or was in the last.
        next_epoch: What `set_epoch` was called with, of this stage or of the one that it is a copy of.
    """

    planned = True
    splits = True
    data: PlannedData
    batch_size: int | None = None
    run_seed: int = 0
    slots_given: int = 0
    under_way: Task | None = None
    next_epoch: NextEpoch

    _live: PlannedReading | None = None
    _empty: Literal["error", "repeat"] = "error"
    _seed: int = 0
    _epoch: int = 0
    _was_set: bool = False
    _calls: int = 0  # of `set_epoch` that it has taken
    _was_sent_calls: bool = False
    _sent: int | None = None
    _task: Task | None = None
    _given: Share | None = None
    _groups: Mapping[Any, tuple[int, int]] = MappingProxyType({})

    @property
    def own_seed(self) -> int:
        """The seed that the stage was given."""
        return self._seed

    # What loaders say

    def take_task(self, task: Task) -> None:
        """Give this in the next iteration: a loader calls it."""
        self._task = task

    def take_share(self, share: Share) -> None:
        """Be this part of all ranks and workers, until `forget_split`."""
        self._given = share

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: object = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Take a part of a split over ranks or workers: loaders call it."""
        self._groups = {**self._groups, sharding_group: (num_of_instances, instance_id)}

    def forget_split(self) -> None:
        """Forget what loaders have said of ranks and workers."""
        self._groups, self._given = {}, None

    def use_batches_of(self, size: int) -> None:
        """Take `size` as the batch of a rank, unless a loader has said otherwise."""
        self.batch_size = size
        self.data.group_by(None)

    def use_groups(self, grouping: Grouping) -> None:
        """Draw groups, one a batch of a rank, unless a loader says otherwise."""
        self.batch_size = 1
        self.data.group_by(grouping)

    def set_seed(self, seed: int) -> Self:
        """Take the next epoch's seed, the same in all ranks and workers."""
        self._sent = int(seed)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch.

        Its order then follows from it and from `seed` alone.
        Copies of this stage in loaders and in their workers take it, too, for the pass after the one under way.
        """
        self.next_epoch.set(whole_number(epoch, "epoch"))

    def take_epoch(self, epoch: int) -> None:
        """Take the next epoch's number; only a later call of `set_epoch` counts."""
        self._epoch, self._was_set, self._calls = epoch, True, self.next_epoch.look().number

    def take_call(self, call: EpochCall) -> None:
        """Take a call of `set_epoch`, once, with which all workers begin."""
        self._was_sent_calls = True
        self._take_call(call)

    def _take_call(self, call: EpochCall) -> None:
        if call.number != self._calls:
            self._epoch, self._was_set, self._calls = call.epoch, True, call.number

    # What is next

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
        """Return the share of this rank, by torch.distributed without a loader."""
        if self._task is not None or self._given is not None or self._groups:
            return self.share()
        rank, ranks = known_ranks()
        return Share(rank or 0, ranks)

    def batches(self) -> int:
        """Return this rank's batches in the next epoch, also those already given."""
        return self._next(self.rank_share())[2].steps

    def __len__(self) -> int:
        """Number of samples of this rank in the next epoch, over all workers."""
        share = self.rank_share()
        run, _, epoch = self._next(share)
        return run.given(epoch, share.rank)

    def _next(self, share: Share | None = None) -> tuple[Run, Share, Epoch]:
        """Return the run, the share given or of this instance, and the epoch."""
        if self._task is not None:
            task = self._task
            return task.run, task.share, task.run.epoch_of(task.step)
        share = share or self.share()
        if self.batch_size is None and share.ranks * share.workers > 1:
            raise UsageError.at(
                f"{share.ranks} ranks and {share.workers} workers share batches, and nothing says what a batch is",
                todo="put .batched(n) below, or pass batch_size=n to .read_samples() if the loader makes the batches",
            )
        if not self._was_sent_calls:
            self._take_call(self.next_epoch.look())
        sources, epoch = self.data.sources_with(), self._epoch
        size = self.batch_size
        if size is None:
            size, sources = _NO_BATCH, replace(sources, tail="short")
        self.run_seed = self._seed
        if self._takes_sent():
            self.run_seed, epoch = mix_seed(self._seed, self._sent), 0
        run = Run.begun(sources, self.run_seed, size * share.ranks, share.ranks)
        if self.batch_size is not None:
            run.checked()
        return run, share, run.epoch(epoch)

    def _takes_sent(self) -> bool:
        """Return whether the order follows from a loader's seed, not the epoch."""
        return self._sent is not None and not self._was_set

    def _begin(self, run: Run, share: Share, epoch: Epoch) -> Task:
        """Begin an iteration over what `_next` returned."""
        task, self._task = self._task, None
        self.run_seed = run.seed
        if task is not None:
            self._given = task.share  # of a pass after this one, too
        else:
            task = Task(run, share, epoch.step, list(range(len(run.sources.samples))))
            if not self._takes_sent():
                self._epoch = epoch.number + 1
        self.under_way = task
        self.slot, self.slots_given = -1, 0
        return task

    # What stages below ask

    def group_of(self, drawn: tuple[int, int]) -> tuple[int, int]:
        """Return source and number of the drawn group that an item is of."""
        return drawn[0], self.data.group_of(*drawn)

    def size_of(self, slot: int) -> int:
        """Return how many samples are planned for a batch."""
        return self._live.size_of(slot) if self._live is not None else 0

    @property
    def gives_again(self) -> bool:
        """True if another batch replaces an empty one."""
        return self._empty == "repeat"

    def steps(self) -> Sequence[int]:
        """Return the steps of this worker's batches in the current iteration."""
        return range(0) if self._live is None else self._live.steps

    def lost(self, slot: int) -> EmptyBatchError | None:
        """Return the error for an empty batch, or None if another replaces it."""
        return None if self.gives_again or self._live is None else self._live.lost(slot)
