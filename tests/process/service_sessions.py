"""Processes in sessions of their own, so that a test sees everything they leave behind, and ends it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.loaders import MultiProcessingReadingService

FORK = multiprocessing.get_context("fork")


def load(pipe: Any, workers: int = 2, *args: Any, **options: Any) -> Any:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, *args, **options))


def worker_pids(loader: Any) -> list[int]:
    return [process.pid for process, *_ in loader.reading_service._worker_processes]


def living_in(session: int) -> list[int]:
    """Return the pids of the processes of a session that have not ended; zombies have."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX" and int(fields[3]) == session:
                    pids.append(int(entry.name))
    return pids


def becomes_true(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def run_module(*command: str, timeout_s: float) -> str:
    """Run ``python -m`` of `command` and return what it printed; nothing that it started is left behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, f"{out}\n{err}"
    return out


@contextlib.contextmanager
def session(target: Callable[..., None], *args: Any) -> Iterator[Any]:
    """Run `target(answers, *args)` in a forked process with a session of its own.

    Yields the process; what `target` puts into ``answers`` comes out of ``process.answers``.
    """
    answers = FORK.SimpleQueue()
    process: Any = FORK.Process(target=_begin_session, args=(target, answers, args))
    process.start()
    process.answers = answers
    try:
        yield process
    finally:
        for pid in living_in(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.join(60)
        process.close()
        answers.close()


def _begin_session(target: Callable[..., None], answers: Any, args: tuple[Any, ...]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _interrupt_again
    with contextlib.suppress(KeyboardInterrupt):
        target(answers, *args)


def _interrupt_again(dropped: Any) -> None:
    """Send Ctrl-C again: CPython drops a KeyboardInterrupt that it raises inside a weakref callback."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``service_program.py`` in a new interpreter and a session of its own."""
    path = Path(__file__).with_name("service_program.py")
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in {process.pid, *living_in(process.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
