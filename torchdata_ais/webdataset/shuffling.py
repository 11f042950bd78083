"""Shuffling through a buffer, of shards and of samples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.webdataset.utils import PipelineStage, loader_seed, run_seed

__all__ = ["detshuffle", "shuffle", "shuffled"]

_END = object()


def shuffled(
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: Any = None,
    handler: Any = None,
) -> Iterator[Any]:
    """Shuffle through a buffer: while it fills, two items are taken in for each one given out.

    Args:
        data: The items.
        bufsize: Items in the buffer.
        initial: Items to have before the first is given out.
        rng: Draws; else a generator made of `seed`.
        seed: None is 0.
        handler: Not needed: nothing can fail.

    Memory:
        `bufsize` items.
    """
    del handler
    rng = random.Random(0 if seed is None else seed) if rng is None else rng
    initial = min(initial, bufsize)
    source = iter(data)
    buffer: list[Any] = []
    for item in source:
        buffer.append(item)
        if len(buffer) < bufsize:
            more = next(source, _END)
            if more is not _END:
                buffer.append(more)
        if len(buffer) >= initial:
            yield _take(buffer, rng)
    while buffer:
        yield _take(buffer, rng)


def _take(buffer: list[Any], rng: random.Random) -> Any:
    index = rng.randint(0, len(buffer) - 1)
    item = buffer[index]
    buffer[index] = buffer[-1]
    buffer.pop()
    return item


class shuffle(PipelineStage):  # noqa: N801 - webdataset's name
    """Shuffle through a buffer, in a new order in every epoch.

    Without ``rng=`` the order is a function of (seed, epoch, rank, worker). The first epoch outside of workers is the
    one webdataset has for the same `seed`; it repeats that one for ever.

    Args:
        bufsize: Items in the buffer; below 2 nothing is shuffled.
        initial: Items to have before the first is given out.
        rng: A `random.Random` that draws, instead of `seed`.
        seed: None is 0.
        handler: Not needed: nothing can fail.
        size: Another name of `bufsize`.

    Attributes:
        epoch: Number of the last run in this process, from 0; -1 before the first.

    Example:
        >>> sorted(shuffle(10)(range(5)))
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        bufsize: int = 1000,
        initial: int = 100,
        rng: random.Random | None = None,
        seed: Any = None,
        handler: Any = None,
        *,
        size: int | None = None,
    ) -> None:
        del handler
        if rng is not None and seed is not None:
            raise UsageError.at("both rng= and seed= were given", todo="pass one of them")
        self.bufsize = bufsize if size is None else size
        self.initial = initial
        self.rng = rng
        self.seed = seed
        self.epoch = -1

    f = staticmethod(shuffled)

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of `source` in the order of the next epoch."""
        self.epoch += 1
        return shuffled(source, self.bufsize, self.initial, self.rng, self._seed())

    def _seed(self) -> Any:
        return run_seed(self.seed, self.epoch)

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Do the same as `run`."""
        return self.run(source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bufsize}, seed={self.seed})"


class detshuffle(shuffle):  # noqa: N801 - webdataset's name
    """Shuffle as `shuffle` does, in an order that is the same in every rank and worker for the same input.

    Args:
        bufsize: Items in the buffer.
        initial: Items to have before the first is given out.
        seed: The first epoch's, together with `epoch`.
        epoch: Number of the epoch before the first.

    Example:
        >>> one, other = detshuffle(10, seed=1), detshuffle(10, seed=1)
        >>> list(one(range(9))) == list(other(range(9)))
        True
    """

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: Any = 0, epoch: int = -1) -> None:
        super().__init__(bufsize, initial, seed=seed)
        self.epoch = epoch

    def _seed(self) -> Any:
        if loader_seed() is None and isinstance(self.seed, int):
            return self.seed + self.epoch
        return run_seed(self.seed, self.epoch, own=False)
