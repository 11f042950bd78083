"""``.repeated()`` and ``.with_epoch()``: a pipe iterated several times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any

from torchdata_ais._util.arguments import check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe, as_pipe
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.pipes.base.upstream import ensure_sharded
from torchdata_ais.pipes.planned.batches import say_no_steps
from torchdata_ais.pipes.planned.shared_seed import (
    SharedEpochSeed,
    instances_of,
    reseed,
    sharder_above,
    with_shared_seed,
)


def passes(begin: Callable[[], Iterable[object]], most: int | None = None) -> Iterator[Any]:
    """Yield the items of `most` started passes; one without items is the last."""
    for _ in count() if most is None else range(most):
        empty = True
        for item in begin():
            empty = False
            yield item
        if empty:
            return


def _beginning(source: IterDataPipe[object], seed: int) -> Callable[[], Iterable[object]]:
    """Return a function that begins the next pass over `source`.

    From the second pass on, the random stages of the pipe get seeds that follow from `seed`, equal in every rank and
    worker, and the number of the pass. Left alone, torch's ``.shuffle()`` would draw another one in each worker: the
    sharding filter would then split different orders, and shards would be lost and doubled.
    """
    numbers = count()

    def begin() -> Iterable[object]:
        number = next(numbers)
        if number:
            reseed(source, mix_seed(seed, "pass", number))
        return source

    return begin


@stage("repeated")
class Repeater(Pipe[Any]):
    """Go through the source several times (``.repeated(3)``).

    ``.repeated()`` has no end.
    (``.repeat(n)`` is torchdata's: it repeats each item.) Each pass has its own order and its own random draws, and
    the passes of all ranks and workers fit together. Before ``.load_tar()`` it repeats shards, which keeps every
    worker busy even when there are fewer shards than workers.

    Args:
        source: Pipe of anything.
        nepochs: Passes; None or -1 for no end.
        nbatches: Items in all, in this worker; None or -1 for no bound.

    Yields:
        The items of the passes, one after the other. A source without items ends the stream.

    Order:
        That of the source, in each pass.

    Memory:
        One item.

    Example:
        >>> list(Repeater(range(3), 2))
        [0, 1, 2, 0, 1, 2]
        >>> list(Repeater(range(3), nbatches=5))
        [0, 1, 2, 0, 1]
    """

    repeats = True
    gives = "more"

    epoch_seed: SharedEpochSeed

    def __init__(self, source: object, nepochs: int | None = None, nbatches: int | None = None) -> None:
        super().__init__(with_shared_seed(as_pipe(source)))
        say_no_steps(self._source, "repeated")
        for name, value in (("nepochs", nepochs), ("nbatches", nbatches)):
            if value is not None and (not isinstance(value, int) or (value < 1 and value != -1)):
                raise UsageError.at(f"{name}={value!r}", todo="use at least 1, or None for no end")
        self._nepochs = None if nepochs == -1 else nepochs
        self._nbatches = None if nbatches == -1 else nbatches
        self.epoch_seed = SharedEpochSeed()

    def arguments(self) -> str:
        shown = [] if self._nepochs is None else [f"{self._nepochs}"]
        return ", ".join(shown + ([] if self._nbatches is None else [f"nbatches={self._nbatches}"]))

    def _items(self) -> Iterator[object]:
        begin = _beginning(self._source, self.epoch_seed.next_epoch_of(self))
        yield from islice(passes(begin, self._nepochs), self._nbatches)


@stage("with_epoch")
class EpochSetter(Pipe[Any]):
    """Make epochs of `nsamples` items (``.with_epoch(10_000)``).

    They are cut out of an endless repetition of the source.
    An epoch continues where the last one stopped, so that short epochs reach all the data, and each pass over the
    source gives every item once. The number is that of all ranks and workers together: each takes
    ``nsamples // instances`` items, the first ones one more. A path without sharding filter gets one.

    The place in the stream lives in the worker process: with torch's `DataLoader`, set ``persistent_workers=True``.
    New workers begin a new pass instead. Items that a loader had fetched ahead when an epoch was left early
    are passed over.

    Args:
        source: Pipe of anything.
        nsamples: Items an epoch; samples or batches, whatever there is at this place.
        nbatches: The same, under the name webdataset gives it after ``.batched()``.

    Yields:
        The items.

    Order:
        That of the source; the next pass begins where one ends, in another order.

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

    def __init__(self, source: object, nsamples: int = -1, nbatches: int = -1) -> None:
        super().__init__(with_shared_seed(ensure_sharded(as_pipe(source))))
        check_number(nsamples, -1, "nsamples")
        number = max(nsamples, nbatches)
        if number < 1:
            raise UsageError.at(f"an epoch of {number} items", todo="use at least 1: .with_epoch(10_000)")
        self._number = number
        self.epoch_seed = SharedEpochSeed()

    def arguments(self) -> str:
        return f"{self._number}"

    def _items(self) -> Iterator[object]:
        if self._live is None:
            begin = _beginning(self._source, self.epoch_seed.next_epoch_of(self))
            self._live = begin, passes(begin)
        for _ in range(self._share()):
            yield self._next()

    def _next(self) -> object:
        begin, items = self._live
        try:
            return next(items)
        except BaseException as error:
            # The generator is spent: the next epoch begins a new pass.
            self._live = begin, passes(begin)
            if not isinstance(error, StopIteration):
                raise
            instances, _ = instances_of(sharder_above(self._source))
            raise UsageError.at(
                f"an epoch of {self._number} items over {instances} workers of all ranks cannot be made:"
                " a pass over the source gave this one nothing",
                todo="use fewer workers or more shards, or repeat the shards: .repeated() before .load_tar()",
            ) from None

    def _share(self) -> int:
        """Return how many items this worker takes."""
        instances, instance = instances_of(sharder_above(self._source))
        return self._number // instances + (instance < self._number % instances)
