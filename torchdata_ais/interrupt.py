"""Ctrl-C while a command is still importing its libraries: nothing is there yet that needs an orderly end.

An exception would not do: libraries meet it in the middle of their own initialisation, and print it, or turn it into
errors of theirs.
"""

from __future__ import annotations

import os
import signal

LINE = "interrupted"
STATUS = 130


def quit_at_once() -> None:
    """Have Ctrl-C end the process with one line, unless the shell had it ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _quit)


def _quit(*_: object) -> None:
    os.write(2, f"{LINE}\n".encode())
    os._exit(STATUS)
