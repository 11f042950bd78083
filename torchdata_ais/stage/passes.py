"""A pipe iterated again and again, in an order of its own each time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.seed import mix_seed
from torchdata_ais.stage.shared_seed import reseed


class Passes:
    """Goes through a pipe several times.

    From the second pass on, the random stages of the pipe get seeds that follow from `seed` and the number of the
    pass. Left alone, torch's ``.shuffle()`` would draw another one in each worker: the sharding filter would then
    split different orders, and shards would be lost and doubled.

    Args:
        source: The pipe.
        seed: The same in every rank and worker.

    Attributes:
        begun: Passes begun so far.
    """

    def __init__(self, source: IterDataPipe[Any], seed: int) -> None:
        self._source = source
        self._seed = seed
        self.begun = 0

    def items(self, most: int | None = None) -> Iterator[Any]:
        """Yield the items of the next passes, at most `most` in all; a pass without items is the last."""
        while most is None or self.begun < most:
            if self.begun:
                reseed(self._source, mix_seed(self._seed, "pass", self.begun))
            self.begun += 1
            empty = True
            for item in self._source:
                empty = False
                yield item
            if empty:
                return
