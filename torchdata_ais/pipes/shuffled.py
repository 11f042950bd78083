"""``.shuffled()``: mix samples through a buffer."""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchdata_ais._util.arguments import check_number
from torchdata_ais.pipes.base.contract import MemoryBound
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import EpochSeed, Seeded
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.state import GeneratorState, StageState, damaged

_log = logging.getLogger("torchdata_ais")
_END = object()


@stage("shuffled")
class Shuffler(Pipe[Any], Seeded):
    """Shuffle items through a buffer of bounded size (``.shuffled(bufsize)``).

    webdataset's reservoir: while the buffer fills, two items are taken in for each one given out, so that the
    first item does not wait for the whole buffer.

    Args:
        source: Pipe of anything; put it after `group_samples` and before decoding, where items are small.
        bufsize: Items in the buffer. More mixes better.
        initial: Items to have before the first is given out; default ``min(bufsize, 100)``. ``initial=bufsize``
            mixes the first items as well as the later ones.
        seed: Mixed into the seed the loader sends; without a loader the order is a function of it and the epoch.

    Yields:
        The items, each once.

    Order:
        A function of (order of the source, seed, epoch, worker); new in each epoch.

    Memory:
        ``bufsize`` items, whatever they hold: for samples, ``bufsize * max(sample)``.

        >>> Shuffler([], 1000).memory_bound().text
        '1000 items'

    Example:
        >>> sorted(Shuffler(range(5), 3)) == list(range(5))
        True
    """

    resumable = True
    gives = "each"
    mixes = True
    holds = True
    seed_per_instance = True

    def __init__(
        self, source: object, bufsize: int = 1000, initial: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(source)
        check_number(bufsize, 1, "bufsize")
        if any(stage_of(part).effect().gives == "batches" for part in upstream(self._source)):
            _log.warning(
                ".shuffled(%d) mixes whole batches: put it before .batched() to mix samples", bufsize
            )
        self._bufsize = bufsize
        self._initial = min(bufsize, 100 if initial is None else initial)
        self._enabled = True
        self.epoch_seed = EpochSeed(seed)
        self._resume: tuple[Any, int, int] | None = None

    def memory_bound(self) -> MemoryBound:
        return MemoryBound(f"{self._bufsize} items")

    def arguments(self) -> str:
        return f"{self._bufsize}"

    def identity(self) -> str:
        return f"{self._bufsize}, initial={self._initial}, seed={self.epoch_seed.seed}"

    def set_shuffle(self, shuffle: bool = True) -> Shuffler:
        """Turn shuffling on or off: torch's `DataLoader(shuffle=...)` calls it."""
        self._enabled = shuffle
        return self

    def _items(self) -> Iterator[object]:
        seed = self.epoch_seed.next_epoch()
        resume, self._resume = self._resume, None
        if not self._enabled:
            self._live = None  # of an epoch before, whose samples no state of this one may name
            yield from self._source
            return
        live = self._live = Reservoir(seed)
        source = iter(self._source)
        if resume is not None:
            state, held, below = resume
            yield from islice(source, below)  # shuffled before, and held by a stage below
            for item in islice(source, held):
                live.put(item)
            live.rng.setstate(state)
        yield from shuffled_through(live, source, self._bufsize, self._initial)

    def held_places(self) -> list[int]:
        return self._live.places if self._live is not None else []

    def save_state(self) -> GeneratorState | None:
        if self._live is None:
            return None
        version, words, _ = self._live.rng.getstate()
        return GeneratorState(version, array("I", words).tobytes())

    def load_state(self, state: StageState, below: int) -> None:
        self._resume = None
        if state.generator is None:
            return
        try:
            saved = state.generator.version, tuple(array("I", state.generator.words)), None
            random.Random().setstate(saved)
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(f"{self!r} cannot take it up ({type(error).__name__})") from None
        self._resume = saved, state.held, below


class Reservoir:
    """The buffer: items, each with its place in the data set for checkpoints."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.items: list[Any] = []
        self.places: list[int] = []

    def put(self, item: object) -> None:
        """Add an item."""
        self.items.append(item)
        self.places.append(getattr(item, "place", -1))

    def take(self) -> Any:
        """Remove and return a random item; the last one takes its place."""
        items, places = self.items, self.places
        index = int(self.rng.random() * len(items))
        item = items[index]
        items[index] = items[-1]
        places[index] = places[-1]
        items.pop()
        places.pop()
        return item


def shuffled_through(
    buffer: Reservoir, source: Iterator[object], bufsize: int, initial: int
) -> Iterator[Any]:
    """Yield the items of `source` in the order of `buffer`."""
    for item in source:
        buffer.put(item)
        # Two in, one out: the buffer grows from `initial` to `bufsize` while items are yielded.
        if len(buffer.items) < bufsize:
            more = next(source, _END)
            if more is not _END:
                buffer.put(more)
        if len(buffer.items) >= initial:
            yield buffer.take()
    while buffer.items:
        yield buffer.take()
