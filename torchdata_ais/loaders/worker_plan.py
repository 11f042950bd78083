"""Where a worker of torch's own loaders stands in a pipe that reads by index, and how it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchdata_ais.errors import StateError
from torchdata_ais.loaders.state import check_same
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import PLAN_VERSION, Run
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.planned import Share, Task
from torchdata_ais.stage.slots import SlotBatcher, not_steps, planned_above
from torchdata_ais.stage.upstream import upstream
from torchdata_ais.state import EpochShare, WorkerPlanState


@dataclass
class WorkerPlan:
    """A pipe that reads by index, as one worker of a dataset runs it.

    Attributes:
        pipe: The last stage.
        reader: The stage of it that reads.
        seed: The dataset's seed.
    """

    pipe: IterDataPipe[Any]
    reader: AISSampleReader
    seed: int

    def __post_init__(self) -> None:
        # Packs and buckets are part of the order, which a state is compared with before the pipe runs.
        for stage in upstream(self.pipe):
            if isinstance(stage, SlotBatcher) and planned_above(stage) is self.reader:
                stage.say_to(self.reader)

    def state(self, runs: int, share: Share, sent: int | None, given: int) -> WorkerPlanState:
        """Return where the worker stands.

        Args:
            runs: Iterations that were begun.
            share: Which worker of which rank it is.
            sent: The seed that the stages were sent; None: no epoch is under way.
            given: Items that it has given in this iteration.

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
                    f"where this epoch stands is not known: {why}",
                    todo="make one item a step: .batched(n), and below it only stages that give one item for each",
                )
            epoch = EpochShare(
                task.run.seed, sent, task.step, task.run.segments[0].global_batch, self._before(task) + given
            )
        return WorkerPlanState(**self._told, runs=runs, share=share[:4], epoch=epoch)

    @cached_property
    def _told(self) -> dict[str, Any]:
        """What is the same in all states: they are taken with every item."""
        reader = self.reader
        return {
            "plan": PLAN_VERSION,
            "sources": reader.data.digests(),
            "weights": reader.data.weights_digest(),
            "order": reader.data.order(),
            "seeds": (self.seed, reader.own_seed),
        }

    def check(self, state: WorkerPlanState) -> None:
        """Raise `StateError` for a state of other data, another order, seed or batch; it names the difference."""
        for name, what in (
            ("plan", "the plan's version"),
            ("seeds", "the seeds of dataset and reader"),
            ("order", "the order"),
            ("sources", "the digests of the sources"),
            ("weights", "the digest of the weights"),
        ):
            todo = "build pipe and dataset as they were; ais_loader can change sources, weights and batch"
            check_same(what, getattr(state, name), self._told[name], todo)

    def task(self, state: WorkerPlanState, epoch: EpochShare, share: Share) -> Task:
        """Return what this worker is still to give of an epoch.

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

    def go_on_after(self, task: Task) -> None:
        """Have the iterations after that of `task` be the epochs after it, where the reader counts them itself."""
        if task.run.seed == self.reader.own_seed:
            self.reader.take_epoch(task.run.epoch_of(task.step).number + 1)

    def _batch(self) -> int | None:
        """Return how many samples of a rank the pipe makes one item of; None: none."""
        return next(
            (stage.batchsize for stage in upstream(self.pipe) if isinstance(stage, SlotBatcher)), None
        )

    def _not_known(self) -> str | None:
        """Return why the number of items says not where the worker stands; None if it does."""
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
