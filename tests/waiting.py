"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    condition: Callable[[], object], seconds: float = 20, what: str = "it did not happen in time"
) -> None:
    """Return when a condition holds; it is an error if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)
