"""Samples read by their references: in the order asked for, with a window of bytes ahead.

Neighbours in a shard come as one range; scattered samples as a batch of ranges, where the cluster has that and answers
it rightly. Threads fetch what is to come, and read every answer to its end without waiting for the consumer: storage
cuts readers that are slow. A request is sent only when its bytes fit into the window. What came is looked at in the
consumer's thread: bytes that are not those of the sample are asked for once more, alone, before that is an error.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from torchdata_ais.errors import AISError, ReadError, SampleIndexError
from torchdata_ais.index import SampleReference, ShardRow
from torchdata_ais.reading.pieces import run_in
from torchdata_ais.reading.requests import (
    THREADS,
    Request,
    Wanted,
    chunks_in,
    requests_for,
    together,
    window_at_first,
)
from torchdata_ais.reading.runs import Run
from torchdata_ais.store import (
    Cancel,
    Cancelled,
    Facts,
    ObjectCache,
    Pace,
    Stats,
    StoreOptions,
    batch_group,
    keep_memory,
    pace_of,
    read_batch,
    read_range,
)
from torchdata_ais.urls import ObjectURL, parse_url

__all__ = ["IndexedReader"]

_LIVENESS_S = 1.0
_CLOSE_S = 1.0
_SHARDS = 4096  # of which is kept where they lie

logger = logging.getLogger("torchdata_ais")

Piece = bytes | memoryview | AISError
_place_of = lru_cache(_SHARDS)(parse_url)


class _Chunk:
    """Samples that are asked for together, and what has come of them."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        self.requests = requests_for(wanted)
        self.size = sum(request.length for request in self.requests)
        self.pieces: list[Piece | None] = [None] * len(wanted)
        self.in_files: dict[
            int, Request
        ] = {}  # read in the consumer's thread, by each place a request is for

    def fill(self, request: Request, came: Sequence[Piece]) -> None:
        """Note what came of a request."""
        for place, piece in zip(request.wanted, came, strict=True):
            self.pieces[place] = piece


class _Task(NamedTuple):
    """Requests of a chunk that are sent as one: a range, or a batch of ranges."""

    chunk: _Chunk
    requests: list[Request]


@dataclass
class IndexedReader:
    """Reads samples by reference.

    Args:
        options: Transport settings of each source.
        window_bytes: What is asked for ahead at most, or one sample if that is larger.
        max_bytes: Bound on one sample; a larger one is a `SampleError`.
        cache: Where whole shards are kept, if they are to be.
        stats: Counts bytes, retries, and what the consumer waited for.

    Attributes:
        held: Bytes asked for and not yet given out.
        held_max: The most there were.
        refetched: Samples that were asked for once more, as other bytes had come.

    Memory: `window_bytes`, or the largest sample, and that sample's members; 512 KiB a batch under way (`ChunkedBody`).
    """

    options: Sequence[StoreOptions]
    window_bytes: int
    max_bytes: int | None = None
    cache: ObjectCache | None = None
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.held = self.held_max = self.refetched = 0
        self._ready = threading.Condition()  # there is something to fetch
        self._there = threading.Condition()  # what the consumer waits for has come
        self._awaited: _Chunk | None = None
        self._tasks: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._cancels: set[Cancel] = set()
        self._closed = False
        self._groups: dict[tuple[int, str], tuple[tuple[str, ...], Pace | None]] = {}  # of the last shards

    def read(self, wanted: Iterable[Sequence[Wanted]]) -> Iterator[tuple[Wanted, Run | AISError]]:
        """Yield each sample with its run, or with why there is none, in the order wanted.

        Args:
            wanted: Lists of any length: one is taken when there is room for it.
        """
        keep_memory()
        chunks = chunks_in(wanted, self.window_bytes)
        window: deque[_Chunk] = deque()
        following: _Chunk | None = None
        ahead = window_at_first(self.window_bytes)
        try:
            while True:
                while True:
                    if following is None:
                        taken = next(chunks, None)
                        following = None if taken is None else _Chunk(taken)
                    if following is None or (window and self.held + following.size > ahead):
                        break
                    self._ask(following)
                    window.append(following)
                    following = None
                if not window:
                    return
                chunk = window[0]
                for place, one in enumerate(chunk.wanted):
                    piece = self._piece(chunk, place)
                    chunk.pieces[place] = None
                    yield one, self._looked_at(one, piece)
                    del piece
                window.popleft()
                self.held -= chunk.size
                ahead = min(self.window_bytes, 2 * ahead)
        finally:
            self.close()

    def close(self) -> None:
        """End the requests under way."""
        with self._ready:
            self._closed = True
            self._tasks.clear()
            self._ready.notify_all()
            for cancel in self._cancels:
                cancel.cancel()
        due = time.monotonic() + _CLOSE_S
        for thread in self._threads:  # forking with threads is for none: they are gone in a moment
            thread.join(max(0.0, due - time.monotonic()))

    def _ask(self, chunk: _Chunk) -> None:
        """Have the bytes of a chunk fetched; those in files are read when it is their turn."""
        self.held += chunk.size
        self.held_max = max(self.held_max, self.held)
        remote = []
        for request in chunk.requests:
            if _place_of(request.shard.name).kind == "file":
                _will_need(request)
                chunk.in_files.update(dict.fromkeys(request.wanted, request))
            else:
                remote.append(request)
        with self._ready:
            tasks = [_Task(chunk, requests) for requests in together(remote, self._group_of)]
            self._tasks.extend(tasks)
            missing = min(THREADS - len(self._threads), len(self._tasks) - self._idle)
            for _ in range(missing):
                thread = threading.Thread(target=self._work, name="torchdata_ais.fetch", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._ready.notify(len(tasks))

    def _group_of(self, request: Request) -> tuple[str, ...] | None:
        """Return which cluster answers a request in one batch with others; None: it is sent alone."""
        shard = request.source, request.shard.name
        known = self._groups.get(shard)
        if known is None:
            if len(self._groups) >= _SHARDS:
                self._groups.clear()
            known = self._groups[shard] = self._group_and_pace(request)
        group, pace = known
        return group if pace is not None and pace.batches else None

    def _group_and_pace(self, request: Request) -> tuple[tuple[str, ...], Pace | None]:
        if self.cache is not None or _place_of(request.shard.name).kind != "object":
            return (), None
        group = batch_group(request.shard.name, self.options[request.source])
        return (str(request.source), *group), self._pace(request)

    def _pace(self, request: Request) -> Pace:
        options = self.options[request.source]
        return pace_of(_place_of(request.shard.name).endpoint or options.endpoint, options.node_requests)

    def _piece(self, chunk: _Chunk, place: int) -> Piece:
        """Return what came of a sample; wait for it, or read it, if it is in a file."""
        piece = chunk.pieces[place]
        if piece is not None:
            return piece
        if place in chunk.in_files:
            request = chunk.in_files[place]
            chunk.fill(request, self._fetched(request, chunk))
            return chunk.pieces[place] or b""
        begin = time.monotonic()
        with self._there:
            self._awaited = chunk
            while (piece := chunk.pieces[place]) is None:
                if not any(thread.is_alive() for thread in self._threads):
                    raise ReadError.at("the fetching threads are gone", todo="iterate anew")
                self._there.wait(_LIVENESS_S)
            self._awaited = None
        self.stats.wait_s += time.monotonic() - begin
        return piece

    def _looked_at(self, wanted: Wanted, piece: Piece) -> Run | AISError:
        reference = wanted.reference
        if isinstance(piece, AISError):
            return piece
        try:
            return run_in(piece, reference, max_bytes=self.max_bytes)
        except SampleIndexError as error:
            if _place_of(reference.shard.name).kind == "file":
                return error
        except AISError as error:
            return error
        self.refetched += 1
        again = self._one(wanted)
        if isinstance(again, AISError):
            return again
        try:
            return run_in(again, reference, max_bytes=self.max_bytes)
        except AISError as error:
            return error

    def _one(self, wanted: Wanted) -> Piece:
        """Return the bytes of one sample, asked for alone and in this thread."""
        reference = wanted.reference
        try:
            return self._range(wanted.source, reference.shard, reference.start, reference.size)
        except AISError as error:
            return _with_key(error, reference)

    def _work(self) -> None:
        """Fetch what is asked for, until the reader is closed."""
        while True:
            with self._ready:
                self._idle += 1
                while not self._tasks and not self._closed:
                    self._ready.wait()
                self._idle -= 1
                if self._closed:
                    return
                chunk, requests = self._tasks.popleft()
                cancel = Cancel()
                self._cancels.add(cancel)
            try:
                if len(requests) > 1:
                    requests = self._batch(requests, chunk, cancel)
                else:
                    self._came(chunk, requests[0], self._fetched(requests[0], chunk, cancel))
                    requests = []
            except Cancelled:
                pass  # the reader was closed
            except BaseException as caught:  # noqa: BLE001 - given to the consumer
                error = caught if isinstance(caught, AISError) else ReadError(repr(caught))
                for request in requests:
                    self._came(chunk, request, [error] * len(request.wanted))
                requests = []
            with self._ready:
                self._cancels.discard(cancel)
                if requests:  # what the batch did not bring is needed soonest
                    self._tasks.extendleft(_Task(chunk, [request]) for request in reversed(requests))
                    self._ready.notify(len(requests))

    def _came(self, chunk: _Chunk, request: Request, came: Sequence[Piece]) -> None:
        chunk.fill(request, came)
        if self._awaited is chunk:  # waking somebody takes longer than all else here
            with self._there:
                self._there.notify()

    def _batch(self, requests: Sequence[Request], chunk: _Chunk, cancel: Cancel) -> list[Request]:
        """Ask for many ranges at once; return those that did not come: they are asked for one by one."""
        pace, options = self._pace(requests[0]), self.options[requests[0].source]
        missing = dict(enumerate(requests))

        def arrived(number: int, data: bytes) -> None:
            request = missing.pop(number)
            self.stats.bytes += len(data)
            self._came(chunk, request, _cut(data, request, chunk))

        ranges = [(one.shard.name, one.start, one.length) for one in requests]
        try:
            answer = read_batch(ranges, options, arrived, cancel=cancel, pace=pace)
        except AISError as error:
            logger.info("%d samples are asked for one by one: %s", len(missing), error.what)
            return list(missing.values())
        if not answer.answered_as_asked:
            with self._ready:
                first = pace.batches and not pace.wrong
                pause = pace.pause_batches()
                if not answer.supported:
                    pace.batches = False
            if pause:
                level = logging.WARNING if answer.supported and first else logging.INFO
                how_long = f"for {pause:g} s" if answer.supported else "from now on"
                logger.log(level, "samples are asked for one by one %s: %s", how_long, answer.reason)
        return list(missing.values())

    def _fetched(self, request: Request, chunk: _Chunk, cancel: Cancel | None = None) -> list[Piece]:
        """Return the pieces of a request, in the order of what it wants."""
        wanted = [chunk.wanted[place].reference for place in request.wanted]
        try:
            data = self._range(request.source, request.shard, request.start, request.length, cancel)
        except AISError as error:
            return [_with_key(error, reference) for reference in wanted]
        return _cut(data, request, chunk)

    def _range(
        self, source: int, shard: ShardRow, start: int, length: int, cancel: Cancel | None = None
    ) -> bytes:
        place, options = _place_of(shard.name), self.options[source]
        if self.cache is not None:
            known = ObjectURL(place.at(options.endpoint).url(), shard.size, shard.checksum, shard.version)
            kept = self.cache.open(known, options)
            if kept is not None:
                with kept.file as file:
                    return os.pread(file.fileno(), length, start)
        # What proves itself by its bytes may have been stored again.
        facts = Facts(shard.size) if shard.proven else Facts(shard.size, shard.version, shard.checksum)
        stats = Stats()
        named = place.endpoint or options.endpoint
        pace = pace_of(named, options.node_requests) if place.kind == "object" else None
        data = read_range(place, start, length, options, known=facts, stats=stats, cancel=cancel, pace=pace)
        self.stats.bytes += stats.bytes or len(data)
        self.stats.retries += stats.retries
        return data


def _cut(data: bytes, request: Request, chunk: _Chunk) -> list[Piece]:
    """Return the samples in the bytes of a request, in the order of what it wants: views, their members are copied."""
    if len(request.wanted) == 1:
        return [data]
    view = memoryview(data)
    wanted = [chunk.wanted[place].reference for place in request.wanted]
    starts = (reference.start - request.start for reference in wanted)
    return [view[start : start + one.size] for start, one in zip(starts, wanted, strict=True)]


def _will_need(request: Request) -> None:
    """Tell the system that a part of a file will be read: it may read it from now on."""
    try:
        fd = os.open(request.shard.name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # said when it is read
    try:
        os.posix_fadvise(fd, request.start, request.length, os.POSIX_FADV_WILLNEED)
    except OSError:
        pass
    finally:
        os.close(fd)


def _with_key(error: AISError, reference: SampleReference) -> AISError:
    """Return the error with the sample that was wanted."""
    place = {"url": reference.shard.name, "offset": reference.start, **error.place, "key": reference.key}
    return error.placed(place)
