"""The sample index of a series of shards, made while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from torchdata_ais.errors import NotFoundError
from torchdata_ais.index import IndexWriter, ShardEntry, ShardSamples, folder_at, index_place
from torchdata_ais.store import StoreOptions, file_url
from torchdata_ais.urls import parse_url
from torchdata_ais.writing.manifest import ShardInfo
from torchdata_ais.writing.packing import Packed

__all__ = ["SeriesIndex"]

_SMALL = 32 << 10  # bytes of a sample that are copied together sooner than hashed block by block


class SeriesIndex:
    """Notes where each sample stands in its shard and what it holds, and stores the index at the end.

    Args:
        where: The place for the index; True for that beside the shards (`index_place`).
        pattern: The names of the shards.
        options: Gives the transport settings; asked for where something lies in a cluster.

    Memory: one part of the index (64 MiB), and the rows of the shard under way.

    Raises:
        UsageError: The shards have no place of their own for an index, and none was named.
    """

    def __init__(self, where: bool | str, pattern: str, options: Callable[[], StoreOptions]) -> None:
        self.where = where if isinstance(where, str) else index_place(f"{pattern.partition('%')[0]}*")
        self._pattern = pattern
        is_remote = parse_url(self.where).kind == "object"
        self._writer = IndexWriter(folder_at(self.where, options() if is_remote else StoreOptions()))
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
        self._writer.add(entry, ShardSamples(*map(list, zip(*self._rows, strict=True))))
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


def _of_file(path: str, size: int) -> ShardEntry:
    try:
        found = file_url(path)
    except NotFoundError:  # moved by `post`
        return ShardEntry(path, size)
    return ShardEntry(path, found.size, None, found.version)
