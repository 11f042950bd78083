"""How many batches each rank gives in an epoch: all its own, so many, as many as the shortest or the longest rank.

Ranks have shards of their own and so different numbers of batches. Training that exchanges gradients needs equal
numbers. The ranks agree over the store of torch.distributed, one step ahead: while the model works on the batch before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.engine import Step
from torchdata_ais.loaders.engine_options import StepsName
from torchdata_ais.ranks.steps import StepVotes
from torchdata_ais.world import World

if TYPE_CHECKING:
    from torchdata_ais.loaders.streamed import StreamPasses


class EpochSteps:
    """An epoch is one pass over the data; ranks end it each for itself, or together.

    Attributes:
        given: As the user wrote it.
        length: Steps of every epoch; None where the data decide.
        ahead: Whether an item is asked for before the one before it was given out.
    """

    length: int | None = None

    def __init__(self, given: StepsName) -> None:
        self.given = given
        self.ahead = isinstance(given, str)
        self._agreed = 0  # epochs that asked

    def check(self, world: World) -> None:
        """Raise or warn where several ranks cannot take steps in this way."""
        if self.ahead and world.store is None:
            raise UsageError.at(
                f"epoch_steps={self.given!r} asks the other ranks at every step, and rank= without store= cannot",
                todo="pass store=, or use epoch_steps=N",
            )
        if self.given is None and torch.is_grad_enabled():
            warnings.warn(
                f"the {world.size} ranks may take different numbers of steps in an epoch: in training the others then "
                'wait for ever. epoch_steps=N gives each the same number, "shortest" and "pad" stop them together; '
                "for evaluation under torch.no_grad() nothing need be done",
                stacklevel=5,  # this, its caller, the meeting of the ranks, the loader
            )

    def begin(self, passes: StreamPasses, epoch: int) -> None:
        """Set the pass that `epoch` begins in. The rest of an epoch begins where `passes` stands."""
        passes.number = epoch

    def steps(self, passes: StreamPasses, done: int) -> Iterator[Step]:
        """Yield the steps of the epoch, without the first `done`."""
        del done  # `passes` begins behind them
        steps, ranks = passes.one(), passes.meeting.ranks
        if not self.ahead or passes.meeting.world.size == 1:
            return steps
        assert ranks is not None
        more = passes.again() if self.given == "pad" else None
        self._agreed += 1
        return _stop_together(steps, StepVotes(ranks, self._agreed), more)

    def end(self, passes: StreamPasses) -> None:
        """Note that all steps were given."""
        passes.end()

    def forget(self) -> None:
        """Go on where `passes` stands: a state was loaded, or an error came."""


class _FixedSteps(EpochSteps):
    """An epoch is so many steps; the next goes on in the data where it stopped."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length
        self._stream: Iterator[Step] | None = None

    @override
    def begin(self, passes: StreamPasses, epoch: int) -> None:
        pass

    @override
    def steps(self, passes: StreamPasses, done: int) -> Iterator[Step]:
        stream = self._stream = self._stream or passes.endless()
        for _ in range((self.length or 0) - done):
            yield next(stream)

    @override
    def end(self, passes: StreamPasses) -> None:
        pass

    @override
    def forget(self) -> None:
        self._stream = None


def steps_named(given: StepsName) -> EpochSteps:
    """Return what ``epoch_steps=`` asks for.

    Example:
        >>> steps_named(100).length, steps_named("pad").ahead
        (100, True)
    """
    if isinstance(given, str) and given not in ("pad", "shortest"):
        raise UsageError.at(f"epoch_steps={given!r}", todo='use None, a number, "pad" or "shortest"')
    if given is not None and not isinstance(given, int | str):
        raise UsageError.at(
            f"epoch_steps={given!r} is no whole number", todo="a number of batches, such as 1000"
        )
    if not isinstance(given, int):
        return EpochSteps(given)
    if given < 1:
        raise UsageError.at(f"epoch_steps={given}", todo="use at least 1")
    return _FixedSteps(given)


def _stop_together(steps: Iterator[Step], votes: StepVotes, more: Iterator[Step] | None) -> Iterator[Step]:
    """Yield steps until one rank has none left, or, with `more`, until no rank has.

    Args:
        steps: This rank's own.
        votes: Counts the ranks that have one more.
        more: Steps to repeat when `steps` has ended; their worker is -1.
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
            following = next(steps, None)
            votes.ask(following is not None)
            yield step
            step = following
