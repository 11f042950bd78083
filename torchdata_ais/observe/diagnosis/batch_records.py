"""Records of batches.

A look at the counters costs as much as making a small sample. So one record has the growth of several fast batches.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import xxhash

from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.meter import StageStats, meter_of
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.torch_stages import stage_at_work, stage_of
from torchdata_ais.pipes.base.upstream import parents, upstream
from torchdata_ais.store import RequestRecord, journal


class BatchRecord(msgspec.Struct, array_like=True):
    """Timing of one batch in its worker.

    Batches that are made in less than 25 ms each are counted together, up to 100 ms of them: the last has `wait_s` and
    the fields after it for them all, in the others these are empty.

    Attributes:
        iteration, number: Of its process's pipe, and of the batch in that, from 0.
        begun: Start of its making, in seconds since 1970.
        made_s: How long that took.
        keys: Digest of the samples' keys, where the batch has a column ``__key__``; else of key and shard of the last
            sample processed: two runs of one order have the same.
        wait_s: Seconds of `made_s` spent waiting for bytes, without `delayed_s`.
        first_byte_s: Seconds until the first byte of the objects opened for it, together.
        requests, bytes, retries: Requests that ended, bytes read, requests made again meanwhile.
        own_s: Seconds that each stage worked for it, in the order of `Recorded.stages`, without `delayed_s`; empty
            where none is counted.
        delayed_s: Seconds of `made_s` in which the thread was ready to run and the machine had no processor for it; 0
            where the system does not count them.
    """

    iteration: int
    number: int
    begun: float
    made_s: float
    keys: int = 0
    wait_s: float = 0.0
    first_byte_s: float = 0.0
    requests: int = 0
    bytes: int = 0
    retries: int = 0
    own_s: list[float] = []
    delayed_s: float = 0.0


class Taken(msgspec.Struct, array_like=True):
    """Timing of one batch in the training loop.

    Attributes:
        step: The number of the batch in this rank's loader, from 0.
        worker, iteration, number: The worker that made it; see `BatchRecord`.
        at: When it was taken, in seconds since 1970.
        waited_s: How long the loop had waited for it.
    """

    step: int
    worker: int
    iteration: int
    number: int
    at: float
    waited_s: float


class Doing(msgspec.Struct, array_like=True):
    """Stage, reading or not, of a process making a batch for `seconds`."""

    seconds: float
    stage: str
    reads: bool = False


class Recorded(msgspec.Struct):
    """Records of one process since its last report.

    Attributes:
        stages: Names of the stages that were measured, with arguments; the first stage first.
        batches: Batches it made.
        requests, under_way: Requests that ended, and those that had not, at its last report.
        doing: Its activity, if it has been making a batch for long.
    """

    pid: int
    stages: list[str]
    batches: list[BatchRecord]
    requests: list[RequestRecord]
    under_way: list[RequestRecord] = []
    doing: Doing | None = None

    @staticmethod
    def joined(parts: Iterable[Recorded | None]) -> Recorded | None:
        """Return the joined parts of one process, the oldest first."""
        known = [part for part in parts if part is not None]
        if len(known) < 2:
            return known[0] if known else None
        batches = [batch for part in known for batch in part.batches]
        requests = [request for part in known for request in part.requests]
        last = known[-1]
        return Recorded(last.pid, last.stages, batches, requests, last.under_way, last.doing)


KEPT = 256
"""Batches whose records stay in the process that made them, for a stalled run."""

MOST_UNSENT = 4096
"""Batches whose records wait to be sent to the main process."""

_SLOW_S, _COUNTED_S = 25e-3, 0.1
"""Seconds of making after which the counters are read, of one slow batch or of several faster ones together."""

_LONG_S = 2.0
"""Seconds of making a batch after which its process reports its activity."""

_MOST_FRESH = 64
"""Batches that are recorded together: code that has left the processor's cache takes ten times as long."""

_Fresh = tuple[int, int, float, float, Iterable[object]]
"""Of a batch: iteration, number, start, duration, and keys."""


class RunDelay:
    """Time that the creating thread was ready without a processor."""

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the system does not count it, or there are no descriptors left
            return
        weakref.finalize(self, os.close, self._file).atexit = False

    def seconds(self) -> float:
        """Return it so far; always 0 where the system does not count it."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 80, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


class BatchRecorder:
    """The records of one process, whose last stage is `pipe`.

    Attributes:
        last: The last batches.
        stages: Names of the stages, as `BatchRecord.own_s` has them.
    """

    def __init__(self, pipe: IterDataPipe[object]) -> None:
        self.pipe = pipe
        self.last: deque[BatchRecord] = deque(maxlen=KEPT)
        self._fresh: deque[_Fresh] = deque()
        self._unsent: deque[BatchRecord] = deque(maxlen=MOST_UNSENT)
        self._ended = self._told = journal().ended
        # The thread that makes batches reports now and then, another one on request.
        self._taking = threading.Lock()
        self._begun: float | None = None  # the batch that is being made
        self._thread = 0
        self._iteration = self._number = 0
        self._run_delay = RunDelay()
        self._begin_on(pipe)

    def _begin_on(self, pipe: IterDataPipe[object]) -> None:
        self.pipe = pipe
        stages = list(upstream(pipe))[::-1]
        place = {id(stage): number for number, stage in enumerate(stages)}
        self._meters = [meter_of(stage) for stage in stages]
        self._sources = [[place[id(source)] for source in parents(stage)] for stage in stages]
        self._readers = [stage_of(stage) for stage in stages if _reads(stage)]
        self._reading = [number for number, stage in enumerate(stages) if _reads(stage)]
        behind_first = [stage_of(stage) for stage in stages[::-1]]
        self._placed = [stage for stage in behind_first if type(stage).busy_with is not Stage.busy_with]
        self._shown = [number for number, stage in enumerate(stages) if not stage_of(stage).hidden]
        self.stages = [stage_of(stages[number]).describe() for number in self._shown]
        self._seconds = [0.0] * len(stages)
        self._counted = StageStats()
        self._uncounted_s = self._delayed_s = 0.0

    def begin(self, pipe: IterDataPipe[object]) -> None:
        """Note that an iteration begins, of this pipe."""
        if pipe is not self.pipe:
            self._begin_on(pipe)
        self._iteration += 1
        self._number = 0
        self._run_delay = RunDelay()  # of this thread

    def watch(self, items: Iterator[object]) -> Iterator[Any]:
        """Yield the batches, and note each."""
        self._thread = threading.get_ident()
        while True:
            if not self._uncounted_s:
                self._delayed_s = self._run_delay.seconds()
            begun = time.time()
            begin = self._begun = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                self._begun = None
                self._settle()
                if self._uncounted_s and self.last:
                    self._count(self.last[-1])
                return
            self._begun = None
            self.made(item, begun, time.perf_counter() - begin)
            yield item
            del item

    def made(self, item: object, begun: float, made_s: float) -> None:
        """Note a batch that was begun then, in seconds since 1970."""
        fresh = self._iteration, self._number, begun, made_s, self._keys(item)
        self._uncounted_s += made_s
        # The first batch opens connections, and has its growth for itself.
        if made_s >= _SLOW_S or self._uncounted_s >= _COUNTED_S or not self._number:
            self._settle()
            self._count(self._record(fresh))
        else:
            self._fresh.append(fresh)
            if len(self._fresh) >= _MOST_FRESH:
                self._settle()
        self._number += 1

    def _settle(self) -> None:
        """Make the records of batches that have none yet; in any thread."""
        with suppress(IndexError):  # another one may take them, too
            while True:
                self._record(self._fresh.popleft())

    def _record(self, fresh: _Fresh) -> BatchRecord:
        iteration, number, begun, made_s, keys = fresh
        text = keys if isinstance(keys, str) else "\n".join(map(str, keys))
        digest = xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))
        record = BatchRecord(iteration, number, begun, made_s, digest)
        self.last.append(record)
        self._unsent.append(record)
        return record

    def _count(self, record: BatchRecord) -> None:
        """Add the growth of the counters since the last look to the record."""
        seconds = [meter.seconds for meter in self._meters]
        counted, before = self._counts(), self._counted
        grown = [now - then for now, then in zip(seconds, self._seconds, strict=True)]
        wait_s = counted.wait_s - before.wait_s
        own_s = [
            max(0.0, grown[number] - sum(self._above(grown, number)) - wait_s * (number in self._reading))
            for number in self._shown
        ]
        # Of fast items only some are timed: together they cannot have taken longer than the batch.
        scale = min(1.0, max(0.0, self._uncounted_s - wait_s) / (sum(own_s) or 1.0))
        # On a busy machine everything takes longer: that is reported separately.
        record.delayed_s = min(self._uncounted_s, max(0.0, self._run_delay.seconds() - self._delayed_s))
        runs = 1.0 - record.delayed_s / (self._uncounted_s or 1.0)
        ended = journal().ended
        record.wait_s = runs * wait_s
        record.first_byte_s = counted.first_byte_s - before.first_byte_s
        record.requests = ended - self._ended
        record.bytes = counted.bytes - before.bytes
        record.retries = counted.retries - before.retries
        record.own_s = [runs * scale * seconds for seconds in own_s]
        self._seconds, self._counted, self._ended = seconds, counted, ended
        self._uncounted_s = 0.0

    def take(self) -> Recorded:
        """Return the records since the last call."""
        batches = []
        with self._taking:
            self._settle()
            with suppress(IndexError):  # another thread may be adding to them
                while True:
                    batches.append(self._unsent.popleft())
            requests, self._told = journal().since(self._told)
        return Recorded(os.getpid(), self.stages, batches, requests, journal().under_way(), self._doing())

    def _doing(self) -> Doing | None:
        """Return the activity of the thread that makes batches, if slow."""
        begun = self._begun
        if begun is None or (seconds := time.perf_counter() - begun) < _LONG_S:
            return None
        stage = stage_at_work(self.pipe, sys._current_frames().get(self._thread))
        return (
            Doing(seconds, "") if stage is None else Doing(seconds, stage_of(stage).describe(), _reads(stage))
        )

    def _counts(self) -> StageStats:
        if len(self._readers) == 1:
            return self._readers[0].counts()
        total = StageStats()
        for reader in self._readers:
            total.add(reader.counts())
        return total

    def _keys(self, item: object) -> Iterable[object]:
        keys = item.get("__key__") if isinstance(item, dict) else None
        if keys is not None:
            return keys if isinstance(keys, Iterable) else (keys,)
        for stage in self._placed:
            if place := stage.busy_with():
                return place.values()
        return ()

    def _above(self, grown: list[float], number: int) -> list[float]:
        """Return the time of the nearest measured stages upstream."""
        found: list[float] = []
        for source in self._sources[number]:
            found += [grown[source]] if self._meters[source].begun else self._above(grown, source)
        return found


def _reads(pipe: IterDataPipe[object]) -> bool:
    stage = stage_of(pipe)
    return stage.reads > 0 or stage.planned
