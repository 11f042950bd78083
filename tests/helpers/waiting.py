"""Waiting for what other threads and processes do; whether a process lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(
    condition: Callable[[], object], seconds: float = 60, what: str = "it did not happen in time"
) -> None:
    """Return when a condition holds; it is an error if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def is_living(pid: int) -> bool:
    """Return whether a process is there and no zombie. Needs /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:  # it is gone, or goes while it is looked at
        return False
