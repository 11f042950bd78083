"""How many batches each rank gives in an epoch: all its own, so many, as many as the shortest or the longest rank.

Ranks have shards of their own and so different numbers of batches. Training that exchanges gradients needs equal
numbers. The ranks agree by one small collective for each step, begun one step ahead: it travels while the model
works on the batch before.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from typing_extensions import override

from torchdata_ais.errors import AISError, LoaderError, UsageError
from torchdata_ais.loaders.engines import Step
from torchdata_ais.loaders.passes import Passes
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.world import World, WorldOptions

__all__ = ["EpochSteps", "StepsName", "steps_named"]

StepsName = int | Literal["pad", "shortest"] | None
"""What a user writes."""


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

    def check(self, world: World, options: WorldOptions) -> None:
        """Raise or warn where several ranks cannot take steps in this way."""
        elsewhere = any(given is not None for given in (options.rank, options.mesh, options.group))
        if self.ahead and elsewhere:
            raise UsageError.at(
                f"epoch_steps={self.given!r} asks the ranks of torch.distributed at every step, and rank=, mesh= or "
                "group= names others",
                todo="use epoch_steps=N, or leave those out",
            )
        if self.given is None and torch.is_grad_enabled():
            warnings.warn(
                f"the {world.size} ranks may take different numbers of steps in an epoch: in training the others then "
                'wait for ever. epoch_steps=N gives each the same number, "shortest" and "pad" stop them together; '
                "for evaluation under torch.no_grad() nothing need be done",
                stacklevel=4,
            )

    def begin(self, passes: Passes, epoch: int) -> None:
        """Set the pass that `epoch` begins in. The rest of an epoch begins where `passes` stands."""
        passes.number = epoch

    def steps(
        self, passes: Passes, world: World, listing: Listing, ranks: Ranks | None, done: int
    ) -> Iterator[Step]:
        """Yield the steps of the epoch, without the first `done`."""
        del done  # `passes` begins behind them
        steps = passes.one(world, listing)
        if not self.ahead or world.size == 1:
            return steps
        assert ranks is not None
        more = passes.again(world, listing) if self.given == "pad" else None
        return _stop_together(steps, _Agreement(ranks), world.size, more)

    def end(self, passes: Passes) -> None:
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
    def begin(self, passes: Passes, epoch: int) -> None:
        pass

    @override
    def steps(
        self, passes: Passes, world: World, listing: Listing, ranks: Ranks | None, done: int
    ) -> Iterator[Step]:
        stream = self._stream = self._stream or passes.endless(world, listing)
        for _ in range((self.length or 0) - done):
            yield next(stream)

    @override
    def end(self, passes: Passes) -> None:
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
    if not isinstance(given, int):
        return EpochSteps(given)
    if given < 1:
        raise UsageError.at(f"epoch_steps={given}", todo="use at least 1")
    return _FixedSteps(given)


class _Agreement:
    """Asks all ranks a yes-or-no question, step by step.

    Args:
        ranks: Looked at while waiting: another rank may have failed.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        # The default group may be of a backend that only knows GPUs.
        self._group: Any = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def ask(self, answer: bool) -> Callable[[], int]:
        """Begin to count the ranks that answer yes; return a function that waits for the count."""
        votes = torch.tensor([int(answer)])
        work: Any = dist.all_reduce(votes, group=self._group, async_op=True)

        def wait() -> int:
            pause_s = 0.0002
            try:
                while not work.is_completed():
                    self._ranks.look_round()
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, 0.01)
                work.wait()
            except RuntimeError as error:
                if not isinstance(error, AISError):
                    self._explain(error)
                raise
            return int(votes)

        return wait

    def _explain(self, error: RuntimeError) -> None:
        """Raise what ended the rank whose connection broke, if it can be learned."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            self._ranks.check()
            time.sleep(0.05)
        raise LoaderError.at(
            f"another rank is gone without a word: {error}", todo="look at the output of the other ranks"
        ) from error


def _stop_together(
    steps: Iterator[Step], agreement: _Agreement, ranks: int, more: Iterator[Step] | None
) -> Iterator[Step]:
    """Yield steps until one rank has none left, or, with `more`, until no rank has.

    Args:
        steps: This rank's own.
        agreement: Over the ranks.
        ranks: How many there are.
        more: Steps to repeat when `steps` has ended; their worker is -1.
    """
    step = next(steps, None)
    count = agreement.ask(step is not None)
    while True:
        with_steps = count()
        if with_steps == 0 or (more is None and with_steps < ranks):
            return
        if step is None:
            assert more is not None
            step = next(more)
        following = next(steps, None)
        count = agreement.ask(following is not None)
        yield step
        step = following
