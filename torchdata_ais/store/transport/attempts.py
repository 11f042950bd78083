"""Retry policy."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from torchdata_ais._util.process_end import meanwhile
from torchdata_ais.errors import ConnectError, ReadError, StallError, TransportError
from torchdata_ais.errors.redaction import clean, quiet, redact
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.options import Retry
from torchdata_ais.store.transport.request_log import RequestRecord

_T = TypeVar("_T")
_log = logging.getLogger("torchdata_ais")
_MIB = 1 << 20
_SLACK_S = 2.0
_WATCH_S = 1.0
_SILENT_S = 1.9
_QUIET_S = 60.0
_MOST_SAID = 1000
_NODE = "look at the node that holds the object"
PARTS_LOST = (
    "remove the object and store it again: the cluster has no more of it than this. AIStore's shard index job leaves "
    "only the first part of an object that was uploaded in parts"
)

_said: dict[str, float] = {}  # time of the last log line by warning


def _first_of(what: str) -> bool:
    """Return whether `what` was not logged in the last minute.

    It avoids repeats while many shards are read from a node that is gone.
    """
    now, before = time.monotonic(), _said.get(what, -_QUIET_S)
    if len(_said) > _MOST_SAID:
        _said.clear()
    _said[what] = now if now - before >= _QUIET_S else before
    return now - before >= _QUIET_S


class Cancelled(Exception):  # noqa: N818 - not an error: the reader was closed
    """The object was closed while a request was under way."""


@dataclass(eq=False)
class Failed(Exception):  # noqa: N818 - one try failed; the error is raised when no other follows
    """One try of a request failed.

    Attributes:
        kind: The error to raise if no other try follows.
        again: Whether another try can help.
        after_s: Seconds to wait, as the server requested.
        status: The HTTP status of the answer, if it was an error.
        says_byte: Whether `what` names the byte reached.
    """

    kind: type[TransportError]
    what: str
    todo: str = ""
    again: bool = True
    after_s: float | None = None
    status: int | None = None
    says_byte: bool = False

    def __post_init__(self) -> None:
        self.what = clean(self.what)
        super().__init__(self.what)


class Attempts:
    """Counter of the tries of one object; detects the last one.

    Attributes:
        total: Tries started so far.
        retries: Pauses made so far.
        answered_by: The address that the last response came from, after redirects.
        token_kept_from: The host, not the cluster's, that the last request went to without the token that there is.
        record: The record of the request under way.
    """

    def __init__(self, retry: Retry, cancel: Cancel, name: str, url: str, host: str = "") -> None:
        self._retry = retry
        self._cancel = cancel
        self._name = name
        self._url = url
        self._host = host
        self._begun = inf
        self._failures = 0
        self._calls = 0
        self._bytes = 0
        self._waited_s = 0.0
        self._due = inf
        self._breaks: tuple[int, int] = (-1, 0)
        self.total = 0
        self.retries = 0
        self.answered_by = ""
        self.token_kept_from = ""
        self.record = RequestRecord("", "", 0.0)

    def progress(self, size: int) -> None:
        """Note `size` new bytes: earlier failures do not count any more."""
        self._bytes += size
        self._failures = 0

    def run(self, call: Callable[[Attempts], _T]) -> _T:
        """Return ``call(self)``, called again each time it raises `Failed`.

        Each call counts its own tries. All calls share one deadline.
        """
        self.total = self._failures = 0
        self._calls += 1
        if self.left_s() <= 0:
            raise self._too_late()
        while True:
            self.total += 1
            self._begun = time.monotonic()
            try:
                with self.waiting():
                    return call(self)
            except Failed as caught:
                failed = caught
            finally:
                self._begun = inf
                self.expect()
            self.failed(failed)  # outside of `except`: its only context is the cause that it names

    def _too_late(self) -> TransportError:
        what = f"the deadline of {self._retry.deadline:g} s for the whole has passed"
        return self._error(self.too_late(what, "ask for less at once"), "", None)

    def too_late(self, what: str, otherwise: str = "look for what slows the network") -> Failed:
        """Return the failure of an exceeded deadline, which `what` describes."""
        todo = Remedy(in_programs("raise Retry(deadline=)"), otherwise)
        return Failed(StallError, what, todo, again=False, says_byte=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside towards the deadline."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._waited_s += time.monotonic() - begin

    def broke_off(self, what: str, byte: int) -> Failed:
        """Return the failure of a body that ended too early.

        The advice changes when it ends at the same byte again.
        """
        last, times = self._breaks
        self._breaks = byte, times + 1 if byte == last else 1
        again = self._breaks[1] > 1
        todo = Remedy(_NODE, f"if it always ends at this byte, {PARTS_LOST}") if again else _NODE
        return Failed(ReadError, what, todo)

    def waited(self, seconds: float) -> None:
        """Count `seconds` towards the deadline: fast, for the loop over blocks."""
        self._waited_s += seconds

    def left_s(self) -> float:
        """Return the seconds left of the deadline, endless without one."""
        deadline = inf if self._retry.deadline is None else self._retry.deadline
        return deadline + self._bytes / _MIB - self._waited_s

    def bound(self, timeout: float | None) -> float | None:
        """Return the less of `timeout` and the rest of the deadline, or a moment."""
        bound = min(max(self.left_s(), 0.05), inf if timeout is None else timeout)
        return None if bound == inf else bound

    def expect(self, *timeouts: float | None) -> None:
        """Bound the current step by the sum of `timeouts`; without any, end it.

        The timeouts of a socket count from byte to byte. This is for servers that send a byte now and then.
        """
        if timeouts:
            self._cancel.was_interrupted()  # of a step before this one
            seconds = sum(inf if timeout is None else timeout for timeout in timeouts)
            self._due = time.monotonic() + _SLACK_S + seconds
        else:
            self._due = inf

    def tell_waiting(self) -> None:
        """Log once a minute that a host does not answer. Called by another thread."""
        waited = time.monotonic() - self._begun
        if self._host and waited > _SILENT_S and _first_of(f"waiting for {self._host}"):
            _log.warning("%s: no answer from %s for %.0f s; waiting", self._name, self._host, waited)

    def check_overdue(self) -> None:
        """End a step that is overdue, from another thread.

        The step itself is blocked in a socket. While it continues, this repeats after a second: a redirect may have
        opened another socket.
        """
        now = time.monotonic()
        if now > self._due:
            self._due = now + _WATCH_S
            self._cancel.interrupt()

    def check_interrupted(self, cause: BaseException | None = None) -> None:
        """Raise `Failed` if `check_overdue` ended the step."""
        if self._cancel.was_interrupted():
            what = "the server sent a byte now and then, but no whole answer"
            raise Failed(StallError, what, "look at the load of the node") from cause

    def failed(self, failed: Failed, offset: int | None = None) -> None:
        """Pause and return if another try should follow, else raise the error.

        `offset` is the byte reached.
        """
        if self._cancel.cancelled:
            raise Cancelled
        self._failures += 1
        left = self.left_s()
        late = left <= 0 and (failed.again or failed.kind is StallError)
        if late and self._calls > 1:  # `failed` names the rest of the deadline alone
            raise self._too_late() from quiet(failed.__cause__)
        if not failed.again:
            raise self._error(failed, "", offset) from quiet(failed.__cause__ or failed.__context__)
        if self._failures >= self._retry.attempts:
            raise self._error(failed, f"tried {self.total} times", offset) from quiet(failed.__cause__)
        pause = failed.after_s if failed.after_s is not None else self._retry.delay(self._failures)
        if pause >= left:
            reason = f"tried {self.total} times within the deadline of {self._retry.deadline:g} s"
            if failed.after_s is not None:
                reason += f"; the server asks to wait {failed.after_s:g} s"
            raise self._error(failed, reason, offset) from quiet(failed.__cause__)
        self.retries += 1
        text = f"{self._name}: {failed.what}; trying again in {pause:.1f} s"
        if failed.kind is ConnectError and _first_of(failed.what):
            # Users of a stalled program see at once what it waits for.
            text += f", {self._retry.attempts - self._failures} times at most"
            _log.warning("%s", text)  # names may have a % in them
        else:
            _log.info("%s", text)
        with self.waiting():
            if self._cancel.wait(pause):
                raise Cancelled

    def _error(self, failed: Failed, reason: str, offset: int | None) -> TransportError:
        if offset and not failed.says_byte:
            reason = f"{reason}; {offset} bytes had been read" if reason else f"{offset} bytes had been read"
        what = f"{self._name}: {failed.what}" + (f" ({reason})" if reason else "")
        error = failed.kind.at(
            what, todo=failed.todo, url=redact(self._url), offset=offset, attempt=self.total
        )
        if failed.status is not None:
            error.status = failed.status
        return error


class _Watch:
    """One thread that looks at all calls under way, each second.

    A thread for each call would take a fifth of a small request.
    """

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may end a listing in a thread that has it.
        self._lock = threading.RLock()
        self._under_way: dict[int, Attempts] = {}
        self._holders = 0
        self._thread = ExitStack()

    @contextmanager
    def held(self, attempts: Attempts | None = None) -> Iterator[None]:
        """Keep the thread during the block, and look at `attempts`."""
        with self._lock:
            if not self._holders:
                self._thread.enter_context(meanwhile(self._look, "torchdata_ais.watch"))
            self._holders += 1
            if attempts is not None:
                self._under_way[id(attempts)] = attempts
        try:
            yield
        finally:
            if self is _watch:  # else this process was forked: the thread and the lock are its parent's
                with self._lock:
                    self._under_way.pop(id(attempts), None)
                    self._holders -= 1
                    ended = ExitStack() if self._holders else self._thread.pop_all()
                ended.close()  # waits for the thread

    def _look(self, over: threading.Event) -> None:
        while not over.wait(_WATCH_S):
            with self._lock:
                under_way = list(self._under_way.values())
            for attempts in under_way:
                attempts.check_overdue()
                attempts.tell_waiting()


_watch = _Watch()


def _renew() -> None:
    """Replace the watch in a forked process: its thread is the parent's."""
    global _watch  # noqa: PLW0603 - one thread per process is the point
    _watch = _Watch()


os.register_at_fork(after_in_child=_renew)


def watching() -> AbstractContextManager[None]:
    """Keep the thread that ends overdue calls, between many short ones."""
    return _watch.held()


@contextmanager
def series(
    retry: Retry, name: str, url: str, cancel: Cancel | None = None, *, host: str = ""
) -> Iterator[Attempts]:
    """Give an `Attempts` for several calls within one deadline.

    `name` and `url` are for errors and the log. `host` is logged if no answer comes for two seconds.
    """
    with cancel or Cancel() as cancel:
        attempts = Attempts(retry, cancel, name, url, host)
        with _watch.held(attempts):
            yield attempts


def retried(
    call: Callable[[Attempts], _T], retry: Retry, name: str, url: str, cancel: Cancel | None = None
) -> _T:
    """Return ``call(attempts)``, repeated by `retry` after each `Failed`."""
    with series(retry, name, url, cancel) as one:
        return one.run(call)
