"""Signals are for the main process: how those that it handles never reach a handler in a process that it starts."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def holding_signals() -> Iterator[None]:
    """Keep back what this process handles, here and in the processes started meanwhile, until they ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    handled = {number for number in signal.valid_signals() if callable(signal.getsignal(number))}
    handled.discard(signal.SIGCHLD)  # a fork server begun here would never see its processes end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *handled})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_no_part_in_signals() -> None:
    """Leave Ctrl-C and whatever else the main process handles to the main process; die of SIGTERM at once."""
    # Held since this process was begun; one that was not forked knows by this alone what the main process handles.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else set()
    for number in signal.valid_signals():
        if number in held or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if held:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
