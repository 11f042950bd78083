"""Samples by index, fetched ahead.

Adjacent samples of a shard come as one range. Scattered samples come as a batch of ranges, if the cluster supports
that and answers correctly (`Fetching`). A request is sent only when its bytes fit into the window. The consumer's
thread checks received bytes. Wrong bytes are requested once more, alone, before that is an error.

Threads fetch ahead, and read every answer to its end without waiting for the consumer: storage disconnects slow
readers. Files are read in the consumer's thread. So are samples requested together, where the processor is the
bottleneck.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache

import xxhash

from torchdata_ais.errors import AISError, ReadError, SampleIndexError, ShardError, TruncatedShardError
from torchdata_ais.index import SampleReference, stored_text
from torchdata_ais.reading.requests import (
    THREADS,
    Request,
    Wanted,
    chunks_in,
    parts_of,
    requests_for,
    together,
    window_at_first,
)
from torchdata_ais.reading.runs import Run, RunMember, whole_runs
from torchdata_ais.samples import is_apple_double, split_name
from torchdata_ais.store import (
    Cancel,
    Cancelled,
    ConcurrencyLimit,
    ObjectCache,
    ObjectMetadata,
    OpenFiles,
    Stats,
    StoreOptions,
    batch_group,
    concurrency_limit_of,
    keep_memory,
    read_batch,
    read_range,
    watching,
)
from torchdata_ais.tar import Link, Member, TarReader, usual_members
from torchdata_ais.urls import ObjectURL, parse_url

_LIVENESS_S = 1.0
_CLOSE_S = 1.0
_SHARDS = 4096  # so many locations are kept
_LEAST_THREADS = 2
_FAST = 300e6  # bytes a second of a request; more threads would only take Python's lock from each other
_JUDGED = 4  # requests, together
_BUSY = 0.65  # the part of their time that reading computed, where it is the bottleneck
_PATIENCE = 3  # times what the consumer computed, its requests may take
_JUDGED_PART = 0.5  # of a chunk, together
_PAUSE = 16  # requests by threads after the consumer fetched in vain; each time twice as many

logger = logging.getLogger("torchdata_ais")

Piece = bytes | memoryview | Run | AISError
place_of = lru_cache(_SHARDS)(parse_url)


class Chunk:
    """Samples that are requested together, and their results."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        self.requests = requests_for(wanted)
        self.size = sum(request.length for request in self.requests)
        self.pieces: list[Piece | None] = [None] * len(wanted)
        # Read in the consumer's thread, by each place a request is for.
        self.in_files: dict[int, Request] = {}

    def fill(self, request: Request, came: bytes | memoryview | AISError) -> None:
        """Store the result of a request; views of it share the bytes."""
        for place in request.wanted:
            reference = self.wanted[place].reference
            if isinstance(came, AISError):
                self.pieces[place] = _with_key(came, reference)
            elif reference.size == request.length:
                self.pieces[place] = came
            else:
                start = reference.start - request.start
                self.pieces[place] = memoryview(came)[start : start + reference.size]


class Bottleneck:
    """Judgment of who is to fetch: threads, or the consumer.

    Where reading computes most of the time, and the consumer does little else, threads fetch nothing earlier: they only
    take Python's lock from each other and from the consumer. Threads are needed again where requests wait, or the
    consumer computes between them.

    Attributes:
        inline: Whether the consumer fetches.
        computing: Whether reading computed for most of the time when last judged.
    """

    def __init__(self) -> None:
        self.inline = self.computing = False
        self._pause = _PAUSE
        self._judge_after(_JUDGED)
        self._ended = 0.0  # the consumer's last wait
        self._took_s = 0.0  # its last requests, for half of a chunk
        self._waits = 0  # how often in turn these waited
        self._begin_chunk()

    def _judge_after(self, requests: int) -> None:
        """Begin to measure; the next judgment is after so many requests."""
        self._left = requests
        self._begin, self._own_begin = time.monotonic(), time.thread_time()
        self._computed_s = 0.0  # in threads, since then

    def add(self, computed_s: float) -> None:
        """Count a request by a thread."""
        self._computed_s += computed_s
        self._left -= 1

    def judge(self) -> bool:
        """Return whether threads are too many. Called when the consumer waits."""
        if self.inline or self._left > 0:
            return False
        own_s = time.thread_time() - self._own_begin
        computed_s = own_s + self._computed_s
        self.computing = computed_s >= _BUSY * (time.monotonic() - self._begin)
        self._judge_after(_JUDGED)
        return self.computing and 2 * own_s <= computed_s

    def try_inline(self) -> None:
        """Let the consumer fetch, from now on or as a trial."""
        self.inline = True
        self._took_s, self._waits = math.inf, 1
        self._begin_chunk()

    def end_wait(self) -> float:
        """Record the end of a wait of the consumer; return the time."""
        self._ended = time.monotonic()
        return self._ended

    def is_consumer_busy(self) -> bool:
        """Return whether it has worked for half as long as its requests took."""
        return 2 * (self._worked_s + time.monotonic() - self._ended) > self._took_s

    def _begin_chunk(self) -> None:
        """Begin to measure requests by the consumer, for half of a chunk."""
        self._part = self._part_s = self._part_computed_s = self._worked_s = 0.0

    @contextmanager
    def own_request(self, part: float) -> Iterator[None]:
        """Measure the consumer's request; let threads fetch if it waits.

        `part` is how much of a chunk it is for. Half of a chunk is judged together, as a small request says little.
        """
        begin, computed = time.monotonic(), time.thread_time()
        self._worked_s += begin - self._ended
        yield
        self._part += part
        self._part_s += self.end_wait() - begin
        self._part_computed_s += time.thread_time() - computed
        if self._part < _JUDGED_PART:
            return
        self._took_s = self._part_s
        self._waits = self._waits + 1 if self._part_s > _PATIENCE * self._part_computed_s else 0
        self._begin_chunk()
        if self._waits > 1:  # one may have been bad luck
            self.leave_to_threads()

    def leave_to_threads(self) -> None:
        """Let threads fetch for a while, each time for longer."""
        self.inline = self.computing = False
        self._judge_after(self._pause)
        self._pause *= 2


class Fetching:
    """Fetcher of ranges in the order of their requests.

    Two threads fetch, on a slow link more as long as the consumer waits for them. Where threads do not help
    (`Bottleneck`), the consumer itself fetches samples that are requested together.

    Memory: the requested bytes; 512 KiB for each request under way (`ChunkedBody`, `WholeBody`).
    """

    def __init__(
        self,
        options: Sequence[StoreOptions],
        cache: ObjectCache | None,
        stats: Stats,
        max_bytes: int | None,
    ) -> None:
        self._options, self._cache, self._stats, self._max_bytes = options, cache, stats, max_bytes
        self._files = OpenFiles()
        self._ready = threading.Condition()  # there is something to fetch
        self._there = threading.Condition()  # notifies the consumer of results
        self._awaited: Chunk | None = None
        self._tasks: deque[tuple[Chunk, list[Request]]] = deque()  # of a chunk, those that are sent as one
        self._threads: list[threading.Thread] = []
        self._process: int | None = None  # which started them
        self._most = _LEAST_THREADS  # that fetch at the same time
        self._busy = self._idle = 0
        self._late = False  # whether the consumer waited for what came
        self._early = 0  # requests since then that it did not wait for
        self._bottleneck = Bottleneck()
        self._first_pace: ConcurrencyLimit | None = None  # remembers who fetched
        self._cancels: set[Cancel] = set()
        self._closed = False
        self._watching = ExitStack()
        # Of the last shards.
        self._groups: dict[tuple[int, str], tuple[tuple[str, ...], ConcurrencyLimit | None]] = {}

    def ask(self, chunk: Chunk) -> None:
        """Request the bytes of a chunk; files are read at their turn."""
        remote = []
        for request in chunk.requests:
            if place_of(request.shard.name).kind == "file":
                self._will_need(request)
                chunk.in_files.update(dict.fromkeys(request.wanted, request))
            else:
                remote.append(request)
        if remote and not self._threads:
            self._process = os.getpid()
            self._watching.enter_context(watching())
            self._first_pace = self._pace(remote[0])
            if self._first_pace.inline:
                self._bottleneck.try_inline()
        self._check_threads()
        with self._ready:
            tasks = [(chunk, requests) for requests in together(remote, self._group_of)]
            self._tasks.extend(tasks)
            self._start_threads()
            self._ready.notify(self._startable())

    def _will_need(self, request: Request) -> None:
        """Advise the system that a part of a file will be read."""
        with suppress(OSError, ValueError):  # an error is raised when it is read
            file = self._files.open(request.shard.name)
            os.posix_fadvise(file.fileno(), request.start, request.length, os.POSIX_FADV_WILLNEED)

    def _start_threads(self) -> None:
        """Start missing threads. Called with the lock held."""
        for _ in range(min(self._most - len(self._threads), len(self._tasks) - self._idle)):
            thread = threading.Thread(target=self._work, name="torchdata_ais.fetch", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _startable(self) -> int:
        """Return how many tasks threads may start. Called with the lock held."""
        count = len(self._tasks)
        if self._bottleneck.inline:  # not those for the consumer
            count = next((n for n, (_, requests) in enumerate(self._tasks) if _are_several(requests)), count)
        return max(0, min(self._most - self._busy, count))

    def piece(self, chunk: Chunk, place: int) -> Piece:
        """Return the result of a sample; wait for it, or read or fetch it."""
        piece = chunk.pieces[place]
        if piece is not None:
            return piece
        if place in chunk.in_files:
            request = chunk.in_files[place]
            chunk.fill(request, self._fetched(request))
            return chunk.pieces[place] or b""
        begin = time.monotonic()
        while (piece := chunk.pieces[place]) is None:
            self._check_threads()
            with self._there:
                self._awaited = chunk
                # A thread notifies after its last request, too; it cannot before `wait`, as the lock is held.
                task = self._own_task() if chunk.pieces[place] is None else None
                if task is None and chunk.pieces[place] is None:
                    self._there.wait(_LIVENESS_S)
                self._awaited = None
            if task is not None:
                self._fetch_here(*task)
        self._stats.wait_s += self._bottleneck.end_wait() - begin
        return piece

    def _is_forked(self) -> bool:
        """Return whether another process started the threads."""
        return self._process not in (None, os.getpid())

    def _check_threads(self) -> None:
        """Raise if the threads are gone: nothing would come any more."""
        if self._is_forked() or (self._threads and not any(one.is_alive() for one in self._threads)):
            raise ReadError.at("the fetching threads are gone", todo="iterate the pipe again")

    def _own_task(self) -> tuple[Chunk, list[Request]] | None:
        """Return what the consumer fetches next; None: threads do, or did."""
        with self._ready:
            self._judge()
            if not self._bottleneck.inline or self._busy or not self._tasks:
                return None
            if self._bottleneck.is_consumer_busy():
                self._bottleneck.leave_to_threads()
            if self._startable():
                self._ready.notify(self._startable())
                return None
            self._busy += 1
            return self._tasks.popleft()

    def _judge(self) -> None:
        """Adapt who fetches to the bottleneck. Called with the lock held."""
        if not self._bottleneck.judge():
            return
        if self._most > _LEAST_THREADS:
            self._most -= max(1, self._most // 3)
        else:
            self._bottleneck.try_inline()

    def _fetch_here(self, chunk: Chunk, requests: list[Request]) -> None:
        """Fetch a task in the consumer's thread."""
        cancel = Cancel()
        with self._ready:
            self._cancels.add(cancel)
        try:
            part = sum(request.length for request in requests) / chunk.size
            with suppress(Cancelled), self._bottleneck.own_request(part):
                self._fetch(chunk, requests, cancel, in_parts=True)
        finally:
            with self._ready:
                self._cancels.discard(cancel)
                self._busy -= 1
                self._ready.notify(self._startable())

    def alone(self, wanted: Wanted) -> Piece:
        """Return the bytes of one sample, from a single request in this thread."""
        reference = wanted.reference
        request = Request(wanted.source, reference.shard, reference.start, reference.size, [0])
        came = self._fetched(request)
        return _with_key(came, reference) if isinstance(came, AISError) else came

    def close(self) -> None:
        """End the requests under way."""
        if self._is_forked():  # they are those of the parent, whose threads may have held the locks
            return
        with self._ready:
            self._closed = True
            self._tasks.clear()
            self._ready.notify_all()
            for cancel in self._cancels:
                cancel.cancel()
        due = time.monotonic() + _CLOSE_S
        for thread in self._threads:  # forking with threads is for none: they are gone in a moment
            thread.join(max(0.0, due - time.monotonic()))
        self._watching.close()
        self._files.close()
        if self._first_pace is not None:
            self._first_pace.inline = self._bottleneck.inline

    def _work(self) -> None:
        """Fetch requested chunks until the reader is closed."""
        while True:
            with self._ready:
                self._idle += 1
                while not self._closed and self._startable() < 1:
                    self._ready.wait()
                self._idle -= 1
                if self._closed:
                    return
                chunk, requests = self._tasks.popleft()
                self._busy += 1
                cancel = Cancel()
                self._cancels.add(cancel)
            begin, size = time.monotonic(), sum(request.length for request in requests)
            computed = time.thread_time()
            try:
                self._fetch(chunk, requests, cancel)
            except Cancelled:
                pass  # the reader was closed
            except BaseException as caught:  # noqa: BLE001 - given to the consumer
                error = caught if isinstance(caught, AISError) else ReadError(repr(caught))
                for request in requests:
                    self._came(chunk, request, error)
            with self._ready:
                self._cancels.discard(cancel)
                self._busy -= 1
                if self._closed:
                    return
                self._bottleneck.add(time.thread_time() - computed)
                self._weigh(size, time.monotonic() - begin)
                with suppress(RuntimeError):  # no thread can be started: those there go on
                    self._start_threads()
                self._ready.notify(max(0, self._startable() - 1))  # this thread takes one
                last = self._bottleneck.inline and not self._busy
            if last:
                with self._there:
                    self._there.notify()

    def _fetch(
        self, chunk: Chunk, requests: list[Request], cancel: Cancel, *, in_parts: bool = False
    ) -> None:
        """Fetch a task; ranges missing from a batch become the next tasks."""
        if len(requests) == 1:
            if in_parts and len(requests[0].wanted) > 1:
                self._fetch_parts(chunk, requests[0], cancel)
            else:
                self._came(chunk, requests[0], self._fetched(requests[0], cancel))
            return
        missing = self._batch(requests, chunk, cancel)
        with self._ready:
            if not self._closed:
                self._tasks.extendleft((chunk, [request]) for request in reversed(missing))

    def _fetch_parts(self, chunk: Chunk, request: Request, cancel: Cancel) -> None:
        """Fetch a range, and look at each part of it when it comes.

        Called in the consumer's thread, or it could take a sample that is still in the buffer of a part.
        """
        parts = deque(parts_of(request, chunk.wanted))

        def arrived(data: bytes | memoryview) -> None:
            part = parts.popleft()
            chunk.fill(part, data)
            self._look_at(chunk, part)

        came = self._fetched(request, cancel, [part.length for part in parts], arrived)
        for missing in [request] if isinstance(came, bytes) and came else parts:  # all are from a cache
            chunk.fill(missing, came)

    def _weigh(self, size: int, took_s: float) -> None:
        """Adapt the number of threads to an ended request.

        Called with the lock held.
        """
        self._early = 0 if self._late else self._early + 1
        if self._late and size < took_s * _FAST and not self._bottleneck.computing:
            self._most = min(THREADS, self._most + self._most // 2)
        elif self._early >= self._most:  # the consumer waited for none of those under way
            self._most, self._early = max(_LEAST_THREADS, self._most // 2), 0
        self._late = False

    def _came(self, chunk: Chunk, request: Request, came: bytes | AISError) -> None:
        chunk.fill(request, came)
        if self._bottleneck.inline:
            self._look_at(chunk, request)
        # The consumer sets `_awaited` before it checks for the piece, so it does not miss this result.
        if self._awaited is chunk:  # waking a thread takes longer than all else here
            self._late = True
            with self._there:
                self._there.notify()

    def _batch(self, requests: Sequence[Request], chunk: Chunk, cancel: Cancel) -> list[Request]:
        """Request many ranges at once; return those to be requested one by one."""
        pace, options = self._pace(requests[0]), self._options[requests[0].source]
        missing = dict(enumerate(requests))

        def arrived(number: int, data: bytes) -> None:
            request = missing.pop(number)
            self._stats.bytes += len(data)
            self._came(chunk, request, data)

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

    def _look_at(self, chunk: Chunk, request: Request) -> None:
        """Replace the bytes of samples by their runs, while they are cached."""
        for place in request.wanted:
            piece = chunk.pieces[place]
            if isinstance(piece, (bytes, memoryview)):
                reference = chunk.wanted[place].reference
                try:
                    chunk.pieces[place] = run_in(piece, reference, max_bytes=self._max_bytes)
                except AISError:  # the consumer raises it; a view may be of a buffer that is used again
                    chunk.pieces[place] = bytes(piece)

    def _fetched(
        self,
        request: Request,
        cancel: Cancel | None = None,
        parts: Sequence[int] = (),
        arrived: Callable[[bytes | memoryview], object] | None = None,
    ) -> bytes | AISError:
        """Return the bytes of a range, or its error; none if parts were passed on."""
        try:
            return self._range(request, cancel, parts, arrived)
        except AISError as error:
            return error

    def _range(
        self,
        request: Request,
        cancel: Cancel | None,
        parts: Sequence[int],
        arrived: Callable[[bytes | memoryview], object] | None,
    ) -> bytes:
        source, shard, start, length, _ = request
        place, options = place_of(shard.name), self._options[source]
        if self._cache is not None:
            known = ObjectURL(place.at(options.endpoint).url(), shard.size, shard.checksum, shard.version)
            kept = self._cache.open(known, options)
            if kept is not None:
                with kept.file as file:
                    return os.pread(file.fileno(), length, start)
        # What proves itself by its bytes may have been stored again.
        facts = (
            ObjectMetadata(shard.size)
            if shard.proven
            else ObjectMetadata(shard.size, shard.version, shard.checksum)
        )
        stats = Stats()
        pace = self._pace(request) if place.kind == "object" else None
        data = b""
        try:
            data = read_range(
                place, start, length, options,
                known=facts, stats=stats, cancel=cancel, pace=pace, files=self._files,
                parts=parts, arrived=arrived,
            )  # fmt: skip
        finally:
            self._stats.bytes += stats.bytes or len(data)
            self._stats.retries += stats.retries
        return data

    def _group_of(self, request: Request) -> tuple[str, ...] | None:
        """Return the cluster that answers a request with others; None: alone."""
        shard = request.source, request.shard.name
        known = self._groups.get(shard)
        if known is None:
            if len(self._groups) >= _SHARDS:
                self._groups.clear()
            known = self._groups[shard] = self._group_and_pace(request)
        group, pace = known
        return group if pace is not None and pace.batches else None

    def _group_and_pace(self, request: Request) -> tuple[tuple[str, ...], ConcurrencyLimit | None]:
        options = self._options[request.source]
        is_object = place_of(request.shard.name).kind == "object"
        if self._cache is not None or not is_object or not options.get_batch:
            return (), None
        group = batch_group(request.shard.name, options)
        return (str(request.source), *group), self._pace(request)

    def _pace(self, request: Request) -> ConcurrencyLimit:
        options = self._options[request.source]
        return concurrency_limit_of(
            place_of(request.shard.name).endpoint or options.endpoint, options.node_requests
        )


def _are_several(requests: Sequence[Request]) -> bool:
    """Return whether a task is for several samples."""
    return len(requests) > 1 or len(requests[0].wanted) > 1


def _with_key(error: AISError, reference: SampleReference) -> AISError:
    """Return the error with the sample that was wanted."""
    place = {"url": reference.shard.name, "offset": reference.start, **error.place, "key": reference.key}
    return error.placed(place)


def run_in(data: bytes | memoryview, reference: SampleReference, *, max_bytes: int | None = None) -> Run:
    """Return the run of members that is the sample of `reference`.

    An index made of headers alone has regular members only, and of one name the first. Its sample may therefore begin
    with members of the sample before, and end with links and extension headers of the one after; those are left out.

    Raises:
        SampleIndexError: The bytes are not those that were indexed.
        ShardError, SampleError: As for the same sample in a stream.
    """
    if len(data) != reference.size:
        raise _stale(reference, f"{len(data)} bytes are there of {reference.size}")
    if reference.xxh64 is not None:
        if xxhash.xxh64_intdigest(data) != reference.xxh64:
            raise _stale(reference, "its bytes are not those that were indexed")
        usual = _usual_run(data, reference, max_bytes)
        if usual is not None:
            return usual
    name = reference.shard.name
    reader = TarReader(
        [data],
        url=name,
        start=reference.start,
        require_end=False,
        max_member_bytes=max_bytes,
        skip_large=True,
    )
    try:
        # Bytes of a shard that was read begin and end with the sample.
        members = _own(reader, reference) if reference.xxh64 is None else reader
        for run in whole_runs(members, url=name, max_bytes=max_bytes):
            if run.key is not None and stored_text(run.key) == reference.key:
                break
        else:
            raise _stale(reference, "it is not there")
    except ShardError as error:
        raise _stale(reference, f"what is there is no sample ({error.what})") from error
    if run.error is not None:
        raise run.error
    if reference.xxh64 is None:
        _check_fields(run, reference)
    return run


def _usual_run(data: bytes | memoryview, reference: SampleReference, max_bytes: int | None) -> Run | None:
    """Return the run of proven bytes, if it has usual members and no others.

    The rest of a shard cannot change what they are: all have the key and the fields of the index.
    """
    if max_bytes is not None and 8 * len(data) > max_bytes:  # names and records may count
        return None
    found = usual_members(data, reference.start, reference.key, reference.fields, reference.sizes)
    if found is None:
        return None
    new = tuple.__new__  # RunMember(...) takes twice as long
    members = [new(RunMember, one) for one in found]
    return Run(reference.key, members, reference.start, reference.start + len(data), last=True)


def _own(reader: TarReader, reference: SampleReference) -> Iterator[Member]:
    """Yield the members without those of the sample before.

    The last may be cut: it is the next sample's beginning.
    """
    missing = len(reference.fields)
    begun = False
    try:
        for member in reader:
            if is_apple_double(member[0]):
                continue
            is_link = isinstance(member[1], Link)
            parts = split_name(member[0])
            key = None if parts is None else stored_text(parts[0])
            if key == reference.key:
                begun = True
                missing -= not is_link
            elif key is not None and not is_link and (begun or key != reference.before):
                raise _stale(reference, f"the sample {key!r} is there")
            elif not begun and reference.before is not None:
                continue
            yield member
    except TruncatedShardError:
        if missing > 0:
            raise


def _check_fields(run: Run, reference: SampleReference) -> None:
    there = [(stored_text(one.field), len(one.data)) for one in run.members if one.field is not None]
    wanted = list(zip(reference.fields, reference.sizes, strict=True))
    found = iter(there)
    if not all(one in found for one in wanted):  # in this order, links between them
        raise _stale(reference, f"it has the fields {there}, not {wanted}")


def _stale(reference: SampleReference, what: str) -> SampleIndexError:
    shard = reference.shard
    return SampleIndexError.at(
        f"the index does not fit {shard.name}: the sample {reference.key!r} at byte {reference.start}: {what}",
        todo="index the shards again (torchdata-ais index), or restore them as they were",
        url=shard.name, offset=reference.start, key=reference.key,
    )  # fmt: skip


@dataclass
class IndexedReader:
    """Reader of samples by reference.

    Attributes:
        options: Transport settings of each source.
        window_bytes: Most bytes requested ahead, or one sample if that is larger.
        max_bytes: Bound on one sample; a larger one is a `SampleError`.
        stats: Counts bytes, retries, and waits of the consumer.
        held: Bytes requested and not yet returned; `held_max`: the most there were.
        refetched: Samples that were requested once more, after wrong bytes.

    Memory: `window_bytes`, or the largest sample, and that sample's members; 512 KiB a request under way (`Fetching`).
    """

    options: Sequence[StoreOptions]
    window_bytes: int
    max_bytes: int | None = None
    cache: ObjectCache | None = None
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.held = self.held_max = self.refetched = 0
        self._fetching = Fetching(self.options, self.cache, self.stats, self.max_bytes)

    def read(self, wanted: Iterable[Sequence[Wanted]]) -> Iterator[tuple[Wanted, Run | AISError]]:
        """Yield each sample with its run, or with its error, in order.

        A list of any length is taken when it fits into the window.
        """
        keep_memory()
        chunks = chunks_in(wanted, self.window_bytes)
        window: deque[Chunk] = deque()
        following: Chunk | None = None
        ahead = window_at_first(self.window_bytes)
        try:
            while True:
                while True:
                    if following is None:
                        taken = next(chunks, None)
                        following = None if taken is None else Chunk(taken)
                    if following is None or (window and self.held + following.size > ahead):
                        break
                    self.held += following.size
                    self.held_max = max(self.held_max, self.held)
                    self._fetching.ask(following)
                    window.append(following)
                    following = None
                if not window:
                    return
                chunk = window[0]
                for place, one in enumerate(chunk.wanted):
                    piece = self._fetching.piece(chunk, place)
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
        self._fetching.close()

    def _looked_at(self, wanted: Wanted, piece: Piece, *, again: bool = True) -> Run | AISError:
        reference = wanted.reference
        if isinstance(piece, (Run, AISError)):
            return piece
        try:
            return run_in(piece, reference, max_bytes=self.max_bytes)
        except SampleIndexError as error:
            if not again or place_of(reference.shard.name).kind == "file":
                return error
        except AISError as error:
            return error
        self.refetched += 1
        return self._looked_at(wanted, self._fetching.alone(wanted), again=False)
