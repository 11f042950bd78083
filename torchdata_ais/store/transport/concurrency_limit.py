"""Adaptive limit of concurrent requests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from torchdata_ais.errors import StallError
from torchdata_ais.store.transport.attempts import Cancelled, Failed
from torchdata_ais.store.transport.cancel import Cancel

_BUSY = (429, 503)
_FIRST, _MOST = 4, 32
_PAUSE_S = 5.0  # without batches after the first wrong answer, twice as long after each further one
_LONGEST_S = 600.0
_LOOK_S = 0.2  # interval at which waiting threads check for cancellation


class ConcurrencyLimit:
    """Limiter that lets as many requests run as the cluster accepts.

    The number grows by one for each round of answers (as many as there are requests in flight), and is halved when
    the cluster answers 429 or 503: once for all the requests that were under way then. No request begins before the
    time of the longest ``Retry-After`` is over. More than `most` never run.

    Attributes:
        limit: How many may run now; the fraction grows towards the next one.
        running: How many run now.
        batches: Whether one request may contain many ranges (`read_batch`). Set it to False for a cluster that
            cannot.
        wrong: How often a batch was answered wrongly.
        inline: Whether the consumer of the last reader by index fetched itself: the next one begins with that.

    Example:
        >>> pace = ConcurrencyLimit(first=1)
        >>> with pace.turn():
        ...     pace.running
        1
        >>> pace.limit, pace.running
        (2.0, 0)
    """

    def __init__(
        self,
        *,
        first: int = _FIRST,
        most: int = _MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._clock = clock
        self.limit = float(first)
        self.batches = True
        self.inline = False
        self.forget()

    @property
    def batches(self) -> bool:
        """Return whether one request may contain many ranges."""
        return self._clock() >= self._batches_from

    @batches.setter
    def batches(self, may: bool) -> None:
        self._batches_from = float("-inf" if may else "inf")
        self.wrong = 0

    def pause_batches(self) -> float:
        """Note a wrong answer to a batch: none is requested for a while.

        Return the seconds, or 0 if it is so already.

        A busy cluster sends whole objects in place of ranges now and then, and answers rightly later.
        """
        if self.batches:  # those under way at the time count once
            pause = min(_LONGEST_S, _PAUSE_S * 2.0 ** min(self.wrong, 30))
            self.wrong += 1
            self._batches_from = self._clock() + pause
            return pause
        return 0.0

    def forget(self) -> None:
        """Reset the counts in a forked process: they are the parent's requests."""
        self._changed = threading.Condition()
        self.running = 0
        self._slowed_at = float("-inf")
        self._not_before = float("-inf")

    @contextmanager
    def turn(self, cancel: Cancel | None = None, timeout: float = inf) -> Iterator[None]:
        """Wait until one more request may run, and count it as running meanwhile.

        `Failed` after `timeout` seconds, `Cancelled` if `cancel` was called.
        """
        begun = self._begin(cancel, timeout)
        busy: Failed | None = None
        answered = False
        try:
            yield
            answered = True
        except Failed as failed:
            busy = failed if failed.status in _BUSY else None
            raise
        finally:
            self._end(begun, answered, busy)

    def _begin(self, cancel: Cancel | None, timeout: float) -> float:
        """Wait for a turn and take it; return when that was."""
        due = self._clock() + timeout
        with self._changed:
            while True:
                now = self._clock()
                if cancel is not None and cancel.cancelled:
                    raise Cancelled
                # A timeout on the wait below: `cancel` and `_not_before` do not notify.
                if self.running < int(self.limit) and now >= self._not_before:
                    self.running += 1
                    return now
                if now >= due:
                    what = f"no request could be sent for {timeout:g} s, so busy is the cluster"
                    raise Failed(
                        StallError, what, "look at its load, or read with fewer processes", again=False
                    )
                self._changed.wait(_LOOK_S)

    def _end(self, begun: float, answered: bool, busy: Failed | None) -> None:
        with self._changed:
            self.running -= 1
            if answered:
                # Additive increase: one more request after about as many answers as may run.
                self.limit = min(float(self._most), self.limit + 1.0 / int(self.limit))
            elif busy is not None:
                now = self._clock()
                if busy.after_s is not None:
                    self._not_before = max(self._not_before, now + busy.after_s)
                # Only requests started after the last decrease halve the limit: refusals of one burst count once.
                if begun >= self._slowed_at:
                    self._slowed_at = now
                    self.limit = max(1.0, self.limit / 2)
            self._changed.notify_all()


_paces: dict[tuple[str, int, bool], ConcurrencyLimit] = {}


def concurrency_limit_of(
    endpoint: str, node_requests: int = _MOST, *, opening: bool = False
) -> ConcurrencyLimit:
    """Return the limit that this process's requests to a host share.

    `opening` is for streams, whose bodies take as long as their reader: only their start counts. No limit has to be
    found, so the maximum starts at once, until the cluster refuses some.
    """
    most = min(_MOST, node_requests)
    pace = _paces.get((endpoint, most, opening))
    if pace is None:
        made = ConcurrencyLimit(first=most if opening else min(_FIRST, most), most=most)
        pace = _paces.setdefault((endpoint, most, opening), made)  # another thread may have been faster
    return pace


def _forget() -> None:
    """Start a forked process with nothing in flight."""
    for pace in _paces.values():
        pace.forget()


os.register_at_fork(after_in_child=_forget)
