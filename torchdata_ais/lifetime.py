"""How worker processes begin and end: started in a way that is safe, and gone with the process they work for."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from multiprocessing import get_context, parent_process
from typing import Any


def safe_context(method: str | None) -> Any:
    """Return the multiprocessing context: the default one, but never fork after CUDA has been initialised."""
    context: Any = get_context(method)
    if method is None and context.get_start_method() == "fork" and _cuda_is_up():
        context = get_context("forkserver")
    return context


def end_with(pid: int) -> None:
    """End this process when `pid` is gone, however busy its main thread is. Returns at once.

    Its parent is not asked: under the start method "forkserver" that is a server, which may live on.
    """
    threading.Thread(target=_wait_for_the_end, args=(pid,), name="parent-watch", daemon=True).start()


def _wait_for_the_end(pid: int) -> None:
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        _wait_without_pidfd(pid)
        return
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.poll()
    os._exit(1)


def _wait_without_pidfd(pid: int) -> None:
    while True:
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(1)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(0.5)


def _cuda_is_up() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
