"""Heartbeat of a process, and detection of stalled pipes.

A process that is stopped, swapped out or held in one call of a native library cannot report it: its own watch stops
with it. So a thread of each worker advances a counter in shared memory, and waiting processes check that it moves. A
slow worker's counter moves. Its `Watchdog` reports slow items.

Time is counted in waits that ended without an answer, not read from a clock. A waiting process that was stopped itself
has waited no longer for that.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch

from torchdata_ais._util.process_end import meanwhile
from torchdata_ais.errors import StallError
from torchdata_ais.observe.diagnosis.flight_record import stacks_here
from torchdata_ais.observe.diagnosis.worker_queries import state_of
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe
from torchdata_ais.pipes.base.torch_stages import stage_at_work, stage_of
from torchdata_ais.pipes.base.upstream import upstream

GRACE_S = 2.0
"""Wait after `stall_after` for the worker's own, more detailed report."""

_START_S = 120.0
"""Longest start of a worker until its first heartbeat: Python and torch are imported first."""

_STOPPED_S = 30.0
"""Without `stall_after`: how long a stopped process is waited for."""

_TELL_S = 10.0
"""Silence after which the log names a stopped process."""

_STATES = {
    "T": "it is stopped (SIGSTOP)",
    "t": "it is held by a debugger",
    "D": "it waits for a disk or a network file system",
    "R": "it runs, but lets no other thread of its own run",
    "S": "it sleeps, and lets no other thread of its own run",
}

logger = logging.getLogger("torchdata_ais")


class Heartbeat:
    """A counter in shared memory, made here and advanced in the worker."""

    def __init__(self, stall_after: float) -> None:
        self._count = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._pause_s = min(1.0, stall_after / 4)

    @property
    def beats(self) -> int:
        """Number of heartbeats; 0 before the process is up."""
        return int(self._count[0])

    def begin(self) -> None:
        """Beat from now on, in a thread."""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._count += 1
            time.sleep(self._pause_s)


@dataclass(eq=False)
class Patience:
    """Time that this process has waited in vain for another one.

    Attributes:
        name: How errors name that process.
        worker: Its number; None for other processes.
        stall_after: How long, in seconds, an item may take there. None: only a stopped process is an error.
        pulse: Its pulse, with `stall_after`.
        silent_s: Seconds since its last heartbeat.
    """

    name: str
    worker: int | None
    pid: int | None
    stall_after: float | None
    pulse: Heartbeat | None
    silent_s: float = field(default=0.0, init=False)
    _beats: int = field(default=0, init=False)
    _told: bool = field(default=False, init=False)

    def waited(self, seconds: float) -> None:
        """Note that nothing has come for `seconds` more; raise if it does not run."""
        state = state_of(self.pid)
        if self._shows_life(state):
            self.silent_s, self._told = 0.0, False
            return
        self.silent_s += seconds
        if state == "T" and self.silent_s >= _TELL_S and not self._told:
            self._told = True
            logger.warning("%s (pid %s) is stopped, and is waited for", self.name, self.pid)
        if self.silent_s >= self._limit(state):
            raise self._error(state)

    def refuse_stopped(self) -> None:
        """Raise `StallError` if the process is stopped, however short the wait."""
        if (state := state_of(self.pid)) == "T":
            raise self._error(state)

    def _shows_life(self, state: str | None) -> bool:
        if self.pulse is None:
            return state != "T"
        beats, self._beats = self._beats, self.pulse.beats
        return beats != self._beats

    def _limit(self, state: str | None) -> float:
        if self.stall_after is None:
            return _STOPPED_S
        limit = self.stall_after + GRACE_S
        return limit if self._beats or state == "T" else max(limit, _START_S)

    def _error(self, state: str | None) -> StallError:
        how = f": {_STATES[state]}" if state in _STATES else ""
        todo = (
            f"`kill -CONT {self.pid}` lets it go on; look for who stopped it: a debugger, a paused container"
            if state in ("T", "t")
            else f"`py-spy dump --pid {self.pid}` shows its stack; or raise stall_after="
        )
        return StallError.at(
            f"{self.name} (pid {self.pid}) gave no sign of life for {self.silent_s:g} s{how}",
            todo=todo,
            worker=self.worker,
            pid=self.pid,
            state=state,
        )


_END: object = object()


@dataclass(eq=False)
class Watchdog:
    """Detects an item, or a ``with`` block, that takes too long.

    Attributes:
        seconds: How long that may take; None watches nothing.
        process: How errors name this process.
        worker: Its number.
        fail: Called with the error, in another thread; None where nothing can end the wait: it is only logged.
        pipe: The pipe that is iterated: errors contain the current stage.
    """

    seconds: float | None
    process: str
    worker: int | None
    fail: Callable[[StallError], None] | None
    pipe: IterDataPipe[object] | None = None
    _begun: int = field(default=0, init=False)
    _ended: int = field(default=0, init=False)

    def watch(self, items: Iterator[object]) -> Iterator[Any]:
        """Return the items, with the time watched that each of them takes."""
        return self._each(items) if self.seconds else items

    def _each(self, items: Iterator[object]) -> Iterator[object]:
        while True:
            with self:
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def __enter__(self) -> None:
        """Watch the time that the block takes."""
        self._begun += 1

    def __exit__(self, *exc_info: object) -> None:
        self._ended = self._begun

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch this thread within the block."""
        if not self.seconds:
            yield
            return
        look_round = partial(self._look_round, threading.get_ident(), self.seconds)
        with meanwhile(look_round, "stall-watch", 0.0):
            yield

    def _look_round(self, thread: int, seconds: float, over: threading.Event) -> None:
        pause_s = min(1.0, seconds / 4)
        watched, told = 0, 0
        busy_s = 0.0
        # Counted, not read from a clock: while this process was stopped, it was not busy.
        while not over.wait(pause_s):
            begun = self._begun
            if begun != watched or begun == self._ended:
                watched, busy_s = begun, 0.0
                continue
            busy_s += pause_s
            if begun == told or busy_s < seconds:
                continue
            told = begun
            frame = sys._current_frames().get(thread)
            error = self._error(frame)
            del frame
            logger.error("%s\n%s", error, stacks_here())
            if self.fail is not None:
                self.fail(error)

    def _error(self, frame: FrameType | None) -> StallError:
        stage, place = where(self.pipe, frame)
        return StallError.at(
            f"{self.process} made no item for {self.seconds:g} s; it is in {stage}",
            todo="the log of that process has the stacks of its threads; look at that object and that function, or "
            "raise stall_after=",
            worker=self.worker,
            **place,
        )


def where(pipe: IterDataPipe[object] | None, frame: FrameType | None) -> tuple[str, dict[str, Any]]:
    """Return the stage of a thread, and the object or sample in progress."""
    stage = None if pipe is None else stage_at_work(pipe, frame)
    if stage is None:
        return "no stage of the pipe", {}
    places = (stage_of(part).busy_with() for part in upstream(stage))
    # The object of a foreign stage is the last output of the nearest stage of ours.
    return stage_of(stage).describe(), next(filter(None, places), {})
