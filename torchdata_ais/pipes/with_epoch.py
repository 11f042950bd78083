"""``.with_epoch()``: epochs of a given length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torchdata_ais.arguments import check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.stage.above import ensure_sharded
from torchdata_ais.stage.passes import Passes
from torchdata_ais.stage.pipe import Pipe, as_pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.shared_seed import SharedEpochSeed, instances_of, sharder_above, with_shared_seed


class _Stream(NamedTuple):
    passes: Passes
    items: Iterator[Any]


@stage("with_epoch")
class EpochSetter(Pipe[Any]):
    """Make epochs of `nsamples` items out of an endless repetition of the source (``.with_epoch(10_000)``).

    An epoch goes on where the last one stopped, so that short epochs reach all the data, and each pass over the
    source gives every item once. The number is that of all ranks and workers together: each takes
    ``nsamples // instances`` items, the first ones one more. A path without sharding filter gets one.

    The place in the stream lives in the worker process: with torch's `DataLoader`, set ``persistent_workers=True``.
    Workers made anew begin a new pass instead. Items that a loader had fetched ahead when an epoch was left early
    are passed over.

    Args:
        source: Pipe of anything.
        nsamples: Items an epoch; samples or batches, whatever there is at this place.
        nbatches: The same, under the name webdataset gives it behind ``.batched()``.

    Yields:
        The items.

    Order:
        That of the source; the next pass begins where one ends, in an order of its own.

    Memory:
        One item. Between two epochs the stages before it stay as they are: open shards, shuffle buffers.

    Raises:
        UsageError: A pass over the source gives this worker nothing, so that it cannot take its part.

    Example:
        >>> pipe = EpochSetter(range(5), 3)
        >>> list(pipe), list(pipe)
        ([0, 1, 2], [3, 4, 0])
    """

    repeats = True

    epoch_seed: SharedEpochSeed

    def __init__(self, source: Any, nsamples: int = -1, nbatches: int = -1) -> None:
        source = with_shared_seed(ensure_sharded(as_pipe(source)))
        super().__init__(source)
        check_number(nsamples, -1, "nsamples")
        number = max(nsamples, nbatches)
        if number < 1:
            raise UsageError.at(f"an epoch of {number} items", todo="use at least 1: .with_epoch(10_000)")
        self._number = number
        self.epoch_seed = SharedEpochSeed()

    def arguments(self) -> str:
        return f"{self._number}"

    def _items(self) -> Iterator[Any]:
        if self._live is None:
            passes = Passes(self._source, self.epoch_seed.next_epoch_of(self))
            self._live = _Stream(passes, passes.items())
        for _ in range(self._share()):
            yield self._next()

    def _next(self) -> Any:
        stream: _Stream = self._live
        try:
            return next(stream.items)
        except BaseException as error:
            # The generator is spent: the next epoch begins a new pass.
            self._live = stream._replace(items=stream.passes.items())
            if isinstance(error, StopIteration):
                raise self._no_items() from None
            raise

    def _share(self) -> int:
        """Return how many items this worker takes."""
        instances, instance = instances_of(sharder_above(self._source))
        return self._number // instances + (instance < self._number % instances)

    def _no_items(self) -> UsageError:
        instances, _ = instances_of(sharder_above(self._source))
        return UsageError.at(
            f"an epoch of {self._number} items over {instances} workers of all ranks cannot be made:"
            " a pass over the source gave this one nothing",
            todo="use fewer workers or more shards, or repeat the shards: .repeated() before .load_tar()",
        )
