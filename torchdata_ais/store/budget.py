"""One budget of bytes for everything a process fetches ahead."""

from __future__ import annotations

import os
import threading


class _Budget:
    """What all shares hold together. The lock is re-entrant: the garbage collector may close a share."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.used = 0
        self.peak = 0
        self.shares = 0


_budget = _Budget()


def _renew() -> None:
    """Start a forked process with nothing used: its parent's threads do not exist there."""
    global _budget  # noqa: PLW0603 - one budget per process is the point
    _budget = _Budget()


os.register_at_fork(after_in_child=_renew)


class Share:
    """The part of the budget that one open object holds.

    An object that holds nothing may always take a block: nobody waits for ever. Beyond that it may take
    while all together stay within the limit and itself within ``limit / open objects``, so that an object
    opened ahead of its turn cannot starve the one being read.

    Args:
        limit: What the process may hold in all.
    """

    def __init__(self, limit: int) -> None:
        budget = self._budget = _budget
        self._limit = limit
        self._held = 0
        self._closed = False
        with budget.changed:
            budget.shares += 1

    def take(self, size: int) -> bool:
        """Wait until `size` bytes may be held in addition; return False once the share is closed."""
        budget = self._budget
        with budget.changed:
            while not self._closed:
                fair = budget.used + size <= self._limit and self._held + size <= self._limit // budget.shares
                if self._held == 0 or fair:
                    self._held += size
                    budget.used += size
                    budget.peak = max(budget.peak, budget.used)
                    return True
                budget.changed.wait(1.0)
        return False

    def give(self, size: int) -> None:
        """Return `size` bytes."""
        budget = self._budget
        if size <= 0:
            return
        with budget.changed:
            if not self._closed:
                self._held -= size
                budget.used -= size
                budget.changed.notify_all()

    def close(self) -> None:
        """Return everything; a waiting `take` ends."""
        budget = self._budget
        with budget.changed:
            if not self._closed:
                self._closed = True
                budget.used -= self._held
                self._held = 0
                budget.shares -= 1
                budget.changed.notify_all()


def held_now() -> tuple[int, int]:
    """Return how many bytes this process holds fetched ahead, and how many it held at most."""
    return _budget.used, _budget.peak
