"""A thread beside a block of code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(
    work: Callable[[threading.Event], object], name: str, end_s: float | None = None
) -> Iterator[None]:
    """Run `work` in a thread as long as the block.

    Args:
        work: Is given an event, and ends soon after that is set.
        name: The thread's.
        end_s: How long to wait for its end; None: as long as it takes.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # When the interpreter ends the thread is no more, and would be waited for.
        if threading.current_thread() is not thread and not sys.is_finalizing():
            thread.join(end_s)
