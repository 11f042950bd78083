"""The sample index of a series of shards, made while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import xxhash

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.index import IndexWriter, ShardEntry, ShardSamples, folder_at, index_place
from torchdata_ais.store import StoreOptions, file_url
from torchdata_ais.urls import parse_url
from torchdata_ais.writing.manifest import ShardInfo
from torchdata_ais.writing.packing import Packed


class Taker(Protocol):
    """What an `IndexWriter` is to a series of shards."""

    def add(self, shard: ShardEntry, samples: ShardSamples) -> None:
        """Take the next shard."""

    def finish(self, *, source: str = "") -> Any:
        """Take that there are no more."""


_SMALL = 32 << 10  # bytes of a sample that are copied together sooner than hashed block by block


class SeriesIndex:
    """Notes where each sample stands in its shard and what it holds, and stores the index at the end.

    Args:
        where: The place for the index; True for that beside the shards (`index_place`); or what takes the shards of it.
        pattern: The names of the shards.
        options: Gives the transport settings; asked for where something lies in a cluster.

    Memory: one part of the index (64 MiB), and the rows of the shard under way.

    Raises:
        UsageError: The shards have no place of their own for an index, and none was named.
    """

    def __init__(self, where: bool | str | Taker, pattern: str, options: Callable[[], StoreOptions]) -> None:
        if not isinstance(where, bool | str) and not hasattr(where, "add"):
            raise UsageError.at(
                f"index={where!r:.60} says no place",
                todo="pass index=True, or a folder or bucket for the index",
            )
        self._pattern = pattern
        self._writer = where if not isinstance(where, bool | str) else _stored(where, pattern, options)
        self._options = options
        self.begin_shard()

    def begin_shard(self) -> None:
        """Forget the samples of a shard that was not finished."""
        self._rows: list[tuple[str, int, int, tuple[str, ...], tuple[int, ...], int]] = []

    def add(self, sample: Packed, start: int) -> None:
        """Note a sample that begins at byte `start` of the shard under way."""
        if sample.size < _SMALL:
            digest = xxhash.xxh64_intdigest(b"".join(sample.blocks))
        else:
            running = xxhash.xxh64()
            for block in sample.blocks:
                running.update(block)
            digest = running.intdigest()
        self._rows.append((sample.key, start, start + sample.size, sample.fields, sample.sizes, digest))

    def finish_shard(self, info: ShardInfo) -> None:
        """Take the shard that was just published."""
        place = parse_url(info.name)
        if place.kind == "object":
            entry = ShardEntry(place.uri, info.size, info.checksum)
        else:
            entry = _of_file(place.name, info.size)
        keys, starts, ends, fields, sizes, digests = map(list, zip(*self._rows, strict=True))
        self._writer.add(entry, ShardSamples(keys, starts, ends, fields, sizes, digests))
        self.begin_shard()

    def take_up(self, shards: Sequence[ShardInfo]) -> None:
        """Read the finished shards of a resumed series: nothing else knows their samples any more."""
        from torchdata_ais.indexing import index_shard

        for shard in shards:
            is_remote = parse_url(shard.name).kind == "object"
            self._writer.add(*index_shard(shard.name, self._options() if is_remote else StoreOptions()))

    def close(self) -> None:
        """Store the index."""
        self._writer.finish(source=self._pattern)


def _stored(where: bool | str, pattern: str, options: Callable[[], StoreOptions]) -> IndexWriter:
    place = where if isinstance(where, str) else index_place(f"{pattern.partition('%')[0]}*")
    is_remote = parse_url(place).kind == "object"
    return IndexWriter(folder_at(place, options() if is_remote else StoreOptions()))


def _of_file(path: str, size: int) -> ShardEntry:
    try:
        found = file_url(path)
    except NotFoundError:  # moved by `post`
        return ShardEntry(path, size)
    return ShardEntry(path, found.size, None, found.version)
