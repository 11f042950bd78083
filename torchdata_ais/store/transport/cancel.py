"""Cancellation of requests."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from urllib3.util.wait import wait_for_read


class Cancel:
    """A flag that also wakes a thread which waits for a socket.

    A thread enters the flag (``with cancel:``) around its requests, or is `lent` it for some of them. The `current`
    flag of a thread watches the sockets of its connections. `cancel` may be called from any thread, at any moment,
    more than once.

    Example:
        >>> cancel = Cancel()
        >>> cancel.cancel()
        >>> cancel.wait(60.0)
        True
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._interrupted = False

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Set the flag and end the read or write under way."""
        self._event.set()
        with self._lock:
            _shut(self._socket)
            self._socket = None

    def interrupt(self) -> None:
        """End the read or write under way like a timeout, without the flag."""
        with self._lock:
            self._interrupted = True
            _shut(self._socket)

    def was_interrupted(self) -> bool:
        """Return whether `interrupt` was called since the last call of this."""
        interrupted, self._interrupted = self._interrupted, False
        return interrupted

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until `cancel`; return whether it was called."""
        return self._event.wait(seconds)

    def watch(self, sock: socket.socket | None) -> None:
        """Make `sock` the one to shut down; None before it returns to the pool."""
        with self._lock:
            self._socket = sock
            if self._event.is_set():
                _shut(sock)

    def __enter__(self) -> Cancel:
        self._before, _thread.flag = _thread.flag, self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.flag = self._before
        self.watch(None)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Make this the flag of the current thread during the block.

        The thread continues the requests of another one.
        """
        before, _thread.flag = _thread.flag, self
        try:
            yield
        finally:
            _thread.flag = before

    @staticmethod
    def current() -> Cancel:
        """Return the flag of this thread, else one that is never set."""
        return _thread.flag

    def ended_it(self) -> bool:
        """Return whether this has ended the use of its socket."""
        return self.cancelled or self._interrupted

    def answered(self) -> bool:
        """Return whether it is known that the socket in use has bytes to read."""
        sock = self._socket
        if sock is None or isinstance(sock, ssl.SSLSocket):  # TLS has its own messages
            return False
        return wait_for_read(sock, timeout=0)

    def set_timeout(self, seconds: float | None) -> None:
        """Set the timeout of the socket for the body, after the headers."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.settimeout(seconds)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.flag = Cancel()


_thread = _Thread()


def _shut(sock: socket.socket | None) -> None:
    if sock is not None:
        with suppress(OSError):
            # Not SSLSocket.shutdown: that would also drop the TLS layer under the reading thread.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
