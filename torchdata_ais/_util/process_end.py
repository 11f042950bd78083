"""Start and end of processes and threads.

An exception does not suffice: libraries catch it during their initialisation, and print or replace it.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any

_log = logging.getLogger(__name__)

_open: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()
"""Objects to close at exit: their process and the name of the method."""


def close_at_exit(owner: object, method: str = "close") -> None:
    """Close `owner` at interpreter exit, unless it was collected before.

    The interpreter empties modules before it collects the remaining objects. A generator that is closed then runs its
    ``finally`` blocks without the names of its module, and prints "Exception ignored in". Objects are closed in the
    order in which they were opened, so that downstream iterators end first. A forked process leaves the objects of
    its parent alone.

    Args:
        owner: Any object that can be referenced weakly.
        method: The name of its method without arguments.

    Example:
        >>> def numbers():
        ...     yield from range(3)
        >>> running = numbers()
        >>> close_at_exit(running)
    """
    if not _open:
        atexit.unregister(_close_open)
        atexit.register(_close_open)  # last registered, first called: before the pools of workers end
    _open[owner] = os.getpid(), method


def _close_open() -> None:
    for owner, (pid, method) in list(_open.items()):
        if pid == os.getpid():
            try:
                getattr(owner, method)()
            except Exception:  # noqa: BLE001 - the program is over, and its result remains
                _log.debug("could not close %r at exit", owner, exc_info=True)


def safe_context(method: str | None) -> Any:
    """Return the multiprocessing context: the default one, if it is safe.

    It never forks after CUDA has been initialised.
    """
    context: Any = get_context(method)
    if method is None and context.get_start_method() == "fork" and _cuda_is_up():
        context = get_context("forkserver")
    return context


def end_with(pid: int) -> None:
    """End this process when `pid` is gone, even if its main thread is busy.

    Returns at once.

    The parent process does not count: under the start method "forkserver" it is a server, which may live on.
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


LINE = "interrupted"
STATUS = 130


def quit_at_once() -> None:
    """Let Ctrl-C end the process with one line.

    If the shell had it ignored, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _quit)


def _quit(*_: object) -> None:
    os.write(2, f"{LINE}\n".encode())
    os._exit(STATUS)


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
        # At interpreter exit the thread does not exist any more, and would be waited for.
        if threading.current_thread() is not thread and not sys.is_finalizing():
            thread.join(end_s)
