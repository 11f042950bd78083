"""A shard in a file, of which the headers are read and the data are passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torchdata_ais.errors import ObjectChangedError
from torchdata_ais.index import IndexedShard, ShardEntry
from torchdata_ais.indexing.grouping import PlacedMember, group_members
from torchdata_ais.indexing.shard import (
    check_seekable,
    headers_in,
    index_shard,
    not_addressable,
    placed_members,
)
from torchdata_ais.store import StoreOptions, file_url, open_blocks
from torchdata_ais.store.files import open_error
from torchdata_ais.tar import PassableBlocks, is_compressed
from torchdata_ais.urls import parse_url
from torchdata_ais.whole_file import open_regular

_BLOCK_BYTES = 8 << 10


def index_headers(url: str, options: StoreOptions) -> IndexedShard:
    """Return what an index holds of a shard; of one in a file only the headers are read, and no XXH64 is known.

    Raises:
        TransportError, ShardError, NonAdjacentKeyError, UsageError: As for `index_shard`.

    Memory: a block.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> shard, samples = index_headers(example_shards(counts=(2,))[0], StoreOptions())
        >>> samples.keys, samples.starts, samples.xxh64
        (['00000', '00001'], [0, 1536], None)
    """
    place = parse_url(url)
    if place.kind != "file":
        return index_shard(url, options)
    before = file_url(place.name)
    with _opened(place.name) as blocks:
        reader = headers_in(blocks, url)
        samples = group_members(placed_members(reader), url)
    check_seekable(reader, place.uri)
    if file_url(place.name).version != before.version:
        raise ObjectChangedError.at(f"{url}: it changed while it was read", todo="index it anew", url=url)
    return ShardEntry(str(place.uri), before.size, None, before.version), samples


def members_of(url: str, options: StoreOptions) -> Iterator[PlacedMember]:
    """Yield the members of a shard by their headers; what is no file is read whole.

    Raises:
        TransportError, ShardError, UsageError: As for `index_shard`.
    """
    place = parse_url(url)
    with _opened(place.name) if place.kind == "file" else open_blocks(place, options) as blocks:
        yield from placed_members(headers_in(blocks, url))


@contextmanager
def _opened(path: str) -> Iterator[_FileBlocks]:
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:
        raise open_error(path, error) from error
    with file:
        if is_compressed(os.pread(file.fileno(), 512, 0)):
            raise not_addressable(path, "it is compressed")
        yield _FileBlocks(file.fileno(), path)


class _FileBlocks(PassableBlocks):
    """The blocks of a file: small ones, as data between headers are not wanted."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path, self._offset = fd, path, 0
        self._size = os.fstat(fd).st_size

    def __next__(self) -> bytes:
        try:
            block = os.pread(self._fd, _BLOCK_BYTES, self._offset)
        except OSError as error:
            raise open_error(self._path, error) from error
        if not block:
            raise StopIteration
        self._offset += len(block)
        return block

    def pass_over(self, size: int) -> int:
        passed = max(0, min(size, self._size - self._offset))
        self._offset += passed
        return passed
