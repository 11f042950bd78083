"""as_dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from torchdata_ais._util.arguments import checked, whole_number
from torchdata_ais._util.process_end import close_at_exit
from torchdata_ais._util.world import WorldOptions, instance_of, ranks_of_node
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders.instance import InstancePlan, begin
from torchdata_ais.loaders.state import check_same, check_single, check_worker_plan
from torchdata_ais.pipes.base.pickle_check import received, sendable
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.policy import note_place, trimmed
from torchdata_ais.pipes.base.seed import NextEpoch, mix_seed
from torchdata_ais.pipes.base.upstream import at_work, upstream
from torchdata_ais.pipes.checkpoint.ledger import saver, stage_names
from torchdata_ais.pipes.planned.batches import SlotBatcher, check_planned, not_steps, planned_above
from torchdata_ais.pipes.planned.stage import Share, Task
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import PLAN_VERSION, Run
from torchdata_ais.ranks.listing import shard_instance
from torchdata_ais.ranks.rendezvous import begin_together, wait_for_turn
from torchdata_ais.state import EpochShare, Part, StreamState, WorkerPlanState, pack, to_plain, unpack


@dataclass
class WorkerPlan:
    """A pipe that reads by index, as one worker of a dataset runs it."""

    pipe: IterDataPipe[object]
    reader: AISSampleReader
    seed: int

    def __post_init__(self) -> None:
        # Packs and buckets are part of the order, which a state is compared with before the pipe runs.
        for stage in upstream(self.pipe):
            if isinstance(stage, SlotBatcher) and planned_above(stage) is self.reader:
                stage.say_to(self.reader)

    def state(self, runs: int, share: Share, sent: int | None, given: int) -> WorkerPlanState:
        """Return the position of the worker.

        `sent` is the seed of the stages, None if no epoch is under way; `given` counts the items of this iteration.

        Raises:
            StateError: How many samples have been given does not follow from that.
        """
        task = None if sent is None else self.reader.under_way
        epoch = None
        if sent is not None and task is None:
            raise StateError.at("an epoch is about to begin", todo="take the state after its first item")
        if sent is not None and task is not None:
            why = self._not_known()
            if why is not None:
                raise StateError.at(
                    f"the position in this epoch is not known: {why}",
                    todo="make one item a step: .batched(n), and below it only stages that give one item for each",
                )
            epoch = EpochShare(
                task.run.seed, sent, task.step, task.run.segments[0].global_batch, self._before(task) + given
            )
        return WorkerPlanState(**self._fixed_fields, runs=runs, share=share[:4], epoch=epoch)

    @cached_property
    def _fixed_fields(self) -> dict[str, Any]:
        """Return the fields equal in all states: they are taken with every item."""
        reader = self.reader
        return {
            "plan": PLAN_VERSION,
            "sources": reader.data.digests(),
            "weights": reader.data.weights_digest(),
            "order": reader.data.order(),
            "seeds": (self.seed, reader.own_seed),
        }

    def check(self, state: WorkerPlanState) -> None:
        """Raise `StateError` for a state of other data, order, seed or batch."""
        for name, what in (
            ("plan", "the plan's version"),
            ("seeds", "the seeds of dataset and reader"),
            ("order", "the order"),
            ("sources", "the digests of the sources"),
            ("weights", "the digest of the weights"),
        ):
            todo = "build pipe and dataset as they were; ais_loader can change sources, weights and batch"
            check_same(what, getattr(state, name), self._fixed_fields[name], todo)

    def task(self, state: WorkerPlanState, epoch: EpochShare, share: Share) -> Task:
        """Return the rest of an epoch for this worker.

        Raises:
            StateError: The state is of another worker, or of another number of ranks or workers; or of other batches.
        """
        if state.share != share[:4]:
            raise StateError.at(
                f"the state is of {_named(state.share)}, this is {_named(share[:4])}",
                todo="resume with the same ranks and workers; ais_loader can change both",
            )
        size = self._batch() or self.reader.batch_size
        batch = epoch.global_batch if size is None else size * share.ranks
        if batch != epoch.global_batch:
            raise StateError.at(
                f"the state was taken with a global batch of {epoch.global_batch}, and this pipe makes {batch}",
                todo="build the pipe as it was; ais_loader can change the batch",
            )
        run = Run.begun(self.reader.data.sources_with(), epoch.seed, batch, share.ranks)
        task = Task(run, share, epoch.step, list(range(len(run.sources.samples))))
        if self._batch() is not None:
            return task._replace(given=epoch.given)
        whole, into = divmod(epoch.given, self._of_a_slot(task))
        return task._replace(given=whole, into=into)

    def is_epoch(self, task: Task, epoch: int) -> bool:
        """Return whether a task is of an epoch as the reader counts them."""
        return task.run.seed == self.reader.own_seed and task.run.epoch_of(task.step).number == epoch

    def number_epochs_after(self, task: Task) -> None:
        """Number further iterations as epochs, if the reader counts them itself."""
        if task.run.seed == self.reader.own_seed:
            self.reader.take_epoch(task.run.epoch_of(task.step).number + 1)

    def _batch(self) -> int | None:
        """Return how many samples of a rank make one item; None: none."""
        return next(
            (stage.batchsize for stage in upstream(self.pipe) if isinstance(stage, SlotBatcher)), None
        )

    def _not_known(self) -> str | None:
        """Return why the item count does not give the worker's position, or None."""
        if self._batch() is None and not self.reader.gives_all:
            return f"{self.reader.describe()} may leave samples out"
        return not_steps(self.pipe, 1)

    def _before(self, task: Task) -> int:
        """Return how many items the worker had given before this iteration."""
        if self._batch() is not None:
            return task.given
        return task.given * self._of_a_slot(task) + task.into

    @staticmethod
    def _of_a_slot(task: Task) -> int:
        """Return how many samples a rank has of a whole global batch."""
        rank, ranks, batch = task.share.rank, task.share.ranks, task.run.segments[0].global_batch
        return (rank + 1) * batch // ranks - rank * batch // ranks


def _named(share: tuple[int, ...]) -> str:
    rank, ranks, worker, workers = share
    return f"worker {worker} of {workers} of rank {rank} of {ranks}"


@checked
def as_dataset(
    pipe: IterDataPipe[object],
    *,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    store: object = None,
    rank_timeout_s: float = 1800.0,
    start_spread_s: float | None = None,
) -> PipeDataset:
    """Return `pipe` as a dataset for torch's and torchdata's data loaders.

    These are torch's `DataLoader` and torchdata's `StatefulDataLoader`. Ranks are determined and the shards are listed
    in this call: later changes of the bucket are not seen. Workers get both, with any start method.

    Args:
        pipe: A pipe that batches by itself; use ``batch_size=None`` in the loader.
        seed: Seed of all epochs.
        rank: This rank, of `world_size`. Default: that of torch.distributed.
        world_size: How many ranks share out the data; 1 for a dataset of this process alone.
        store: As for `ais_loader`.
        rank_timeout_s: How long to wait for a rank that has not come here.
        start_spread_s: Over how many seconds the ranks continue from here; default as for `ais_loader`, where each is
            taken to have 8 workers.

    Returns:
        An `IterableDataset` that splits its shards over ranks and workers by itself, with ``set_epoch``,
        ``state_dict`` and ``load_state_dict``. `StatefulDataLoader` finds the latter two in its workers; resume with
        the same number of ranks and workers. Under several ranks call ``set_epoch(n)`` before each epoch, as for
        torch's ``DistributedSampler``: without it every epoch has the order of the first.

    Raises:
        UsageError: ``WORLD_SIZE`` above 1 without torch.distributed or `rank`; ranks that were given different pipes,
            sources or seeds.
        ObjectChangedError: The ranks have listed different objects.
        TransportError: The listing failed.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode().to_tuple("cls").batched(4)
        >>> sorted(n for (batch,) in DataLoader(as_dataset(pipe), batch_size=None) for n in batch.tolist())
        [0, 1, 2, 3, 4, 5]
    """
    return PipeDataset(
        pipe, seed, WorldOptions(rank, world_size, store, rank_timeout_s, start_spread_s=start_spread_s)
    )


_WORKERS = 8  # of a rank: how many there will be is not known here


class PipeDataset(IterableDataset[Any]):
    """See `as_dataset`."""

    def __init__(self, pipe: IterDataPipe[object], seed: int, world: WorldOptions) -> None:
        self._pipe = pipe
        self._seed = seed
        found = world.find()
        self._rank, self._ranks = found.rank, found.size
        settings = {"loader": "as_dataset", "seed": seed}
        planned = check_planned(pipe)
        self._planned = WorkerPlan(pipe, planned, seed) if isinstance(planned, AISSampleReader) else None
        if planned is not None:
            planned.take_share(Share(self._rank, self._ranks))  # for len()
        self._listing, ranks = begin_together(pipe, found, settings, world.rank_timeout_s)
        wait_for_turn(found, _WORKERS, world.start_spread_s, ranks)
        self._runs = 0
        self._next_epoch = NextEpoch()  # reaches workers that live on between epochs
        self._calls = 0  # of the reader's set_epoch, when a state was loaded
        self._plan: InstancePlan | None = None
        self._pending: StreamState | WorkerPlanState | None = None
        # Handed to an iteration that has not started.
        self._resuming: StreamState | WorkerPlanState | None = None
        self._given = 0

    def __len__(self) -> int:
        """Return the declared length, or this rank's items of an epoch.

        ``.with_length(n)`` declares it; the other is known with ``.read_samples()``.
        """
        return len(self._pipe)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterations; without it each counts as one.

        A state that was loaded fits its own epoch: with another one the next iteration raises `UsageError`.
        """
        self._next_epoch.set(whole_number(epoch, "epoch"))

    def __bool__(self) -> bool:
        return True

    def __getstate__(self) -> object:
        # The epoch goes by itself: it stays in shared memory. The chain is of this copy of the pipe.
        rest = {name: value for name, value in vars(self).items() if name not in ("_next_epoch", "_chain")}
        return self._next_epoch, sendable(rest)

    def __setstate__(self, state: Any) -> None:
        self._next_epoch, rest = state
        vars(self).update(received(rest))

    def __iter__(self) -> Iterator[Any]:
        # A loader that was restored at the end of an epoch makes an iterator that it does not use, and then another.
        self._resuming, self._pending = self._pending, None
        self._plan = None
        items = self._items(self._resuming)
        close_at_exit(items)
        return items

    def _items(self, resumed: StreamState | WorkerPlanState | None) -> Iterator[object]:
        self._resuming = None
        share, worker_seed = self._where()
        number, instance = _among_all(share)
        call = self._next_epoch.look()
        if call.number:
            epoch_seed = mix_seed(self._seed, "epoch", call.epoch)
        elif self._ranks > 1:  # torch's generator, and the number of iterations of each rank, may differ
            epoch_seed = mix_seed(self._seed, "epoch", 0)
        elif worker_seed is not None:
            epoch_seed = mix_seed(self._seed, "worker", worker_seed)
        else:
            epoch_seed = mix_seed(self._seed, "run", self._runs)
        self._runs += 1
        plan = InstancePlan(epoch_seed, number, instance)
        if resumed is not None:
            plan = self._resumed(resumed, share, plan)
            if call.number and plan.epoch_seed != epoch_seed:
                raise _another_epoch(call.epoch)
        plan = replace(plan, on_node=ranks_of_node() * share.workers)
        shard_instance(self._pipe, number, instance)
        if self._planned is not None:
            self._planned.reader.take_share(share)
        self._plan, self._given = plan, 0
        begin(self._pipe, plan)
        try:
            with self._listing.on(self._pipe):
                for item in self._pipe:
                    self._given += 1
                    yield item
        except Exception as error:  # noqa: BLE001 - raised again
            note_place(error, None, None, at_work(self._pipe))
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has
        if worker_seed is None:
            self._plan = None  # else other workers may have some left: this one, resumed, has none

    def _where(self) -> tuple[Share, int | None]:
        """Return worker and rank of this process, and with workers the epoch seed."""
        info = get_worker_info()
        if info is None:
            return Share(self._rank, self._ranks), None
        # The loader draws one seed an epoch and adds the worker's number.
        return Share(self._rank, self._ranks, info.id, info.num_workers), info.seed - info.id

    @cached_property
    def _chain(self) -> tuple[list[str], Callable[[], Part | None]]:
        """Names of the stages, and the function that saves them."""
        return stage_names(self._pipe), saver(self._pipe)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process's iteration.

        Raises:
            StateError: A stage that a checkpoint cannot pass through; names it.
        """
        resumed = self._pending or self._resuming
        if resumed is not None:
            return to_plain(resumed)
        share, _ = self._where()
        if self._planned is not None:
            sent = None if self._plan is None else self._plan.epoch_seed
            return to_plain(self._planned.state(self._runs, share, sent, self._given))
        names, save = self._chain
        number, instance = _among_all(share)
        plan, instances = self._plan, None
        if plan is not None:
            part: Part = save() or unpack(plan.initial_state())
            instances = [part]
        return to_plain(
            StreamState(
                stages=names,
                seed=0 if plan is None else plan.epoch_seed,
                epoch=self._runs,
                user_epoch=self._runs,
                rank=instance,
                ranks=number,
                shards=self._listing.digest,
                instances=instances,
            )
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration resume at `state`.

        Raises:
            StateError: It is none, damaged, of another pipeline, or of several workers.
        """
        if self._planned is not None:
            worker = check_worker_plan(state)
            self._planned.check(worker)
            self._calls = self._planned.reader.next_epoch.look().number
            self._runs = worker.runs - (worker.epoch is not None)
            self._pending = worker if worker.epoch is not None else None
            return
        single = check_single(state, stage_names(self._pipe))
        self._runs = single.epoch - (single.instances is not None)
        self._pending = single if single.instances is not None else None

    def _resumed(
        self, state: StreamState | WorkerPlanState, share: Share, plan: InstancePlan
    ) -> InstancePlan:
        if isinstance(state, WorkerPlanState):
            assert self._planned is not None
            assert state.epoch is not None
            task = self._planned.task(state, state.epoch, share)
            call = self._planned.reader.next_epoch.look()
            if call.number > self._calls and not self._planned.is_epoch(task, call.epoch):
                raise _another_epoch(call.epoch)
            self._planned.number_epochs_after(task)
            return InstancePlan(state.epoch.sent, plan.number, plan.instance, task=task)
        if (state.ranks, state.rank) != (plan.number, plan.instance) or state.instances is None:
            raise StateError.at(
                f"the state is of instance {state.rank} of {state.ranks}, this is {plan.instance} of {plan.number}",
                todo="resume a StatefulDataLoader with the same ranks and workers; ais_loader can change both",
            )
        digests = (state.shards, self._listing.digest)
        return InstancePlan(state.seed, plan.number, plan.instance, pack(state.instances[0]), digests)


def _another_epoch(epoch: int) -> UsageError:
    return UsageError.at(
        f"set_epoch({epoch}), and the state that was loaded is of another epoch",
        todo="finish that one first: call set_epoch(n) with its number; or load no state",
    )


def _among_all(share: Share) -> tuple[int, int]:
    """Return how many workers all ranks have, and which of them this is."""
    return share.ranks * share.workers, instance_of(share.rank, share.ranks, share.worker)
