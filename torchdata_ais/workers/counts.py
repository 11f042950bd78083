"""What a worker tells of its pipe's counts: now and then, and at the end of an epoch."""

from __future__ import annotations

from time import monotonic
from typing import Any

from torchdata_ais.observe.batches import BatchRecorder
from torchdata_ais.observe.collect import Report, report_of, restart

_FIRST_S = 0.1
_EVERY_S = 1.0


class Counts:
    """Takes reports of a pipe, at most one a second.

    Args:
        pipe: The pipe of this process; its stages begin to count from zero.
        records: Whether to note a record a batch, which goes along.

    Attributes:
        sending_s: Seconds spent on handing items over.
        recorder: Who notes them.
    """

    def __init__(self, pipe: Any, *, records: bool = False) -> None:
        restart(pipe)
        self.recorder = BatchRecorder(pipe) if records else None
        self.sending_s = 0.0
        self._pause_s = _FIRST_S
        self._next = monotonic() + self._pause_s

    def take(self, pipe: Any, *, now: bool = False) -> Report | None:
        """Return the counts of all epochs so far; None if it is not time."""
        time = monotonic()
        if time < self._next and not now:
            return None
        self._pause_s = min(_EVERY_S, 2 * self._pause_s)
        self._next = time + self._pause_s
        report = report_of(pipe)
        report.sending_s, report.in_workers = self.sending_s, True
        if self.recorder is not None:
            report.recorded = self.recorder.take()
        return report


def ended(report: Report) -> Report:
    """Return the last report of a process that is no more: its work counts, its place among the processes does not."""
    for stage in report.stages:
        stage.stats.held = stage.stats.held_max = 0
    report.processes = 0
    return report
