"""One instance of a pipe: what a worker of a rank is told at the start of an epoch, and what it reports back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchdata_ais.errors import StateError
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.pipes.base.sources import share_node
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.checkpoint.ledger import begin_epoch, restore, save
from torchdata_ais.pipes.planned.batches import check_planned
from torchdata_ais.pipes.planned.stage import Task
from torchdata_ais.state import InstanceState, ReaderState, Refused, pack, unpack


@dataclass(frozen=True)
class InstancePlan:
    """How one instance begins an epoch.

    Attributes:
        epoch_seed: The same in all instances.
        number: Instances in the epoch: ranks times workers.
        instance: Which one this is.
        state: Where it stands, packed: what an instance reported, or its share of what several did; None for one that
            reads its part of a whole epoch.
        digests: Those of the shards when the state was taken, and now; empty where that is not known.
        task: What a stage that reads by a plan is to give.
        on_node: How many processes of this machine read, this one included.
        errors_by_job: Whether the loader counts what stages give up, where they may give up a share.
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

    def not_begun(self) -> bytes:
        """Return the state of an instance that was given this plan, and has not begun."""
        return self.state or pack(InstanceState(ReaderState(self.number, self.instance)))


def begin(tail: IterDataPipe[Any], plan: InstancePlan) -> None:
    """Prepare the next iteration of `tail` as `plan` says."""
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


def pack_state(tail: IterDataPipe[Any]) -> bytes | None:
    """Return where `tail` stands as bytes; None if its iteration was not begun.

    Raises:
        StateError: A stage through which a checkpoint cannot pass.
    """
    state = save(tail)
    return None if state is None else pack(state)


def pack_or_refuse(tail: IterDataPipe[Any]) -> bytes | None:
    """Return `pack_state`, or why there is none: nobody may ever ask for it, so the epoch must not end for it."""
    try:
        return pack_state(tail)
    except StateError as error:
        return pack(Refused(error.what, error.todo, error.place))
