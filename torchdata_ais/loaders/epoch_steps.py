"""Lengths of epochs: all batches, fixed, shortest or longest rank.

Each rank has its own shards, and so ranks have different numbers of batches. Training that exchanges gradients needs
equal numbers. The ranks agree over the store of torch.distributed, one step ahead: while the model works on the batch
before.
"""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from torchdata_ais._util.world import World
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.engine import InProcessEngine, Step
from torchdata_ais.loaders.epoch_runner import StepsName, another_epoch
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.streamed import StreamRunner
from torchdata_ais.ranks.steps import StepVotes


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
        while True:
            empty = True
            for step in self._one():
                empty = False
                yield step
            if empty:
                world = self.meeting.world
                raise UsageError.at(
                    f"rank {world.rank} of {world.size} got no batch in a whole epoch, so it cannot give any",
                    todo="use more shards than ranks, or smaller batches",
                )
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
        """Yield the pass from its start, for a rank without items: -1 as worker."""
        while True:
            engine = InProcessEngine(self._settings(stateful=False))
            steps = engine.epoch([InstancePlan.of(self.seed, self.number, 1, 0)])
            for item, _, _ in self._on_device(steps, engine):
                yield item, -1, None


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
