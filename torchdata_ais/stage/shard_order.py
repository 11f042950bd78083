"""Which shards a pipe still has to read in this epoch, and how a checkpoint writes that down.

A shard is named by its *position*: its index in the epoch's order before the split over ranks and workers. The
order itself is not stored, it is a function of (data, seed, epoch). In a fresh epoch instance `i` of `n` reads the
positions ``i, i + n, i + 2n, ...``: the count read so far says all. After a resume on another topology the rest is
dealt out anew, and a bitmap says what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_ais.shown import count_text
from torchdata_ais.stage.datapipes import Collator, Mapper
from torchdata_ais.stage.listed_order import EpochURLs, ListedOrder, listed_order
from torchdata_ais.stage.pipe import IterDataPipe, ShardingFilter
from torchdata_ais.stage.shared_seed import instances_of
from torchdata_ais.stage.upstream import parents
from torchdata_ais.state import ReaderState

logger = logging.getLogger("torchdata_ais")

_BITS = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def positions_of(bits: bytes) -> Iterator[int]:
    """Yield the positions of a bitmap, ascending.

    Example:
        >>> list(positions_of(bytes([9, 2])))
        [0, 3, 9]
    """
    for index, byte in enumerate(bits):
        for bit in _BITS[byte]:
            yield 8 * index + bit


def find_sharder(pipe: IterDataPipe[Any]) -> ShardingFilter | None:
    """Return the sharding filter above `pipe` if only one-to-one stages stand between, else None."""
    while True:
        if isinstance(pipe, ShardingFilter):
            return pipe
        if type(pipe) not in (Mapper, Collator):
            return None
        pipe = parents(pipe)[0]


class ShardOrder:
    """Yields ``(position, item)`` of the shards an instance reads, and knows what is left.

    Args:
        source: The pipe of shards, sharding filter included.
        listed: What the source of the sharding filter gives, if it is listed.
        items: All items of the epoch, after a resume.
        left: Bitmap of the positions to read instead of those of the filter (after a resume), or None.
    """

    def __init__(
        self,
        source: IterDataPipe[Any],
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

    def _own_of_all(self, number: int, instance: int) -> Iterator[tuple[int, Any]]:
        """Do the sharding filter's work here, to see how many shards there are for all instances."""
        assert self._sharder is not None
        total = 0
        listed = self._listed
        above = self._sharder.source_datapipe if listed is None else listed.numbers()
        for position, item in enumerate(above):
            total = position + 1
            if position % number == instance:
                self._count += 1
                yield position, item if listed is None else listed.urls[item]
        if total < number and instance == 0:
            logger.warning(
                "%s for %d workers (over all ranks): %d of them have nothing to do; "
                "use at most as many workers as shards, or more, smaller shards",
                count_text(total, "shard"), number, number - total,
            )  # fmt: skip

    def save(self, last_is_left: bool = False) -> tuple[int, int, int, bytes | None]:
        """Return instances, instance, begun and left of a `ReaderState`.

        Args:
            last_is_left: Whether the last position that was given out belongs to what is left.
        """
        number, instance = instances_of(self._sharder)
        if self._left is None:
            return number, instance, self._count - last_is_left, None
        return number, instance, self._count, _bytes_of(self._left | (last_is_left << self._last))


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def left_of(reader: ReaderState, total: int) -> slice | NDArray[np.bool_]:
    """Return which of `total` shards in the epoch `reader` has still to begin, as an index of an array of them."""
    if reader.left is not None:
        wanted = np.zeros(total, np.bool_)  # count= of unpackbits leaves it undefined for no bytes at all
        bits = np.unpackbits(np.frombuffer(reader.left, np.uint8), bitorder="little")[:total]
        wanted[: len(bits)] = bits
        return wanted
    return slice(reader.begun * reader.instances + reader.instance, total, reader.instances)


def epoch_items(source: IterDataPipe[Any], listed: ListedOrder | None) -> EpochURLs | list[Any]:
    """Return the items of an epoch of `source`, as a single instance would get them."""
    return list(unsharded(source, find_sharder(source))) if listed is None else EpochURLs(listed)


def listed_behind(source: IterDataPipe[Any]) -> ListedOrder | None:
    """Return what the source of the sharding filter `source` gives, if it is one and that is listed."""
    return listed_order(source.source_datapipe) if isinstance(source, ShardingFilter) else None


def unsharded(source: IterDataPipe[Any], sharder: ShardingFilter | None) -> Iterator[Any]:
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
