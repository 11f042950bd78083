"""Epochs of a stream of shards: all, fixed, shortest or longest rank.

Each rank has its own shards, and so ranks have different numbers of batches. Training that exchanges gradients needs
equal numbers. The ranks agree over the store of torch.distributed, one step ahead: while the model works on the batch
before.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from typing_extensions import override

from torchdata_ais._util.world import World, ranks_of_node
from torchdata_ais.errors import AISError, LoaderError, StateError, UsageError
from torchdata_ais.loaders.engine import EngineOptions, InProcessEngine, Step
from torchdata_ais.loaders.epoch_runner import EpochOptions, EpochRunner, StepsName, another_epoch
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.rank_setup import RankSetup
from torchdata_ais.loaders.state import check_state, plans_for
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.torch_pipes import is_fork
from torchdata_ais.pipes.base.upstream import is_sharding, upstream
from torchdata_ais.pipes.checkpoint.ledger import stage_names
from torchdata_ais.pipes.checkpoint.shard_order import warn_of_idle
from torchdata_ais.pipes.planned.batches import separate
from torchdata_ais.ranks.steps import StepVotes
from torchdata_ais.state import MergedState, StreamState, unpack


class StreamRunner(EpochRunner):
    """Runs epochs of a stream, and tracks each worker's position.

    An epoch is one pass, which each rank ends by itself.

    Attributes:
        number: The pass under way, or the next.
        ahead: Whether an item is requested before the previous one was yielded.
    """

    ahead: ClassVar[bool] = False

    def __init__(
        self, pipe: IterDataPipe[object], how: EngineOptions, given: EpochOptions, meeting: RankSetup
    ) -> None:
        super().__init__(pipe, how, given, meeting)
        self._epoch_steps = given.epoch_steps
        if not any(is_sharding(stage) for stage in upstream(pipe)):
            warnings.warn(
                "no stage of the pipe splits the data over ranks and workers: each of them yields everything; "
                "put .sharding_filter() behind the source",
                stacklevel=5,  # this, its caller, the loader's constructor, and its check of the arguments
            )
        self._no_state: StateError | None = None  # why a checkpoint could not be taken
        try:
            self._stages = stage_names(pipe)
        except StateError as error:
            self._no_state = error
        # In this process nothing is made ahead, so the state can be taken on request.
        self._asks = how.num_workers == 0 and not self.ahead
        self._stateful = self._no_state is None and not self._asks
        self.number = 0
        self._resume: StreamState | MergedState | None = None  # to begin the next pass from, once
        self._turn = 0  # the worker that gives the next item
        self._instances: list[bytes] | None = None  # the position of each worker, once the pass has started
        self._has_given = False

    @property
    @override
    def length(self) -> int:
        raise TypeError(
            "the number of batches is not known before the epoch ends; epoch_steps=N fixes it. (torch's DataLoader "
            "takes the pipe, and not the loader)"
        )

    @property
    @override
    def under_way(self) -> bool:
        resume = self._resume
        return resume is not None and (isinstance(resume, MergedState) or resume.step > 0)

    @override
    def check_epoch(self, epoch: int, following: int) -> None:
        if self._resume is None or epoch == (here := self._resume.parts[0].user_epoch):
            return
        if self.under_way:
            raise another_epoch(epoch, here)
        self._resume = None  # it was taken before the first batch

    @override
    def steps_given(self, step: int) -> int:
        return step if self._resume is None else self._resume.parts[0].step

    @override
    def settings(self, epoch: int) -> dict[str, object]:
        more = {"epoch_steps": self._epoch_steps, "num_workers": self._how.num_workers}
        return super().settings(epoch if self._resume is None else self._resume.parts[0].user_epoch) | more

    @override
    def check(self, world: World) -> None:
        if torch.is_grad_enabled():
            warnings.warn(
                f"the {world.size} ranks may take different numbers of steps in an epoch: in training the others then "
                'wait for ever. epoch_steps=N gives each the same number, "shortest" and "pad" stop them together; '
                "for evaluation under torch.no_grad() nothing need be done",
                stacklevel=4,  # this, the meeting of the ranks, the loader
            )

    @override
    def warn_after_listing(self) -> None:
        if self.meeting.listing is not None:
            warn_of_idle(self.meeting.listing.shards, self.workers * self.meeting.world.size)

    @override
    def begin(self, epoch: int) -> tuple[int, int]:
        if self._resume is not None:
            saved = self._resume.parts[0]
            return saved.user_epoch, saved.step
        self._begin_at(epoch)
        return epoch, 0

    def _begin_at(self, epoch: int) -> None:
        """Set the pass that `epoch` begins in."""
        self.number = epoch

    @override
    def epoch(self, done: int) -> Iterator[Step]:
        return self._one()  # which continues after those done

    @override
    def finish(self) -> None:
        self._instances = None
        self._has_given = False
        self.number += 1

    def _one(self) -> Iterator[Step]:
        """Yield the steps of one pass, or of the rest of one."""
        resume, self._resume = self._resume, None
        world = self.meeting.world
        plans = self._fresh(self.number)
        if resume is not None:
            plans = plans_for(resume, world.rank, world.size, self.workers, self.meeting.digest)
        self._turn = 0
        self._instances = [plan.initial_state() for plan in plans]
        self._has_given = False
        return self._watched(plans)

    @override
    def record_output(self, worker: int, state: bytes | None) -> None:
        self._has_given = True
        self._turn = (worker + 1) % self.workers
        if state is not None and self._instances is not None:
            self._instances[worker] = state

    @override
    def samples_of(self, step: int) -> list[tuple[str, str]]:
        raise UsageError.at("samples_of() of a stream", todo="read by index: .read_samples()")

    @override
    def take_state(self) -> None:
        if self._asks and self._has_given and isinstance(self._engine, InProcessEngine):
            self._instances = [self._engine.state() or (self._instances or [b""])[0]]

    @override
    def saved(self, epoch: int, next_epoch: int, step: int) -> StreamState | MergedState:
        if self._no_state is not None:
            raise self._no_state
        if self._resume is not None:
            return self._resume
        under_way = self._instances is not None
        if not under_way:
            self._begin_at(next_epoch)
        self.take_state()
        world = self.meeting.world
        return StreamState(
            stages=self._stages,
            seed=int(self.seed),
            epoch=int(self.number),
            user_epoch=int(epoch if under_way and step else next_epoch),
            step=step,
            rank=world.rank,
            ranks=world.size,
            workers=self.workers,
            turn=self._turn,
            shards=self.meeting.digest,
            instances=None if self._instances is None else [unpack(state) for state in self._instances],
        )

    @override
    def load(self, state: object, allow: Collection[str]) -> None:
        if self._no_state is not None:
            raise self._no_state
        self._resume = check_state(state, self._stages)
        first = self._resume.parts[0]
        self.seed, self.number = first.seed, first.epoch
        self.forget()


class FixedStepRunner(StreamRunner):
    """Epochs of a fixed number of steps; the next continues in the data."""

    _stream: Iterator[Step] | None = None

    @property
    @override
    def length(self) -> int:
        assert isinstance(self._epoch_steps, int)
        return self._epoch_steps

    @override
    def check(self, world: World) -> None:
        pass

    @override
    def check_epoch(self, epoch: int, following: int) -> None:
        if self._resume is not None:
            following = self._resume.parts[0].user_epoch
            if self.under_way and epoch != following:
                raise another_epoch(epoch, following)
        if epoch != following:
            raise UsageError.at(
                f"set_epoch({epoch}) of a stream with epoch_steps={self.length}: the next epoch is {following}, and it "
                "begins in the data where the last one ended",
                todo="leave set_epoch() out, or read by index (.read_samples()), where each epoch can be set",
            )

    @override
    def _begin_at(self, epoch: int) -> None:
        pass

    @override
    def epoch(self, done: int) -> Iterator[Step]:
        stream = self._stream = self._stream or self._endless()
        for _ in range(self.length - done):
            yield next(stream)

    def _endless(self) -> Iterator[Step]:
        """Yield the steps of one pass after the other."""
        world = self.meeting.world
        none = UsageError.at(
            f"rank {world.rank} of {world.size} got no batch in a whole epoch, so it cannot give any",
            todo="use more shards than ranks, or smaller batches",
        )
        while True:
            yield from _some(self._one(), none)
            self.number += 1

    @override
    def finish(self) -> None:
        pass

    @override
    def forget(self) -> None:
        self._stream = None


class EqualStepRunner(StreamRunner):
    """An epoch is one pass over the data, which the ranks end together."""

    ahead = True
    _agreed = 0  # epochs that voted

    @override
    def check(self, world: World) -> None:
        if world.store is None:
            raise UsageError.at(
                f"epoch_steps={self._epoch_steps!r} asks the other ranks at every step, and rank= without store= "
                "cannot",
                todo="pass store=, or use epoch_steps=N",
            )

    @override
    def epoch(self, done: int) -> Iterator[Step]:
        steps, ranks = self._one(), self.meeting.ranks
        if self.meeting.world.size == 1:
            return steps
        assert ranks is not None
        self._agreed += 1
        more = self._again() if self._epoch_steps == "pad" else None
        return _stop_together(steps, StepVotes(ranks, self._agreed), more)

    def _again(self) -> Iterator[Step]:
        """Yield the pass from its start, for a rank without items: -1 as worker.

        A copy of the pipe reads it, as its items and errors have been counted by the ranks that read them first. The
        branches of a fork cannot be copied.
        """
        world, pipe = self.meeting.world, self._pipe
        if not any(is_fork(part) for part in upstream(pipe)):
            pipe = separate(pipe)
        settings = replace(self._settings(stateful=False), pipe=pipe)
        plan = InstancePlan.of(self.seed, self.number, 1, 0)
        plan = replace(plan, errors_by_job=True, on_node=ranks_of_node())
        none = LoaderError.at(
            f"rank {world.rank} of {world.size} has no batch left, and the epoch gave none when it was read from its "
            "start",
            todo="look whether stages of your own leave out samples at random, or the shards were deleted",
        )
        while True:
            engine = InProcessEngine(settings)
            for item, _, _ in _some(self._on_device(engine.epoch([plan]), engine), none):
                yield item, -1, None


def _some(steps: Iterator[Step], none: AISError) -> Iterator[Step]:
    """Yield the steps; raise `none` if there are none."""
    empty = True
    for step in steps:
        empty = False
        yield step
    if empty:
        raise none


def _stop_together(steps: Iterator[Step], votes: StepVotes, more: Iterator[Step] | None) -> Iterator[Step]:
    """Yield steps until one rank has none left, or, with `more`, all ranks.

    `more` has steps to repeat after the end of `steps`; their worker is -1.
    """
    with votes:
        step = next(steps, None)
        votes.ask(step is not None)
        while True:
            with_steps = votes.count()
            if with_steps == 0 or (more is None and with_steps < votes.ranks):
                return
            if step is None:
                assert more is not None
                step = next(more)
            # The vote on the next step is sent before this one is yielded: its answer comes during the training step.
            following = next(steps, None)
            votes.ask(following is not None)
            yield step
            step = following


def runner_class(epoch_steps: StepsName) -> type[StreamRunner]:
    """Return the class for ``epoch_steps=``.

    Example:
        >>> runner_class(100).__name__, runner_class("pad").ahead
        ('FixedStepRunner', True)
    """
    if isinstance(epoch_steps, str) and epoch_steps not in ("pad", "shortest"):
        raise UsageError.at(f"epoch_steps={epoch_steps!r}", todo='use None, a number, "pad" or "shortest"')
    if epoch_steps is not None and not isinstance(epoch_steps, int | str):
        raise UsageError.at(
            f"epoch_steps must be a whole number, got {epoch_steps!r}",
            todo="a number of batches, such as 1000",
        )
    if not isinstance(epoch_steps, int):
        return StreamRunner if epoch_steps is None else EqualStepRunner
    if epoch_steps < 1:
        raise UsageError.at(f"epoch_steps={epoch_steps}", todo="use at least 1")
    return FixedStepRunner
