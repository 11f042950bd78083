"""``.rsample()``: a random part of the items."""

from __future__ import annotations

from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.each_item import DROPPED, EachItem
from torchdata_ais.stage.pipe import as_pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.shared_seed import SampleSeeds, SharedEpochSeed, with_shared_seed


@stage("rsample")
class Subsampler(EachItem[Any]):
    """Keep each item with probability `p` (``.rsample(0.1)``): samples, or shards before they are read.

    Whether a sample is kept depends on its key (a shard: on its URL), the seed and the epoch: the same samples for
    any number of ranks and workers, others in each epoch. Below ``.read_samples()`` it is the draw of its source that
    counts instead of the key. Items without a key are drawn one after the other.

    Args:
        source: Pipe of anything.
        p: Share to keep, from 0 to 1.
        seed: Mixed into the seed of the epoch.

    Yields:
        The items kept, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> list(Subsampler(range(3), 1.0)), list(Subsampler(range(3), 0.0))
        ([0, 1, 2], [])
    """

    epoch_seed: SharedEpochSeed

    gives = "fewer"

    def __init__(self, source: Any, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(with_shared_seed(as_pipe(source)), "raise", None)
        if not 0.0 <= p <= 1.0:
            raise UsageError.at(f"p={p}", todo="use a share from 0 to 1")
        self._p = p
        self.epoch_seed = SharedEpochSeed(seed)

    def _shown(self) -> list[str]:
        return [f"{self._p}"]

    def _begin(self) -> None:
        self._live = SampleSeeds(self, self.epoch_seed.next_epoch_of(self), self.epoch_seed.seed)

    def _one(self, item: Any) -> Any:
        return item if self._live.of(item) < self._p * 2.0**64 else DROPPED

    def save_state(self) -> None:
        if self._live is not None:
            self._live.check_saveable()
