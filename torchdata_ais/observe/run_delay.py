"""How long a thread was ready to run while the machine had no processor for it."""

from __future__ import annotations

import os
import weakref


class RunDelay:
    """That of the thread that makes this, while it lasts."""

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the system does not count it, or there are no descriptors left
            return
        weakref.finalize(self, os.close, self._file).atexit = False

    def seconds(self) -> float:
        """Return it so far; always 0 where the system does not count it."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 80, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0
