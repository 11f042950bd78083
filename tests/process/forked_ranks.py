"""Ranks as processes forked from the test: quick to start, real to torch, and all gone afterwards."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

Program = Callable[[int, dict[str, Any]], Any]


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def run_forked(
    program: Program, ranks: int, folder: Path, group: bool = True, timeout_s: float = 60, **job: Any
) -> list[dict[str, Any]]:
    """Run ``program(rank, job)`` in `ranks` processes; return what came of each.

    Returns:
        For each rank ``value``, or ``error`` and ``kind``; ``warnings``, ``log``, ``seconds``; or ``died``.
    """
    context = multiprocessing.get_context("fork")
    folder.mkdir(exist_ok=True)
    job = {**job, "folder": str(folder), "ranks": ranks, "store": str(folder / "group")}
    processes, ends = [], []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(program, rank, group, job, theirs))
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(ours)
        answers = []
        deadline = time.monotonic() + timeout_s
        for process, end in zip(processes, ends, strict=True):
            if not end.poll(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"a rank did not end within {timeout_s} s: {answers}")
            try:
                answers.append(end.recv())
            except EOFError:
                process.join(60)
                answers.append({"died": process.exitcode})
        return answers
    finally:
        for process, end in zip(processes, ends, strict=True):
            process.join(5 if len(answers) == ranks else 0)
            if process.is_alive() and process.pid is not None and process.pid > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.join(60)
            end.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(program: Program, rank: int, group: bool, job: dict[str, Any], answer: Connection) -> None:
    os.setpgid(0, 0)
    # A fork server of another test is a child of the process we were forked from, and none of ours to wait for.
    forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]
    log = _Log()
    logging.getLogger("torchdata_ais").addHandler(log)
    begin = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if group:
            store = dist.FileStore(job["store"], job["ranks"])
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=job["ranks"], timeout=timedelta(seconds=60)
            )
        try:
            said = {"value": program(rank, job)}
        except Exception as error:
            said = {"kind": type(error).__name__, "error": str(error)}
    texts = [str(warning.message) for warning in caught]
    answer.send({**said, "warnings": texts, "log": log.texts, "seconds": time.monotonic() - begin})
    answer.close()
    if group:
        dist.destroy_process_group()
