"""Indexes built by reading shards."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

import xxhash

from torchdata_ais._util.process_pool import OrderedPool
from torchdata_ais.errors import AISError, NonAdjacentKeyError, NotFoundError, UsageError
from torchdata_ais.index import IndexedShard, ShardEntry, ShardSamples
from torchdata_ais.index.listing_check import listed_objects
from torchdata_ais.samples import is_apple_double, split_name
from torchdata_ais.store import BlockSource, StoreOptions, file_url, list_each, open_blocks
from torchdata_ais.store.jobs import OnProgress
from torchdata_ais.tar import Link, Member, TarReader, TooLarge, is_compressed
from torchdata_ais.urls import ObjectURL, parse_url

_AROUND = 64 << 10  # a link of a sample may be so far before it, with members without a key after it
_LOOSE_BYTES = 1 << 20  # more than that of members without a key is not kept for links to it


class UnusableError(Exception):
    """Reason why the cluster's index lacks places of samples of a shard."""


PlacedMember = tuple[str, "int | None", int, int, int]
"""Name, bytes (None for a link), offset, offset of the last header, next member's offset."""


def group_members(members: Iterable[PlacedMember], url: str, *, end: int | None = None) -> ShardSamples:
    """Return the samples of one shard, by its members in their order.

    A sample's fields are those of its regular members: the contents of a link are unknown before it is read.

    Args:
        members: See `PlacedMember`. A sample begins where its first member does, and ends at the last header of the
            next one's first member: where both are known, these are equal.
        url: The shard, for errors.
        end: Where the last sample ends, if links are not among the members: there may be one between any two. None:
            with its last member.

    Raises:
        NonAdjacentKeyError: A key comes back after other keys.
        UnusableError: With `end`, an unnamed part (it may be a link) is far before a sample, among members without a
            key.

    Example:
        >>> members = [("a.jpg", 700, 0, 0, 1536), ("README", 5, 1536, 1536, 2560), ("b.cls", 1, 2560, 2560, 3584)]
        >>> samples = group_members(members, "s.tar")
        >>> samples.keys, samples.starts, samples.ends, samples.fields, samples.sizes
        (['a', 'b'], [0, 2560], [2560, 3584], [('jpg',), ('cls',)], [(700,), (1,)])
    """
    grouping = Grouping(url, end=end)
    for member in members:
        grouping.send(member)
    return grouping.finish()


class Grouping:
    """`group_members` for a caller that passes one member after the other.

    `xxh64` returns XXH64 of bytes `start` to `end` of the shard; None if they are not read.

    Example:
        >>> grouping = Grouping("s.tar")
        >>> grouping.send(("a.jpg", 700, 0, 0, 1536))
        >>> grouping.finish().keys
        ['a']
    """

    def __init__(
        self, url: str, xxh64: Callable[[int, int], int] | None = None, *, end: int | None = None
    ) -> None:
        self._grouped = _grouped(url, end, xxh64)
        next(self._grouped)
        self.send: Callable[[PlacedMember], object] = self._grouped.send
        """Take the next member; it raises the errors of `group_members`."""

    def finish(self) -> ShardSamples:
        """Return the samples, after the last member."""
        try:
            self._grouped.send(None)
        except StopIteration as stopped:
            samples: ShardSamples = stopped.value
        return samples


# One loop with many branches: the rule of `whole_runs`, without data.
def _grouped(
    url: str, end: int | None, xxh64: Callable[[int, int], int] | None
) -> Generator[None, PlacedMember | None, ShardSamples]:
    samples = ShardSamples([], [], [], [], [], None if xxh64 is None else [])
    seen: set[str] = set()
    key: str | None = None
    start = reached = 0
    keyed = 0  # the end of the last member with a key
    loose = 0  # bytes of members without a key before the first sample
    unnamed: int | None = None  # the first place since `keyed` that none of the members without a key names
    names: list[str] = []
    lengths: list[int] = []

    def close(stop: int) -> None:
        samples.keys.append(key or "")
        samples.starts.append(start)
        samples.ends.append(stop)
        samples.fields.append(tuple(names))
        samples.sizes.append(tuple(lengths))
        if samples.xxh64 is not None and xxh64 is not None:
            samples.xxh64.append(xxh64(start, stop))

    while True:
        member = yield
        if member is None:
            break
        name, size, begin, header, after = member
        parts = None if (apple := "._" in name and is_apple_double(name)) else split_name(name)
        if parts is None and end is not None and unnamed is None and begin < header:
            unnamed = begin
        if apple:
            continue
        if parts is None:  # it may be the target of a link in the sample around it
            if key is not None:
                reached = after
            elif size is not None:
                start = start if loose else begin
                loose += after - begin
                loose = 0 if loose > _LOOSE_BYTES else loose
            continue
        if parts[0] != key:
            if key is not None:
                close(header)
            if end is not None and begin - keyed <= _AROUND:
                start = keyed
            elif unnamed is not None:
                raise UnusableError(f"what stands at byte {unnamed} may be a link of the sample {parts[0]!r}")
            elif key is not None or not loose:
                start = begin
            key, names, lengths = parts[0], [], []
            if key in seen:
                raise NonAdjacentKeyError.at(
                    f"the key {key!r} was met before in this shard: the members of a sample must stand together",
                    todo="sort the shard first (tar --sort=name)",
                    url=url,
                    offset=begin,
                    key=key,
                )
            seen.add(key)
        reached = keyed = after
        unnamed = None
        if size is not None:
            names.append(parts[1])
            lengths.append(size)
    if key is not None:
        close(reached if end is None else end)
    return samples


class _Passing:
    """Iterator over blocks that keeps them until their samples are hashed."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self._kept: deque[bytes] = deque()
        self._begin = 0  # the offset of the first byte kept

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._kept.append(block)
            yield block

    def forget(self) -> None:
        """Release the blocks that came: they are not needed any more."""
        self._begin += sum(map(len, self._kept))
        self._kept.clear()

    def xxh64(self, start: int, end: int) -> int:
        """Return XXH64 of the bytes `start` to `end`, and release earlier ones."""
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
    """Read a shard, and return its index entry.

    Samples that the stream would refuse (a link to nowhere) are in it, too: they are refused when they are read.

    Raises:
        UsageError: The shard is compressed, or a header in it applies to all members after it: its samples cannot be
            read one by one.

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
    """Builder of the index of a shard from the bytes of another reader.

    See `AISFileLoader.watched_by`. `error` is the reason why the shard cannot be indexed, though it may be read on.

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
                except NonAdjacentKeyError as error:  # the reader detects that, too, and may continue
                    self.error = error
            else:
                self._passing.forget()
            yield member
            del member, data

    def finish(self) -> IndexedShard:
        """Return the index entry after a read to the end; raises as `index_shard`."""
        if self.error is not None:
            raise self.error
        if self._source is None or self._reader is None or self._grouping is None:
            raise UsageError.at(f"{self._url} was not read", todo="read it first")
        source, name = self._source, str(parse_url(self._url).uri)
        check_seekable(self._reader, name)
        return ShardEntry(name, source.size, source.checksum, source.version), self._grouping.finish()


def headers_in(blocks: Iterable[bytes], url: str) -> TarReader:
    """Return a reader of members without their data, which is not copied."""
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
    """Raise `UsageError` if a header applies to all members after it."""
    if not reader.seekable:
        raise not_addressable(name, "a global PAX header stands in it")


def not_addressable(name: str, why: str) -> UsageError:
    """Return the error for a shard whose samples cannot be read one by one."""
    return UsageError.at(
        f"the samples of {name} cannot be addressed: {why}",
        todo="write it anew (torchdata-ais convert), or read it as a stream",
        url=name,
    )


_T = TypeVar("_T")
_R = TypeVar("_R")


def indexed_by_reading(
    urls: list[ObjectURL], options: StoreOptions, processes: int
) -> Iterator[IndexedShard]:
    """Yield the index entry of each shard, in their order.

    Memory: one sample a process, and the rows of at most ``2 * processes`` shards.
    """
    return in_processes(functools.partial(index_shard, options=options), urls, processes)


def in_processes(work: Callable[[_T], _R], urls: Sequence[_T], processes: int) -> Iterator[_R]:
    """Yield the result of `work` for each URL, in their order."""
    if processes < 2 or len(urls) < 2:
        yield from map(work, urls)
        return
    with OrderedPool(work, min(processes, len(urls))) as pool:
        yield from pool.map(urls)


Method = Literal["read", "cluster"]


class Indexing(NamedTuple):
    """Options of indexing; see `SampleIndex.build`."""

    options: StoreOptions
    method: Method = "read"
    processes: int = 0
    progress: OnProgress | None = None


def listed_shards(sources: object, options: StoreOptions) -> list[ObjectURL]:
    """Return the shards of sources, with size, checksum and version if known.

    Raises:
        UsageError: One is in the list twice.
    """
    named = sources if isinstance(sources, list | tuple) else [sources]
    urls = [url for some in list_each(named, options=options) for url in some]
    seen: set[str] = set()
    for url in urls:
        name = parse_url(url).uri
        if name in seen:
            raise UsageError.at(f"the shard {name} is listed twice", todo="name it once", url=name)
        seen.add(name)
    return _with_facts(urls, options)


def _with_facts(urls: list[ObjectURL], options: StoreOptions) -> list[ObjectURL]:
    """Fill in sizes that names lack, of objects from one listing a bucket."""
    places = [parse_url(url).at(options.endpoint) for url in urls]
    listed = listed_objects(
        [place for url, place in zip(urls, places, strict=True) if url.size is None], options
    )
    filled = []
    for url, place in zip(urls, places, strict=True):
        if url.size is not None:
            filled.append(url)
        elif place.kind == "file":
            filled.append(file_url(place.name))
        elif place.kind == "object" and not place.params:
            if place.uri not in listed:
                there = sum(one.uri in listed for one in places)
                raise NotFoundError.at(
                    f"{place.uri}: there is no such shard; of the {len(places)} that were named {there} are there",
                    todo="check the template",
                    url=place.uri,
                )
            filled.append(listed[place.uri])
        else:
            filled.append(url)
    return filled
