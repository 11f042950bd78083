"""What a worker tells of its pipe's counts: now and then, and at the end of an epoch."""

from __future__ import annotations

from time import monotonic
from typing import Any

from torchdata_ais.observe.collect import report_of, restart

__all__ = ["Counts", "ended"]

_FIRST_S = 0.1
_EVERY_S = 1.0


class Counts:
    """Takes reports of a pipe, at most one a second.

    Args:
        pipe: The pipe of this process; its stages begin to count from zero.

    Attributes:
        sending_s: Seconds spent on handing items over.
    """

    def __init__(self, pipe: Any) -> None:
        restart(pipe)
        self.sending_s = 0.0
        self._pause_s = _FIRST_S
        self._next = monotonic() + self._pause_s

    def take(self, pipe: Any, *, now: bool = False) -> dict[str, Any] | None:
        """Return the counts of all epochs so far; None if it is not time."""
        time = monotonic()
        if time < self._next and not now:
            return None
        self._pause_s = min(_EVERY_S, 2 * self._pause_s)
        self._next = time + self._pause_s
        return {**report_of(pipe), "sending_s": self.sending_s, "in_workers": True}


def ended(report: dict[str, Any]) -> dict[str, Any]:
    """Return the last report of a process that is no more: its work counts, its place among the processes does not."""
    stages = [{**stage, "held": 0, "held_max": 0} if "held" in stage else stage for stage in report["stages"]]
    return {**report, "stages": stages, "processes": 0}
