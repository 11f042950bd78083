"""Order of the remaining shards.

A shard is named by its *position*: its index in the epoch's order before the split over ranks and workers. The
order itself is not stored, it is a function of (data, seed, epoch). In a fresh epoch instance `i` of `n` reads the
positions ``i, i + n, i + 2n, ...``: the count read so far says all. After a resume on another topology the rest is
redistributed, and a bitmap contains the remaining shards.

Shards come from one lister, and torch's ``.shuffle()`` may mix them. What it would do to their names is done here to
their numbers: the same draws, the same order, and a million shards are 4 MB.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdata_ais._util.formatting import count_text
from torchdata_ais.pipes.base.meter import count_given
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe, ShardingFilter
from torchdata_ais.pipes.base.torch_pipes import Collator, Mapper, Shuffler
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import parents
from torchdata_ais.pipes.planned.shared_seed import SharedSeed, instances_of
from torchdata_ais.state import ReaderState
from torchdata_ais.store import PackedURLs
from torchdata_ais.urls import ObjectURL


class ListedOrder(NamedTuple):
    """Listed shards, and the stages that pass all of them on, nearest first."""

    urls: PackedURLs
    stages: list[IterDataPipe[object]]

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the shards in the order of the starting epoch."""
        numbers: Iterable[int] = range(len(self.urls))
        for stage in self.stages:
            if type(stage) is Shuffler:
                stage.reset()
                numbers = _shuffled_by(stage, numbers)
            elif isinstance(stage, Pipe):
                count_given(stage, len(self.urls))
        return iter(numbers)


class EpochURLs:
    """The shards of an epoch in its order; made when the epoch begins."""

    def __init__(self, order: ListedOrder) -> None:
        self._urls = order.urls
        self._numbers = array("I", order.numbers())

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, position: int) -> ObjectURL:
        return self._urls[self._numbers[position]]


def listed_order(pipe: IterDataPipe[object]) -> ListedOrder | None:
    """Return the shards of `pipe`, if they are listed and at most mixed."""
    stages: list[IterDataPipe[object]] = []
    while (urls := stage_of(pipe).packed()) is None:
        above = parents(pipe)
        if type(pipe) not in (Shuffler, SharedSeed) or len(above) != 1:
            return None
        stages.insert(0, pipe)
        pipe = above[0]
    return ListedOrder(urls, [pipe, *stages])


def _shuffled_by(shuffler: Any, items: Iterable[int]) -> Iterator[int]:
    """Yield `items` as torch's stage `shuffler` does after its reset."""
    if not shuffler._enabled:
        yield from items
        return
    draw, size = shuffler._rng.randint, shuffler.buffer_size
    waiting = array("I")
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
            continue
        index = draw(0, size - 1)
        drawn, waiting[index] = waiting[index], item
        yield drawn
    while waiting:
        yield waiting.pop(draw(0, len(waiting) - 1))


_log = logging.getLogger("torchdata_ais")


def warn_of_idle(shards: int, workers: int) -> None:
    """Log that some workers of all ranks get no shard; 0 shards: not known."""
    if 0 < shards < workers:
        _log.warning(
            "%s for %d workers (over all ranks): %d get none. Use at most as many workers as shards, or more, "
            "smaller shards",
            count_text(shards, "shard"),
            workers,
            workers - shards,
        )


def positions_of(bits: bytes) -> Iterator[int]:
    """Yield the positions of a bitmap, ascending; a list would be large.

    Example:
        >>> list(positions_of(bytes([9, 2]))), list(positions_of(b""))
        ([0, 3, 9], [])
    """
    for index, byte in enumerate(bits):
        for bit in range(8):
            if byte >> bit & 1:
                yield 8 * index + bit


def find_sharder(pipe: IterDataPipe[object]) -> ShardingFilter | None:
    """Return the sharding filter above one-to-one stages at most, or None."""
    while True:
        if isinstance(pipe, ShardingFilter):
            return pipe
        if type(pipe) not in (Mapper, Collator):
            return None
        pipe = parents(pipe)[0]


class ShardOrder:
    """Yields ``(position, item)`` of the shards to read, and tracks the rest.

    Args:
        source: The pipe of shards, sharding filter included.
        listed: What the source of the sharding filter gives, if it is listed.
        items: All items of the epoch, after a resume.
        left: Bitmap of the positions to read instead of those of the filter (after a resume), or None.
    """

    def __init__(
        self,
        source: IterDataPipe[object],
        listed: ListedOrder | None = None,
        items: EpochURLs | list[Any] | None = None,
        left: bytes | None = None,
    ) -> None:
        self._listed = listed
        self._source = source
        self._sharder = find_sharder(source)
        self._items = items
        self._left = None if left is None else int.from_bytes(left, "little")
        self._count = 0
        self._last = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        number, instance = instances_of(self._sharder)
        if self._left is None:
            if self._source is self._sharder:
                yield from self._own_of_all(number, instance)
                return
            for count, item in enumerate(self._source):
                self._count = count + 1
                yield count * number + instance, item
            return
        assert self._items is not None
        for position in positions_of(_bytes_of(self._left)):
            self._left &= ~(1 << position)
            self._last = position
            yield position, self._items[position]

    def _own_of_all(self, number: int, instance: int) -> Iterator[tuple[int, object]]:
        """Split shards as the filter would, and count those of all instances."""
        assert self._sharder is not None
        total = 0
        listed = self._listed
        above = self._sharder.source_datapipe if listed is None else listed.numbers()
        for position, item in enumerate(above):
            total = position + 1
            if position % number == instance:
                self._count += 1
                yield position, item if listed is None else listed.urls[item]
        if listed is None and instance == 0:
            warn_of_idle(total, number)

    def save(self, last_is_left: bool = False) -> tuple[int, int, int, bytes | None]:
        """Return `instances`, `instance`, `begun` and `left` of a `ReaderState`.

        With `last_is_left`, the last position that was given out belongs to what is left.
        """
        number, instance = instances_of(self._sharder)
        if self._left is None:
            return number, instance, self._count - last_is_left, None
        return number, instance, self._count, _bytes_of(self._left | (last_is_left << self._last))


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def left_of(reader: ReaderState, total: int) -> slice | NDArray[np.bool_]:
    """Return the shards `reader` has to begin, as an index of all `total`."""
    if reader.left is not None:
        wanted = np.zeros(total, np.bool_)  # count= of unpackbits leaves it undefined for no bytes at all
        bits = np.unpackbits(np.frombuffer(reader.left, np.uint8), bitorder="little")[:total]
        wanted[: len(bits)] = bits
        return wanted
    return slice(reader.begun * reader.instances + reader.instance, total, reader.instances)


def epoch_items(source: IterDataPipe[object], listed: ListedOrder | None) -> EpochURLs | list[Any]:
    """Return the items of an epoch of `source`, as for a single instance."""
    return list(unsharded(source, find_sharder(source))) if listed is None else EpochURLs(listed)


def listed_behind(source: IterDataPipe[object]) -> ListedOrder | None:
    """Return the listed items that `source` reads, if it is a sharding filter."""
    return listed_order(source.source_datapipe) if isinstance(source, ShardingFilter) else None


def unsharded(source: IterDataPipe[object], sharder: ShardingFilter | None) -> Iterator[Any]:
    """Yield the items of `source` as a single instance would get them."""
    if sharder is None:
        yield from source
        return
    number, instance = sharder.num_of_instances, sharder.instance_id
    sharder.num_of_instances, sharder.instance_id = 1, 0
    try:
        yield from source
    finally:
        sharder.num_of_instances, sharder.instance_id = number, instance
