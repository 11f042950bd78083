"""``.mix_round_robin()`` and ``.mix_random()``: items of several pipes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from torchdata_ais._util.arguments import check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe, as_pipe, check_source
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import EpochSeed, Seeded
from torchdata_ais.pipes.base.torch_pipes import deepcopy_pipe
from torchdata_ais.pipes.base.upstream import below_plan

_END = object()


def several_pipes(source: object, others: tuple[object, ...]) -> list[IterDataPipe[object]]:
    """Return the pipes to mix: `source` and `others`, or those in a list."""
    given = list(source) if not others and isinstance(source, (list, tuple)) else [source, *others]
    if not given:
        raise UsageError.at("there is nothing to mix", todo="pass pipes: RoundRobin([a, b])")
    pipes: list[IterDataPipe[object]] = []
    for item in given:
        pipe = as_pipe(item)
        check_source(pipe)
        if below_plan(pipe):
            raise UsageError.at(
                "several pipes of which one begins with .read_samples() cannot be mixed: each plan holds for one pipe",
                todo="mix indexes: .read_samples() of a Mixture({index: weight, ...})",
            )
        # torch allows one iterator of a pipe at a time.
        pipes.append(deepcopy_pipe(pipe) if any(pipe is other for other in pipes) else pipe)
    return pipes


@stage("mix_round_robin")
class RoundRobin(Pipe[Any]):
    """Take one item of each pipe in turn (``a.mix_round_robin(b, c)``).

    ``RoundRobin([a, b, c])`` does the same.

    Args:
        source: A pipe, or a list of all pipes.
        *others: The other pipes.
        longest: Whether to go on with the rest when a pipe has ended; else the stream ends there.

    Yields:
        Their items.

    Order:
        A function of the order of the pipes. Each worker mixes what it reads itself.

    Memory:
        One item, and what the pipes hold.

    Example:
        >>> list(RoundRobin([[1, 2, 3], [10, 20]]))
        [1, 10, 2, 20, 3]
        >>> list(RoundRobin([[1, 2, 3], [10]], longest=True))
        [1, 10, 2, 3]
    """

    def __init__(self, source: object, *others: object, longest: bool = False) -> None:
        super().__init__()
        self._sources = several_pipes(source, others)
        self._longest = longest

    def arguments(self) -> str:
        return f"{len(self._sources)} pipes" + (", longest=True" if self._longest else "")

    def _items(self) -> Iterator[object]:
        running = [iter(pipe) for pipe in self._sources]
        index = 0
        while running:
            index %= len(running)
            item = next(running[index], _END)
            if item is not _END:
                yield item
                index += 1
            elif self._longest:
                del running[index]
            else:
                return


@stage("mix_random")
class RandomMix(Pipe[Any], Seeded):
    """Take items from random pipes (``a.mix_random(b, probs=[0.9, 0.1])``).

    ``RandomMix([a, b])`` does the same.

    Args:
        source: A pipe, or a list of all pipes.
        *others: The other pipes.
        probs: Weights of the pipes, in any scale; default all the same. One with weight 0 is never taken from.
        longest: Whether to go on with the rest when a pipe has ended; else the stream ends there.
        seed: Mixed into the seed the loader sends; without a loader the choice is a function of it and the epoch.

    Yields:
        Their items.

    Order:
        A function of (order of the pipes, seed, epoch, worker); new in each epoch. Each worker mixes what it reads
        itself.

    Memory:
        One item, and what the pipes hold.

    Raises:
        UsageError: Weights that are not one finite number, zero or more, for each pipe, or that are all zero.

    Example:
        >>> sorted(RandomMix([[1, 2, 3], [10, 20]], longest=True))
        [1, 2, 3, 10, 20]
        >>> list(RandomMix([[1, 2], [10, 20]], probs=[1, 0]))
        [1, 2]
    """

    mixes = True

    def __init__(
        self,
        source: object,
        *others: object,
        probs: Sequence[float] | None = None,
        longest: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._sources = pipes = several_pipes(source, others)
        weights = [1.0] * len(pipes)
        if probs is not None:
            for weight in probs:
                check_number(weight, 0, "probs", whole=False)
            weights = [float(weight) for weight in probs]
        if len(weights) != len(pipes):
            raise UsageError.at(
                f"{len(weights)} weights for {len(pipes)} pipes", todo="give each pipe one in probs="
            )
        if not all(math.isfinite(p) and p >= 0 for p in weights) or sum(weights) <= 0:
            raise UsageError.at(f"probs={weights}", todo="use numbers from 0 on, at least one above 0")
        self._weights = weights
        self._longest = longest
        self.epoch_seed = EpochSeed(seed)

    def arguments(self) -> str:
        longest = ", longest=True" if self._longest else ""
        return f"{len(self._sources)} pipes, probs={self._weights}{longest}"

    def _items(self) -> Iterator[object]:
        rng = random.Random(self.epoch_seed.next_epoch())
        running = [
            (iter(pipe), weight)
            for pipe, weight in zip(self._sources, self._weights, strict=True)
            if weight > 0
        ]
        while running:
            weights = [weight for _, weight in running]
            index = rng.choices(range(len(running)), weights)[0]
            item = next(running[index][0], _END)
            if item is not _END:
                yield item
            elif self._longest:
                del running[index]
            else:
                return
