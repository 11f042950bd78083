"""Ending a request from outside: a flag that wakes the thread which waits for its socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from urllib3.util.wait import wait_for_read


class Cancel:
    """A flag that also wakes a thread which waits for a socket.

    A thread enters the flag (``with cancel:``) around its requests, or is `lent` it for some of them; connections
    report their sockets to the flag of the thread they run in. `cancel` may be called from any thread, at any
    moment, more than once.

    Example:
        >>> cancel = Cancel()
        >>> cancel.cancel()
        >>> cancel.wait(60.0)
        True
    """

    _current = threading.local()

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._interrupted = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Set the flag and end the read or write under way."""
        self._event.set()
        with self._lock:
            _shut(self._socket)
            self._socket = None

    def interrupt(self) -> None:
        """End the read or write under way, as a timeout would, without setting the flag."""
        with self._lock:
            self._interrupted = True
            _shut(self._socket)

    def was_interrupted(self) -> bool:
        """Return whether `interrupt` was called since this was last asked."""
        interrupted, self._interrupted = self._interrupted, False
        return interrupted

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until `cancel`; return whether it was called."""
        return self._event.wait(seconds)

    def watch(self, sock: socket.socket | None) -> None:
        """Make `sock` the one to shut down; None when its connection goes back to the pool."""
        with self._lock:
            self._socket = sock
            if self._event.is_set():
                _shut(sock)

    def __enter__(self) -> Cancel:
        Cancel._current.flag = self
        return self

    def __exit__(self, *_: object) -> None:
        Cancel._current.flag = None
        self.watch(None)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Make this the flag of this thread meanwhile, which goes on with the requests of another."""
        before = getattr(Cancel._current, "flag", None)
        Cancel._current.flag = self
        try:
            yield
        finally:
            Cancel._current.flag = before

    @classmethod
    def report(cls, sock: Any) -> None:
        """Tell the flag of this thread, if there is one, about the socket in use."""
        flag = getattr(cls._current, "flag", None)
        if flag is not None and sock is not None:
            flag.watch(sock)

    @classmethod
    def was_ended(cls) -> bool:
        """Whether the flag of this thread has ended what its socket was used for."""
        flag = getattr(cls._current, "flag", None)
        return flag is not None and (flag.cancelled or flag._interrupted)

    @classmethod
    def let_go(cls) -> None:
        """Forget the socket in use in this thread: from now on it may be another thread's."""
        flag = getattr(cls._current, "flag", None)
        if flag is not None:
            flag.watch(None)

    @classmethod
    def answered(cls) -> bool:
        """Whether bytes wait to be read from the socket in use in this thread; False if that is unknown."""
        flag = getattr(cls._current, "flag", None)
        sock = None if flag is None else flag._socket
        if sock is None or isinstance(sock, ssl.SSLSocket):  # TLS has messages of its own
            return False
        return wait_for_read(sock, timeout=0)

    @classmethod
    def limit(cls, seconds: float | None) -> None:
        """Set the timeout of the socket in use in this thread: for the body, after the headers have come."""
        flag = getattr(cls._current, "flag", None)
        if flag is not None:
            flag.set_timeout(seconds)

    def set_timeout(self, seconds: float | None) -> None:
        """Set the timeout of the socket in use."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.settimeout(seconds)


def _shut(sock: socket.socket | None) -> None:
    if sock is not None:
        with suppress(OSError):
            # Not SSLSocket.shutdown: that would also drop the TLS layer under the reading thread.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
