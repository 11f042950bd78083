"""``.select()``, ``.rsample()``, ``.slice_samples()``: some of the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torchdata_ais._util.arguments import check_function
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.each_item import DROPPED, EachItem, shown_function
from torchdata_ais.pipes.base.pipe import Pipe, as_pipe
from torchdata_ais.pipes.base.policy import OnError
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.planned.shared_seed import SampleSeeds, SharedEpochSeed, with_shared_seed


@stage("select")
class Selector(EachItem[Any]):
    """Keep the items for which a function is true (``.select(predicate)``).

    Args:
        source: Pipe of anything.
        predicate: Function of an item.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many items to give up: a count, or a share of all.

    Yields:
        The items chosen, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        Exception: Whatever `predicate` raises.

    Example:
        >>> list(Selector(range(5), lambda x: x % 2 == 0))
        [0, 2, 4]
    """

    gives = "fewer"

    def __init__(
        self,
        source: object,
        predicate: Callable[[Any], object],
        *,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        check_function(predicate, 1, "select()")
        self._predicate = predicate

    def _shown(self) -> list[str]:
        return [shown_function(self._predicate)]

    def _one(self, item: object) -> object:
        return item if self._predicate(item) else DROPPED


@stage("rsample")
class Subsampler(EachItem[Any]):
    """Keep each item with probability `p` (``.rsample(0.1)``).

    Items are samples, or shards before they are read.
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

    def __init__(self, source: object, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(with_shared_seed(as_pipe(source)), "raise", None)
        if not 0.0 <= p <= 1.0:
            raise UsageError.at(f"p={p}", todo="use a share from 0 to 1")
        self._p = p
        self.epoch_seed = SharedEpochSeed(seed)

    def _shown(self) -> list[str]:
        return [f"{self._p}"]

    def _begin(self) -> None:
        self._live = SampleSeeds(self, self.epoch_seed.next_epoch_of(self), self.epoch_seed.seed)

    def _one(self, item: object) -> object:
        return item if self._live.of(item) < self._p * 2.0**64 else DROPPED

    def save_state(self) -> None:
        if self._live is not None:
            self._live.check_saveable()


@stage("slice_samples")
class Slicer(Pipe[Any]):
    """Take a slice, as `itertools.islice` does (``.slice_samples(100)``).

    (``.slice()`` is torchdata's: it cuts inside each item.) Each worker counts its own items: with four workers
    ``.slice_samples(100)`` gives up to 400. For an exact number over all workers: ``.with_epoch(n)``.

    Args:
        source: Pipe of anything.
        *bounds: ``stop``, or ``start, stop``, or ``start, stop, step``; `stop` may be None.

    Yields:
        The items of the slice. Nothing more is taken from the source once it is full.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        UsageError: The bounds are none.

    Example:
        >>> list(Slicer(range(10), 2, 8, 3))
        [2, 5]
    """

    gives = "fewer"

    def __init__(self, source: object, *bounds: int | None) -> None:
        super().__init__(source)
        try:
            islice((), *bounds)
        except (ValueError, TypeError) as error:
            raise UsageError.at(
                f"slice_samples{bounds}", todo="give a stop, or start, stop and step, none negative"
            ) from error
        self._bounds = bounds

    def arguments(self) -> str:
        return ", ".join(map(str, self._bounds))

    def _items(self) -> Iterator[object]:
        yield from islice(self._source, *self._bounds)
