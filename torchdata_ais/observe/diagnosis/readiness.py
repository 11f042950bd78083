"""Wait time of a training loop."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec
import torch
from torch.profiler import record_function

from torchdata_ais._util.process_end import meanwhile
from torchdata_ais.observe.diagnosis.batch_records import BatchRecord, Recorded, Taken
from torchdata_ais.observe.diagnosis.rank_summary import RankSummary, note_requests
from torchdata_ais.store import RequestRecord

_LOOK_S = 0.05
"""Interval of samples of the loop's position and of looks for records."""

_REQUESTS_A_BATCH = 4

_MOST_FRESH = 128
"""Number of batches counted at once: counting touches code that has left the processor's cache."""

_LATE_S = 1.0
"""Waiting time after which a request is reported before it ends."""

_OURS = str(Path(__file__).resolve().parents[2])
_END: Any = object()
_NO_SPAN = contextlib.nullcontext()


class RecordsSource(Protocol):
    """Source of the workers' records.

    Attributes:
        on_started: Called when an iteration has started its processes, before the first batch.
    """

    on_started: Callable[[], object] | None

    def records(self) -> list[tuple[int, Recorded]]:
        """Return the records since the last call, by worker."""


class RankRecorder:
    """The records of one rank, in rings of fixed size.

    Memory: some 400 bytes a batch that is kept, and four requests of 300 bytes.

    Attributes:
        summary: The summary for other ranks.
        taken: The batches that came to the loop, the last `kept`.
        made, requests: By worker, how they were made, and the requests that ended.
        stages: Names of the stages, as `BatchRecord.own_s` has them.
    """

    def __init__(self, kept: int) -> None:
        self.summary = RankSummary(0, 1, socket.gethostname(), os.getpid())
        self.taken: deque[Taken] = deque(maxlen=kept)
        self.made: deque[tuple[int, BatchRecord]] = deque(maxlen=kept)
        self.requests: deque[tuple[int, RequestRecord]] = deque(maxlen=_REQUESTS_A_BATCH * kept)
        self.stages: list[str] = []
        self.on_look: Callable[[], None] | None = None
        self._lock, self._settling = threading.Lock(), threading.Lock()
        self._came: deque[tuple[Taken | None, float]] = deque()
        self._source: RecordsSource | None = None
        self._iteration = 0
        self._connected: set[int] = set()
        self._under_way: dict[int, list[RequestRecord]] = {}
        self._loop_begun: float | None = None
        self._asked: float | None = None

    def watch(self, steps: Iterator[Any], source: RecordsSource) -> Iterator[Any]:
        """Yield an engine's steps ``(batch, worker, ...)``; record each wait."""
        if source is not self._source:
            self._source, self._iteration = source, 0
        self._iteration += 1
        numbers: dict[int, int] = {}
        with contextlib.ExitStack() as looking:
            work = partial(self._look_round, threading.get_ident())
            # Not before: no thread of ours is to run while processes are forked.
            source.on_started = lambda: looking.enter_context(meanwhile(work, "torchdata_ais.trace", 1.0))
            try:
                while True:
                    begin = self._asked = time.perf_counter()
                    # Only when it runs: an unrecorded span has been seen to take half a millisecond.
                    profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
                    with record_function("torchdata_ais.next_batch") if profiled else _NO_SPAN:
                        step = next(steps, _END)
                    now = time.perf_counter()
                    self._asked = None
                    if step is _END:
                        return
                    worker = step[1]
                    number = numbers.get(worker, 0)
                    numbers[worker] = number + 1
                    taken = Taken(
                        self.summary.step, worker, self._iteration, number, time.time(), now - begin
                    )
                    self.summary.step += 1
                    self._loop_begun = now
                    self._came.append((taken, 0.0))
                    yield step
                    self._loop_begun = None
                    if number:
                        self._came.append((None, time.perf_counter() - now))
                    if len(self._came) >= _MOST_FRESH:
                        self._settle()
            finally:
                self._asked = self._loop_begun = source.on_started = None
                self.collect()

    def _settle(self) -> None:
        """Count the received records, in any thread."""
        summary = self.summary
        with self._settling, contextlib.suppress(IndexError):
            while True:
                taken, loop_s = self._came.popleft()
                if taken is None:
                    summary.loop.add(loop_s)
                    continue
                self.taken.append(taken)
                if taken.number:
                    summary.wait.add(taken.waited_s)
                    summary.worker(taken.worker).kept_waiting_s += taken.waited_s

    def collect(self) -> None:
        """Take the workers' records."""
        # At the end of the program the thread that looked round is no more, and may have left the lock held; so in a
        # forked child.
        if self._source is None or sys.is_finalizing() or os.getpid() != self.summary.pid:
            return
        self._settle()
        with self._lock:
            for one in self.summary.workers:
                one.doing = one.request = None
            for worker, recorded in self._source.records():
                self._take(worker, recorded)

    def _take(self, worker: int, recorded: Recorded) -> None:
        self.stages = recorded.stages
        told = self.summary.worker(worker)
        told.pid = recorded.pid
        for batch in recorded.batches:
            self.made.append((worker, batch))
            if not batch.number:
                continue
            told.batches += 1
            told.made_s += batch.made_s
            told.network_s += batch.wait_s
            told.delayed_s += batch.delayed_s
            for name, own_s in zip(recorded.stages, batch.own_s, strict=False):
                told.own_s[name] = told.own_s.get(name, 0.0) + own_s
        self._under_way[worker] = recorded.under_way
        told.doing = recorded.doing
        told.request = min(
            recorded.under_way, key=lambda one: (one.first_byte_s is not None, one.begun), default=None
        )
        self.requests.extend((worker, request) for request in recorded.requests)
        first = min(recorded.requests, key=lambda request: request.begun, default=None)
        if first is not None and recorded.pid not in self._connected:
            # The first request of a process opens connections: its time is not representative.
            self._connected.add(recorded.pid)
        else:
            first = None
        note_requests(
            self.summary, worker, (request for request in recorded.requests if request is not first)
        )

    def told(self) -> RankSummary:
        """Return the summary as it is now."""
        self.collect()
        asked = self._asked
        self.summary.waiting_s = 0.0 if asked is None else time.perf_counter() - asked
        self.summary.told = time.time()
        summary = self.summary
        late = [
            (worker, request)
            for worker, requests in self._under_way.items()
            for request in requests
            if (request.first_byte_s or request.took_s or 0.0) + request.read_s > _LATE_S
        ]
        if late:  # reported now, and counted when they end
            summary = msgspec.msgpack.decode(msgspec.msgpack.encode(summary), type=RankSummary)
            for worker, request in late:
                note_requests(summary, worker, [request])
        return summary.told_briefly()

    def _look_round(self, thread: int, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            if self._loop_begun is not None:
                place = _line(sys._current_frames().get(thread))
                if place and self._loop_begun is not None:
                    self.summary.stood_at(place)
            if self.on_look is not None:
                self.on_look()


def _line(frame: FrameType | None) -> str:
    """Return the innermost line of the user's program of a thread."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith((_OURS, "<")) or f"{os.sep}lib{os.sep}python" in name):
            return f"{Path(name).name}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return ""
