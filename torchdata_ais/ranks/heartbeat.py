"""Heartbeat between ranks, and ranks of one machine.

Each rank checks the next one, and only while it waits itself: no rank is polled by all.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from torchdata_ais._util.process_end import meanwhile
from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.start_heartbeat import interval_of
from torchdata_ais.store import PackedURLs


def this_machine() -> str:
    """Return an id shared by processes that see each other's pids, or ""."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return when a process began; nothing if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def share_on_machine(lists: Iterable[PackedURLs], ranks: Ranks) -> None:
    """Share the lists of the first rank of a machine with its other ranks.

    They are the same on all ranks, in the same order. No rank waits for it: a rank whose source is gone, or denies
    access, keeps its own lists.
    """
    here = this_machine()
    for number, urls in enumerate(lists):
        if here and urls.place is not None:
            place, first = ranks.first_to_tell(f"names/{here}/{number}", urls.place)
            if first != ranks.rank:
                urls.take_memory(place)


_SILENT_S = 10.0
"""Shortest silence of a rank that is logged; at least three of its pauses."""

_GONE_S = 300.0
"""One that is silent for so long is not waited for any more."""

_LATE_S = 60.0
"""One that is waited for so long is named in the log."""

logger = logging.getLogger("torchdata_ais")


class Beat(msgspec.Struct, array_like=True):
    """A heartbeat message.

    Attributes:
        count: Number of earlier ones; 0: the rank starts and has sent none yet.
        step: How many steps it has requested.
        machine: The same for processes that see each other's numbers; empty if unknown.
        started: When the process began, as its system counts: a later one of the same number has another.
    """

    count: int
    step: int
    pid: int
    host: str
    machine: str
    started: str

    @classmethod
    def now(cls, count: int, step: int) -> Beat:
        """Return that of this process."""
        pid = os.getpid()
        return cls(count, step, pid, socket.gethostname(), this_machine(), start_time(pid))

    def is_dead(self) -> bool:
        """Return whether its process has ended, as far as can be seen from here."""
        return bool(self.machine) and self.machine == this_machine() and self.started != start_time(self.pid)


_beat = msgspec.json.Decoder(Beat)


class LifeSigns:
    """Heartbeats of this rank and of the next one, under the key `name`."""

    def __init__(self, ranks: Ranks, name: str) -> None:
        self._ranks = ranks
        self._name = name
        self._timeout_s = ranks.timeout_s
        self._next = (ranks.rank + 1) % ranks.world_size
        self._usual_s = max(_SILENT_S, 3 * interval_of(self._next, ranks.world_size))
        self._beat: Beat | None = None
        self._since = 0.0
        self._is_said = False

    def tell(self, count: int, step: int) -> None:
        """Send a heartbeat."""
        self._ranks.tell(self._key(self._ranks.rank), msgspec.json.encode(Beat.now(count, step)))

    def beating(self, step: Callable[[], int]) -> AbstractContextManager[None]:
        """Send a heartbeat with the `step` every 1 to 10 s in this context."""
        pause_s = interval_of(self._ranks.rank, self._ranks.world_size)

        def beat(over: threading.Event) -> None:
            count = 0
            while not over.wait(pause_s if count else 0.0):
                count += 1
                try:
                    self.tell(count, step())
                except LoaderError:  # the waiting thread gets the same error and reports it
                    return

        return meanwhile(beat, "rank-alive", 1.0)

    def look_after_next(self, step: int, waited_s: float) -> None:
        """Check that the next rank lives, and has come to `step`; else raise."""
        told = self._ranks.told(self._key(self._next))
        if told is None:
            return
        beat, now = _beat.decode(told), time.monotonic()
        where = f"rank {self._next} (pid {beat.pid} on {beat.host})"
        if beat != self._beat:
            if self._is_said and self._beat is not None and beat.count != self._beat.count:
                logger.warning("%s gives signs of life again", where)
            self._beat, self._since, self._is_said = beat, now, self._is_said and waited_s > _LATE_S
        silent_s = now - self._since
        patience_s = self._timeout_s if beat.count == 0 else max(self._usual_s, min(_GONE_S, self._timeout_s))
        if beat.is_dead() or silent_s > patience_s:
            what = "has ended" if beat.is_dead() else f"has given no sign of life for {silent_s:.0f} s"
            raise LoaderError.at(
                f"{where} {what} while the others waited for its next step: it was killed, or is stopped",
                todo="look at the output of that rank, and for the kernel's OOM killer",
                failed_rank=self._next,
                rank=self._ranks.rank,
            )
        if self._is_said:
            return
        if beat.count and silent_s > self._usual_s:
            self._is_said = True
            text = "%s has given no sign of life for %.0f s: it was killed, or is stopped. It is waited for"
            logger.warning(text, where, silent_s)
        elif waited_s > _LATE_S and beat.step < step:
            self._is_said = True
            logger.warning(
                "%s has not come to step %d; the others wait for it for %.0f s", where, step, waited_s
            )

    def _key(self, rank: int) -> str:
        return f"{self._name}/alive/{rank}"
