"""Whether a process still runs, seen from the one that waits for it.

A process that is stopped, swapped out or held in one call of a native library cannot say so: its own watch stands still
with it. So each worker advances a counter in shared memory from a thread of its own, and whoever waits looks whether
it moves. A slow worker's counter moves; what takes too long there is for its `Watchdog` to say.

Time is counted in waits that ended without an answer, not read from a clock: a waiting process that was stopped itself
has waited no longer for that.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torchdata_ais.errors import StallError

GRACE_S = 2.0
"""How much longer than `stall_after` to wait: a worker that can say what is wrong says more."""

_START_S = 120.0
"""How long a process may take to begin its pulse: Python and torch are imported first."""

_STOPPED_S = 30.0
"""Without `stall_after`: how long a stopped process is waited for."""

_TELL_S = 10.0
"""When a stopped process is named in the log."""

_STATES = {
    "T": "it is stopped (SIGSTOP)",
    "t": "it is held by a debugger",
    "D": "it waits for a disk or a network file system",
    "R": "it runs, but lets no other thread of its own run",
    "S": "it sleeps, and lets no other thread of its own run",
}

logger = logging.getLogger("torchdata_ais")


class Pulse:
    """A counter in shared memory: made in the main process, advanced in the worker.

    Args:
        stall_after: What it is to help to notice, in seconds.
    """

    def __init__(self, stall_after: float) -> None:
        self._count = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._pause_s = min(1.0, stall_after / 4)

    @property
    def beats(self) -> int:
        """How often it has beaten; 0 before the process is up."""
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
    """How long this process has waited in vain for another one.

    Attributes:
        name: How errors name that process.
        worker: Its number; None if it is no worker.
        pid: Its process id.
        stall_after: How long, in seconds, an item may take there. None: only a stopped process is an error.
        pulse: Its pulse, with `stall_after`.
        silent_s: How long it has shown no sign of life.
    """

    name: str
    worker: int | None
    pid: int | None
    stall_after: float | None
    pulse: Pulse | None
    silent_s: float = field(default=0.0, init=False)
    _beats: int = field(default=0, init=False)
    _told: bool = field(default=False, init=False)

    def waited(self, seconds: float) -> None:
        """Note that nothing has come for `seconds` more.

        Raises:
            StallError: The process does not run; names it, its pid and its state.
        """
        state = _state_of(self.pid)
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
        """Raise `StallError` if the process is stopped, however short the wait was."""
        if (state := _state_of(self.pid)) == "T":
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
            else f"`py-spy dump --pid {self.pid}` shows where it stands; or raise stall_after="
        )
        return StallError.at(
            f"{self.name} (pid {self.pid}) gave no sign of life for {self.silent_s:g} s{how}",
            todo=todo,
            worker=self.worker,
            pid=self.pid,
            state=state,
        )


def _state_of(pid: int | None) -> str | None:
    """Return the letter for the state of a process that `ps` shows, or None where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
