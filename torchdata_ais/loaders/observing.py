"""Observation of a loader: trace, report over ranks, flight record."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType

import msgspec

from torchdata_ais._util.arguments import check_number
from torchdata_ais._util.world import World
from torchdata_ais.errors import UsageError
from torchdata_ais.errors.redaction import clean
from torchdata_ais.observe.diagnosis.chrome_trace import write_trace
from torchdata_ais.observe.diagnosis.flight_record import Flight, ProcessPart, part_of
from torchdata_ais.observe.diagnosis.rank_summary import gather
from torchdata_ais.observe.diagnosis.rank_table import Readiness, readiness_of
from torchdata_ais.observe.diagnosis.readiness import RankRecorder
from torchdata_ais.observe.diagnosis.run_folder import RunFolder, read_run

KEPT = 4096
"""Batches kept with ``trace=True``."""

STALL_S = 60.0
"""A batch that is waited for so long is put on record."""

_RECORDED_STEPS = 256

logger = logging.getLogger("torchdata_ais")


class Observing:
    """The records of one loader.

    `doing` returns the activity of the worker processes.
    """

    def __init__(
        self,
        kept: int,
        run_dir: str | os.PathLike[str] | None,
        doing: Callable[[], list[ProcessPart]],
    ) -> None:
        check_number(kept, 1, "trace")
        self.recorder = RankRecorder(kept)
        self._folder = None if run_dir is None else RunFolder(run_dir)
        self._doing = doing
        self._record_requested = False
        self._stalled_at = -1
        self._listens = False
        self._flights = 0
        if self._folder is not None:
            self.recorder.on_look = self._look

    def begin(self, world: World, epoch: int) -> None:
        """Record the position of the run when an epoch starts."""
        summary = self.recorder.summary
        summary.rank, summary.ranks = world.members
        summary.epoch, summary.ended = epoch, ""
        if self._folder is not None and not self._listens:
            self._listens = True
            _listen(self)

    def request_record(self) -> None:
        """Note a request for a record, which the observing thread makes."""
        self._record_requested = True

    def _look(self) -> None:
        """Do all due work; called some times a second while an epoch runs."""
        assert self._folder is not None
        if self._record_requested:
            self._record_requested = False
            self.record(f"it was requested by {signal.Signals(_SIGNAL).name}")
        if self._folder.is_due():
            summary = self.recorder.told()
            self._folder.tell(summary)
            if summary.waiting_s > STALL_S and self._stalled_at != summary.step:
                self._stalled_at = summary.step
                self.record(f"no batch came for {summary.waiting_s:.0f} s")

    def end(self, ended: str) -> None:
        """Note that an epoch, or the run, has ended."""
        self.recorder.summary.ended = ended
        if self._folder is not None:
            self._folder.tell(self.recorder.told())

    def failed(self, error: BaseException) -> None:
        """Record the activity of all processes when `error` came."""
        text = clean(f"{type(error).__name__}: {error}").encode(errors="backslashreplace").decode()
        self.record(text)
        self.end(f"failed: {text.partition(chr(10))[0]}")

    def record(self, why: str) -> None:
        """Write the activity of every process to one file of the folder, if any."""
        if self._folder is None:
            return
        summary = self.recorder.told()
        taken = list(self.recorder.taken)[-_RECORDED_STEPS:]
        parts = [part_of("main process"), *self._doing()]
        flight = Flight(1, why, time.time(), summary, taken, parts)
        self._flights += 1
        name = f"flight-{summary.rank:05d}-{summary.pid}-{self._flights}.json"
        path = self._folder.write(name, msgspec.json.encode(flight))
        if path is not None:
            logger.error(
                "the activity of all processes was written to %s: torchdata-ais doctor explains it", path
            )

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the records as a Chrome trace."""
        write_trace(self.recorder, path)

    def report(self, group: object, timeout_s: float) -> Readiness:
        """Return how ready the data were on ranks of group or folder, or this one."""
        summary = self.recorder.told()
        if group is not None:
            return readiness_of(gather(summary, group, timeout_s))
        if self._folder is None:
            return readiness_of([msgspec.structs.replace(summary, rank=0, ranks=1)])
        with contextlib.suppress(UsageError):
            others, notes = read_run(self._folder.path)
            return readiness_of([summary, *(one for one in others if one.rank != summary.rank)], notes)
        return readiness_of([summary])

    def close(self) -> None:
        """Release the signal handler, and report the end of the run."""
        if self._listens:
            self._listens = False
            _stop_listening(self)
            if not self.recorder.summary.ended.startswith("failed"):
                self.end("closed")


_SIGNAL = signal.SIGUSR2

_listening: weakref.WeakSet[Observing] = weakref.WeakSet()
"""Loaders that the signal is for, held weakly; several may run at the same time."""


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    for observing in list(_listening):
        observing.request_record()


def _listen(observing: Observing) -> None:
    """Have `observing` hear of SIGUSR2, unless the program has a handler.

    None is set in other threads than the main one.
    """
    _listening.add(observing)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) == signal.SIG_DFL:
        signal.signal(_SIGNAL, _on_signal)


def _stop_listening(observing: Observing) -> None:
    """Release the signal handler, with the last loader that uses it."""
    _listening.discard(observing)
    is_ours = signal.getsignal(_SIGNAL) is _on_signal
    if not _listening and is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(_SIGNAL, signal.SIG_DFL)
