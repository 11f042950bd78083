"""Shuffling through a buffer, of shards and of samples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.shuffled import Reservoir, shuffled_through
from torchdata_ais.webdataset.currying import AlikeRandomStage, RandomStage
from torchdata_ais.webdataset.utils import PipelineStage


def pick(buf: list[Any], rng: random.Random) -> Any:
    """Take an item out of a list at random; the last one takes its place."""
    place = rng.randrange(len(buf))
    buf[place], buf[-1] = buf[-1], buf[place]
    return buf.pop()


class _Reservoir(Reservoir):
    """Draws as webdataset does: one seed gives one order in both."""

    def take(self) -> object:
        self.places.pop()  # for checkpoints, of which there are none here
        return pick(self.items, self.rng)


def shuffled(
    data: Iterable[object],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: Any = None,
    handler: object = None,
) -> Iterator[Any]:
    """Shuffle through a buffer, as `torchdata_ais.Shuffler` does.

    Draws by `rng`, else by a generator made of `seed` (None is 0). `handler` is not needed: nothing can fail.

    Memory:
        `bufsize` items.
    """
    del handler
    buffer = _Reservoir(0 if seed is None else seed)
    buffer.rng = rng or buffer.rng
    return shuffled_through(buffer, iter(data), bufsize, min(initial, bufsize))


class shuffle(RandomStage, PipelineStage):  # noqa: N801 - webdataset's name
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

    f = staticmethod(shuffled)

    @checked
    def __init__(
        self,
        bufsize: int = 1000,
        initial: int = 100,
        rng: random.Random | None = None,
        seed: object = None,
        handler: object = None,
        *,
        size: int | None = None,
    ) -> None:
        del handler
        if rng is not None and seed is not None:
            raise UsageError.at("both rng= and seed= were given", todo="pass one of them")
        bufsize = bufsize if size is None else size
        super().__init__(shuffled, (bufsize, initial, rng), {"seed": seed})

    def run(self, source: Iterable[object]) -> Iterator[Any]:
        """Yield the items of `source` in the order of the next epoch."""
        return self(source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.args[0]}, seed={self.kw['seed']})"


class detshuffle(shuffle, AlikeRandomStage):  # noqa: N801 - webdataset's name
    """Shuffle as `shuffle` does, in the same order in every rank and worker.

    The input must be the same.

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

    @checked
    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: object = 0, epoch: int = -1) -> None:
        super().__init__(bufsize, initial, seed=seed)
        self.epoch = epoch
