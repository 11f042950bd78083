"""The processes that produce: a worker runs a replica of the pipe, the dispatching process feeds all workers."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from torchdata_ais.lifetime import end_with
from torchdata_ais.observe.asking import Answering
from torchdata_ais.stage.graph import all_pipes
from torchdata_ais.workers.channel import Channel, HungUpError, Kind
from torchdata_ais.workers.failure import Failure
from torchdata_ais.workers.job import DISPATCHER, Job
from torchdata_ais.workers.outlet import Outlet
from torchdata_ais.workers.producer import Producer
from torchdata_ais.workers.receivers import Dispatched
from torchdata_ais.workers.signals import take_no_part_in_signals
from torchdata_ais.workers.stall import Watchdog

_LINGER_S = 1.0
"""How long threads that the pipe left behind may keep an ended process alive."""


def run_job(job: Job) -> None:
    """Run a process to its end: the target of `multiprocessing.Process`."""
    take_no_part_in_signals()
    end_with(job.main_pid)
    if job.pulse is not None:
        job.pulse.begin()
    torch.set_num_threads(1)
    gc.freeze()  # what was inherited is not garbage: looking at it would copy the main process's memory page by page
    assert job.control is not None
    control = Channel(job.control)
    exit_code = 1
    try:
        _produce(job, control)
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except HungUpError:
        exit_code = 0  # the main process has gone on without us
    except BaseException as error:  # noqa: BLE001 - reported, and then this process ends
        _tell([control], job, error)
    finally:
        _end_soon(exit_code)


def _produce(job: Job, control: Channel) -> None:
    pipe = job.part.open()
    outlets = [Outlet(Channel(sock)) for sock in job.outlets] or [Outlet(control)]
    answering = None if job.flight is None else Answering(job.flight, job.name)
    channels = {control, *(outlet.channel for outlet in outlets)}
    worker = None if job.worker_id == DISPATCHER else job.worker_id
    watchdog = Watchdog(job.stall_after, job.name, worker, partial(_tell, channels, job), pipe)
    try:
        with watchdog.running():
            sources = _connect(pipe, job.source)
            with watchdog:
                watchdog.pipe = pipe = job.part.prepare(pipe)
            producer = Producer(pipe, job, control, outlets, sources, watchdog)
            if answering is not None:
                answering.recorder = producer.recorder
            producer.run()
    except SystemExit:
        raise
    except BaseException as error:
        _tell(channels - {control}, job, error)
        raise


def _tell(channels: Iterable[Channel], job: Job, error: BaseException) -> None:
    """Send the last word of this process, where anybody still reads it."""
    for channel in channels:
        with contextlib.suppress(HungUpError):
            channel.post(Kind.BROKEN, load=Failure.of(error, f"in {job.name}"))


def _connect(pipe: Any, sock: socket.socket | None) -> list[Dispatched]:
    """Connect the pipe to the dispatching process, where the graph was cut."""
    if sock is None:
        return []
    channel = Channel(sock)
    sources = [part for part in all_pipes(pipe) if isinstance(part, Dispatched)]
    for source in sources:
        source.connect(channel)
    return sources


def _end_soon(exit_code: int) -> None:
    """Let the interpreter end in good order, but not wait for ever for threads that the pipe left behind."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    timer = threading.Timer(_LINGER_S, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
