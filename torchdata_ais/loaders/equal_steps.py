"""How many batches each rank gives: all its own, as many as the shortest, or as many as the longest rank.

Ranks have shards of their own and so different numbers of batches. Training that exchanges gradients needs equal
numbers. The ranks agree by one small collective for each step, begun one step ahead: it travels while the model
works on the batch before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from torchdata_ais.errors import AISError, LoaderError
from torchdata_ais.loaders.engines import Step
from torchdata_ais.ranks.alive import Ranks

__all__ = ["Agreement", "stop_together"]


class Agreement:
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


def stop_together(
    steps: Iterator[Step], agreement: Agreement, ranks: int, more: Iterator[Step] | None
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
