"""A lock that is given up, while its holder waits for something to read, to another thread that wants it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator


class YieldingLock:
    """A lock of one who waits for others, for threads that must not wait as long.

    Attributes:
        lock: What is held: at once by who waits, by `asked_for` for everybody else.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._let_go = threading.Condition(self.lock)
        self._claims: set[int] = set()
        """Threads that want the lock of one that waits."""
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)

    def watch(self, fd: int) -> None:
        """End every `wait` when this can be read."""
        self._poll.register(fd, select.POLLIN)

    @contextlib.contextmanager
    def asked_for(self) -> Iterator[None]:
        """Hold the lock; wake a thread that waits with it, so that it lets go."""
        if not self.lock.acquire(blocking=False):
            try:
                self._claims.add(threading.get_ident())
                with contextlib.suppress(OSError):
                    self._wake_write.send(b"!")
                self.lock.acquire()
            finally:
                self._claims.discard(threading.get_ident())
        try:
            yield
        finally:
            self._let_go.notify_all()
            self.lock.release()

    def wait(self, fd: int, most_ms: int) -> list[int]:
        """Return what can be read, as soon as `fd` or anything watched can be, or another thread has had the lock."""
        self._poll.register(fd, select.POLLIN)
        try:
            ready = [ready_fd for ready_fd, _ in self._poll.poll(most_ms)]
        finally:
            self._poll.unregister(fd)
        if self._wake_read.fileno() in ready:  # it is -1 if a signal handler has closed this meanwhile
            self._wake_read.recv(64)
            while not self._let_go.wait_for(lambda: not self._claims, most_ms / 1000):
                pass  # one that was interrupted takes its claim back without a word
        return ready

    def close(self) -> None:
        """Let go of the sockets."""
        self._wake_read.close()
        self._wake_write.close()
