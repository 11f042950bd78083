"""One instance of a pipe: a worker's plan of an epoch, and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchdata_ais.errors import StateError
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.pipes.base.sources import share_node
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.checkpoint.ledger import begin_epoch, restore, saver
from torchdata_ais.pipes.planned.batches import check_planned
from torchdata_ais.pipes.planned.stage import Task
from torchdata_ais.state import InstanceState, ReaderState, Refused, pack, unpack


@dataclass(frozen=True)
class InstancePlan:
    """Plan of one instance for an epoch.

    Attributes:
        epoch_seed: The same in all instances.
        number: Instances in the epoch: ranks times workers.
        instance: Which one this is.
        state: Its position, packed: an instance's report, or its share of several reports; None for one that reads its
            part of a whole epoch.
        digests: Those of the shards when the state was taken, and now; empty where that is not known.
        task: The task of a stage that reads by a plan.
        on_node: How many processes of this machine read, this one included.
        errors_by_job: Whether the loader counts skipped samples, where stages may skip a share.
    """

    epoch_seed: int
    number: int
    instance: int
    state: bytes | None = None
    digests: tuple[str, str] = ("", "")
    task: Task | None = None
    errors_by_job: bool = False
    on_node: int = 1

    @classmethod
    def of(cls, seed: int, epoch: int, number: int, instance: int) -> InstancePlan:
        """Return the plan of a fresh epoch."""
        return cls(mix_seed(seed, "epoch", epoch), number, instance)

    def initial_state(self) -> bytes:
        """Return the state of an instance that has this plan, before its start."""
        return self.state or pack(InstanceState(ReaderState(self.number, self.instance)))


def begin(tail: IterDataPipe[object], plan: InstancePlan) -> None:
    """Prepare the next iteration of `tail` by `plan`."""
    begin_epoch(tail, plan.epoch_seed, plan.number, plan.instance)
    for stage in upstream(tail):
        if isinstance(stage, Pipe) and (policy := stage.error_policy()) is not None:
            policy.by_job = plan.errors_by_job
    share_node(tail, plan.on_node)
    if plan.task is not None:
        planned = check_planned(tail)
        assert planned is not None
        planned.take_task(plan.task)
    if plan.state is not None:
        part = unpack(plan.state)
        if isinstance(part, InstanceState):
            # Continued to the letter: the instance draws as the one did that it continues.
            begin_epoch(tail, plan.epoch_seed, part.reader.instances, part.reader.instance)
        restore(tail, part, plan.digests)


def state_packer(tail: IterDataPipe[object]) -> Callable[[], bytes | None]:
    """Return a function that packs the state of `tail`, or why it has none.

    The function returns None before an iteration. The state may never be requested, so its error must not end the
    epoch. The graph of `tail` is walked here, and must stay as it is.
    """
    try:
        save = saver(tail)
    except StateError as error:
        refused = _refused(error)
        return lambda: refused

    def packed() -> bytes | None:
        try:
            state = save()
        except StateError as error:
            return _refused(error)
        return None if state is None else pack(state)

    return packed


def _refused(error: StateError) -> bytes:
    return pack(Refused(error.what, error.todo, error.place))
