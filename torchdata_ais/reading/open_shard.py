"""Open shards: blocks, members and runs."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from torchdata_ais._util.arguments import check_number, checked_options
from torchdata_ais.errors import AISError, ChecksumError, ReadError, ShardError, StateError, TransportError
from torchdata_ais.reading.runs import Run, whole_runs
from torchdata_ais.samples import is_apple_double, unpack_place
from torchdata_ais.store import BlockSource, Kept, ObjectCache, StoreOptions, open_blocks
from torchdata_ais.tar import Member, TarReader, decompress
from torchdata_ais.urls import Location, ObjectURL, parse_url, shown_url

_LITTLE = 4 << 20  # bytes that take about as long to read as the next shard takes to answer


@checked_options
@dataclass(frozen=True)
class Safety:
    """Checks of the bytes of a shard before its samples are used.

    Attributes:
        require_end: Whether a shard without end-of-archive block is an error.
        max_sample_bytes: Bound on the members of one sample together; a larger one is a `SampleError`. Names and
            records count, too, beyond 64 KiB: 512 bytes a member and 8 a character of its name.
        max_ratio: Bound on decompressed to compressed bytes.
        verify: Whether to check the body against the object's checksum. None: by the settings of the cluster.
        pin: Whether another version of the object than the listed one is an error. None: likewise.

    Raises:
        UsageError: A value that cannot work.

    Example:
        >>> Safety(max_sample_bytes=100 << 20).max_ratio
        1000.0
    """

    require_end: bool = True
    max_sample_bytes: int | None = 1 << 30
    max_ratio: float = 1000.0
    verify: bool | None = None
    pin: bool | None = None

    def __post_init__(self) -> None:
        check_number(self.max_sample_bytes, 0, "max_sample_bytes", optional=True)
        check_number(self.max_ratio, 1, "max_ratio", whole=False)


class Watch(Protocol):
    """Sees the bytes and the members of a shard on their way."""

    def blocks(self, source: BlockSource) -> Iterable[bytes]:
        """Return the blocks of `source`."""

    def members(self, reader: TarReader) -> Iterable[Member]:
        """Return the members of `reader`, which reads these blocks."""


@dataclass(frozen=True)
class ShardOptions:
    """Options of reading runs from the bytes of a shard."""

    safety: Safety = Safety()
    rename_files: Callable[[str], str] | None = None
    select_files: Callable[[str], bool] | None = None
    cache: ObjectCache | None = None
    watch: Watch | None = None

    def want(self, name: str) -> bool:
        """Return whether the member's bytes are needed."""
        if is_apple_double(name):
            return False
        if self.select_files is None:
            return True
        return bool(self.select_files(self.rename_files(name) if self.rename_files else name))

    def runs(self, blocks: Iterable[bytes], url: str, start: int = 0) -> Iterator[Run]:
        """Yield the runs in a shard's blocks, not compressed if `start` is not 0."""
        safety, watch = self.safety, self.watch
        if watch is not None and isinstance(blocks, BlockSource):
            blocks = watch.blocks(blocks)
        reader = TarReader(
            blocks if start else decompress(blocks, url=url, max_ratio=safety.max_ratio),
            url=url,
            start=start,
            require_end=safety.require_end,
            max_member_bytes=safety.max_sample_bytes,
            skip_large=True,
            want=self.want if self.select_files else None,
        )
        members = reader if watch is None else watch.members(reader)
        return whole_runs(members, url=url, rename=self.rename_files, max_bytes=safety.max_sample_bytes)


class OpenShard:
    """A shard being read.

    Args:
        position: Its place in the epoch's order, before the split over ranks and workers.
        start: Offset in the decompressed shard of the first run wanted. Plain shards are read from there on;
            others cannot be entered in the middle and are read from 0 and skipped.
        version, checksum: Those expected; default those of the listing.
        before_its_turn: Whether another shard is still being read: only the first block is fetched then.

    Attributes:
        place: As given, with the expected version and checksum.
        name: The URL as samples and errors show it: without secrets.
        next_offset: Where the next run begins: reading can start again there.
        passed_on: Whole samples returned so far. A later stage may still hold some of them, or have left them out.
    """

    def __init__(
        self,
        place: Location,
        position: int,
        store: StoreOptions,
        options: ShardOptions,
        *,
        start: int = 0,
        version: str | None = None,
        checksum: str | None = None,
        before_its_turn: bool = False,
    ) -> None:
        known = place.written
        known = ObjectURL(known, known.size, checksum or known.checksum, version or known.version)
        self.place = replace(place, written=known)
        self.name = place.shown
        self.position = position
        self.next_offset = start
        self.near_end = sys.maxsize
        self.passed_on = 0
        self.bytes = self.retries = self.refetched = 0
        self.first_byte_s: float | None = None
        self.wait_s = 0.0
        self.unverified = ""
        self.closed = False
        self._store = store
        self._options = options
        self._start = start
        self._before_its_turn = before_its_turn
        self._is_plain = _looks_plain(place)
        self._entered = start if self._is_plain else 0
        self.blocks: BlockSource | None = None
        self._kept: Kept | None = None
        # Fetching begins here, ahead of the first run; into a cache only when the shard has its turn.
        self._runs: Iterator[Run] | None = None if options.cache is not None else self._open()

    @property
    def version(self) -> str | None:
        """The version being read, once it is known."""
        return self.place.written.version or (self.blocks.version if self.blocks is not None else None)

    @property
    def checksum(self) -> str | None:
        """The checksum of the whole object, once it is known."""
        return self.place.written.checksum or (self.blocks.checksum if self.blocks is not None else None)

    def _open(self) -> Iterator[Run]:
        options = self._options
        kept = self._kept = None if options.cache is None else options.cache.open(self.place, self._store)
        if kept is not None:
            self.place = replace(self.place, written=kept.known)
            self.refetched += kept.refetched
        self.closed = False
        blocks = self.blocks = open_blocks(
            self.place,
            self._store,
            start=self._entered,
            before_its_turn=self._before_its_turn,
            copy=None if kept is None else kept.file,
        )
        return options.runs(blocks, self.name, self._entered)

    def next_run(self) -> Run | None:
        """Return the next whole run, or None at the end of the shard.

        The text of an error has the number of samples that `load_tar` had passed on.
        """
        try:
            run = self._next_wanted()
        except AISError as error:
            if self._kept is not None and _blames(self._kept, error):
                ObjectCache.forget(self._kept)
            if not self.passed_on:
                raise
            noted = error.noting(f"{self.passed_on} of its samples had been passed on by load_tar")
            # In its place, not on top of it: a traceback shows one error, with its own frames and cause.
            raise noted.with_traceback(error.__traceback__) from error.__cause__
        if run is not None:
            if self.next_offset == self._start and self.blocks is not None and self._is_plain:
                self.near_end = (self.blocks.size or sys.maxsize) - _LITTLE
            self.next_offset = run.end
            self.passed_on += run.key is not None and run.error is None
            run.shard = self.position
        return run

    def _next_wanted(self) -> Run | None:
        if self._runs is None:
            self._runs = self._open()
        try:
            run = next(self._runs, None)
        except (ShardError, ReadError):
            if not self._entered or self.next_offset > self._start:
                raise
            # No header where one must be, or not even a byte: compressed under a plain name. From the start, then.
            self.close()
            self._entered = 0
            self._runs = self._open()
            run = next(self._runs, None)
        if run is None or run.offset < self._start:
            run = self._skip(run, self._runs)
        return run

    def _skip(self, run: Run | None, runs: Iterator[Run]) -> Run | None:
        """Skip to the first run wanted, which must begin where another one ends."""
        end = self.next_offset if self.next_offset > self._start or self._entered else 0
        while run is not None and run.offset < self._start:
            end = run.end
            run = next(runs, None)
        if end != self._start and self.next_offset <= self._start:
            raise StateError.at(
                f"the checkpoint goes on at byte {self._start} of the shard, where no sample ends",
                todo="begin the epoch anew, or restore the shard as it was",
                url=self.name,
                offset=self._start,
            )
        return run

    def close(self) -> None:
        """Stop fetching and let go of the blocks."""
        if self.blocks is not None:
            self.closed = True
            self.blocks.close()
            stats = self.blocks.stats
            self.bytes += stats.bytes
            self.retries += stats.retries
            self.wait_s += stats.wait_s
            self.unverified = stats.unverified or self.unverified
            self.first_byte_s = stats.first_byte_s if self.first_byte_s is None else self.first_byte_s


def _blames(kept: Kept, error: AISError) -> bool:
    """Return whether the cached file, not the shard, may be wrong."""
    if isinstance(error, TransportError | ChecksumError):
        return True
    return isinstance(error, ShardError) and not kept.proven


def _looks_plain(place: Location) -> bool:
    """Return whether the name is that of a tar that is readable at any offset."""
    path = urlsplit(place.name).path if place.kind == "http" else place.name
    return path.endswith(".tar") and "etl_name" not in place.params


_GAP = 8 << 20  # bytes between two wanted samples beyond which a new request is cheaper than reading on


def held_runs(
    places: Sequence[int],
    urls: Sequence[Any],
    versions: Mapping[int, tuple[str | None, str | None]],
    store: StoreOptions,
    options: ShardOptions,
) -> Iterator[tuple[str, Run]]:
    """Yield ``(url, run)`` for each packed place, in the order of `places`.

    The samples of one shard are read in one sweep, or in several if they are far apart. So a shuffle buffer costs a
    few requests for each shard, not one for each sample. `versions` are version and checksum that the shard at a
    position had, where they are known; the options are those when the checkpoint was taken.

    Memory: all held samples together: the same that the stages held when the checkpoint was taken.

    Raises:
        StateError: A sample is not where it was.
        ObjectChangedError: A shard has another version than then.
    """
    by_shard: dict[int, list[int]] = defaultdict(list)
    for place in places:
        shard, offset = unpack_place(place)
        by_shard[shard].append(offset)
    found: dict[tuple[int, int], Run] = {}
    for shard, offsets in by_shard.items():
        for sweep in _sweeps(sorted(offsets)):
            version, checksum = versions.get(shard, (None, None))
            begun = OpenShard(
                parse_url(urls[shard]),
                shard,
                store,
                options,
                start=sweep[0],
                version=version,
                checksum=checksum,
            )
            found.update(_read(sweep, begun))
    for place in places:
        shard, offset = unpack_place(place)
        yield shown_url(str(urls[shard])), found.pop((shard, offset))


def _sweeps(offsets: list[int]) -> Iterator[list[int]]:
    sweep = [offsets[0]]
    for offset in offsets[1:]:
        if offset - sweep[-1] > _GAP:
            yield sweep
            sweep = []
        sweep.append(offset)
    yield sweep


def _read(offsets: list[int], shard: OpenShard) -> dict[tuple[int, int], Run]:
    wanted = set(offsets)
    found: dict[tuple[int, int], Run] = {}
    try:
        while wanted and (run := shard.next_run()) is not None:
            if run.offset in wanted:
                wanted.discard(run.offset)
                found[shard.position, run.offset] = run
    finally:
        shard.close()
    if wanted:
        raise StateError.at(
            "a sample named by the checkpoint is not there any more: the shard has changed",
            todo="begin the epoch anew, or restore the shard as it was",
            url=shard.name,
            offset=min(wanted),
        )
    return found
