"""Queues between threads of one process, by the names of torchdata's."""

from __future__ import annotations

import queue
from typing import Any


class LocalQueue:
    """A queue for one thread: `get` raises `queue.Empty`, and never waits.

    Example:
        >>> line = LocalQueue()
        >>> line.put(1)
        >>> line.get()
        1
    """

    def __init__(self, name: str = "unnamed") -> None:
        self.name = name
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: object, block: bool = True) -> None:  # noqa: ARG002 - it is never full
        """Append an item."""
        self._items.put(item)

    def get(self, block: bool = True, timeout: float | None = 0) -> Any:  # noqa: ARG002 - no other thread could put one
        """Return the first item."""
        return self._items.get_nowait()


class ThreadingQueue(LocalQueue):
    """A queue between threads.

    Raises:
        queue.Empty: `get` found nothing, in `timeout` seconds if it was to wait (0 is for ever).
    """

    def get(self, block: bool = True, timeout: float | None = 0) -> Any:
        """Return the first item, as soon as there is one."""
        return self._items.get(block, timeout or None)
