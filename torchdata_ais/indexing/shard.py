"""One shard read to its end: where its samples stand, what they hold, and the XXH64 of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import xxhash

from torchdata_ais.errors import AISError, NonAdjacentKeyError, UsageError
from torchdata_ais.index import IndexedShard, ShardEntry
from torchdata_ais.indexing.grouping import Grouping, PlacedMember
from torchdata_ais.store import BlockSource, StoreOptions, open_blocks
from torchdata_ais.tar import Link, Member, TarReader, TooLarge, is_compressed
from torchdata_ais.urls import parse_url


class _Passing:
    """Blocks on their way to the tar reader, kept until the samples in them were hashed."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self._kept: deque[bytes] = deque()
        self._begin = 0  # the offset of the first byte kept

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._kept.append(block)
            yield block

    def forget(self) -> None:
        """Let go of the blocks that came: nobody asks for them."""
        self._begin += sum(map(len, self._kept))
        self._kept.clear()

    def xxh64(self, start: int, end: int) -> int:
        """Return XXH64 of the bytes `start` to `end`; those before `end` are not needed any more."""
        while self._begin + len(self._kept[0]) <= start:
            self._begin += len(self._kept.popleft())
        digest = xxhash.xxh64()
        offset = self._begin
        for block in self._kept:
            if offset >= end:
                break
            digest.update(memoryview(block)[max(start - offset, 0) : end - offset])
            offset += len(block)
        return digest.intdigest()


def index_shard(url: str, options: StoreOptions) -> IndexedShard:
    """Read a shard, and return what an index holds of it.

    Samples that the stream would refuse (a link to nowhere) are in it, too: they are refused when they are read.

    Args:
        url: A shard: object, file or web file, not compressed.
        options: Transport settings.

    Raises:
        TransportError, ShardError: The shard cannot be read, or is not whole.
        NonAdjacentKeyError: A key comes again later in the shard.
        UsageError: The shard is compressed, or one header in it says something of all members after it: its samples
            cannot be read one by one.

    Memory: one sample (not its copy: the blocks it came in), and a block.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> shard, samples = index_shard(example_shards(counts=(2,))[0], StoreOptions())
        >>> samples.keys, samples.starts, samples.ends, samples.sizes
        (['00000', '00001'], [0, 1536], [1536, 3584], [(1, 0), (1, 1)])
    """
    watch = ShardWatch(url)
    with open_blocks(parse_url(url), options) as source:
        for _ in watch.members(headers_in(watch.blocks(source), url)):
            if watch.error is not None:
                break
    return watch.finish()


class ShardWatch:
    """Makes the index of a shard that somebody else reads, of the same bytes (`AISFileLoader.watched_by`).

    Args:
        url: The shard.

    Attributes:
        error: Why there is no index of it, though it may be read on; None as long as there is one.

    Memory: as for `index_shard`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._source: BlockSource | None = None
        self._reader: TarReader | None = None
        self._passing = _Passing(())
        self._grouping: Grouping | None = None
        self.error: AISError | None = None

    def blocks(self, source: BlockSource) -> Iterable[bytes]:
        """Return the blocks of the shard, to be read in place of `source`."""
        self._source = source
        self._passing = _Passing(_plain(source, parse_url(self._url).uri))
        return self._passing

    def members(self, reader: TarReader) -> Iterator[Member]:
        """Yield the members that `reader` reads out of these blocks."""
        self._reader = reader
        grouping = self._grouping = Grouping(self._url, self._passing.xxh64)
        for member in reader:
            name, data, at, after = member
            if self.error is None:
                size = (
                    None if isinstance(data, Link) else int(data) if isinstance(data, TooLarge) else len(data)
                )
                try:
                    grouping.send((name, size, at, at, after))
                except NonAdjacentKeyError as error:  # whoever reads finds that, too, and may go on
                    self.error = error
            else:
                self._passing.forget()
            yield member
            del member, data

    def finish(self) -> IndexedShard:
        """Return what an index holds of the shard, which was read to its end without an error.

        Raises:
            NonAdjacentKeyError, UsageError: As for `index_shard`.
        """
        if self.error is not None:
            raise self.error
        if self._source is None or self._reader is None or self._grouping is None:
            raise UsageError.at(f"{self._url} was not read", todo="read it first")
        source, name = self._source, str(parse_url(self._url).uri)
        check_seekable(self._reader, name)
        return ShardEntry(name, source.size, source.checksum, source.version), self._grouping.finish()


def headers_in(blocks: Iterable[bytes], url: str) -> TarReader:
    """Return a reader of members without their data: one that is passed over for its size is not copied."""
    return TarReader(blocks, url=url, max_member_bytes=0, skip_large=True)


def placed_members(reader: TarReader) -> Iterator[PlacedMember]:
    """Yield the members of an archive as an index has them."""
    for name, data, at, after in reader:
        size = None if isinstance(data, Link) else int(data) if isinstance(data, TooLarge) else len(data)
        yield name, size, at, at, after


def _plain(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the blocks; a compressed shard is an error."""
    blocks = iter(blocks)
    first = b""
    while len(first) < 512 and (block := next(blocks, b"")):
        first += block
    if is_compressed(first):
        raise not_addressable(name, "it is compressed")
    yield first
    yield from blocks


def check_seekable(reader: TarReader, name: str) -> None:
    """Raise `UsageError` if a header of a shard says something of all members after it."""
    if not reader.seekable:
        raise not_addressable(name, "a global PAX header stands in it")


def not_addressable(name: str, why: str) -> UsageError:
    """Return the error for a shard whose samples cannot be read one by one."""
    return UsageError.at(
        f"the samples of {name} cannot be addressed: {why}",
        todo="write it anew (torchdata-ais convert), or read it as a stream",
        url=name,
    )
