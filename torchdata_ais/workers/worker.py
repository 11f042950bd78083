"""The processes that produce: a worker runs a replica of the pipe, the dispatching process feeds all workers."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from torchdata_ais.dataloader2.graph import all_pipes, shard
from torchdata_ais.dataloader2.torchdata_names import WorkerInfo, extract_wrapper, process_reset_fn
from torchdata_ais.errors import StallError
from torchdata_ais.lifetime import end_with
from torchdata_ais.ranks.sharding import number_ranks_first
from torchdata_ais.workers.channel import Channel, HungUpError, Kind
from torchdata_ais.workers.ends import Dispatched
from torchdata_ais.workers.failure import Failure
from torchdata_ais.workers.producer import Outlet, Producer
from torchdata_ais.workers.pulse import Pulse
from torchdata_ais.workers.stall import Watchdog

__all__ = ["Job", "Reset", "run_job"]

_LINGER_S = 1.0
"""How long threads that the pipe left behind may keep an ended process alive."""


@dataclass
class Job:
    """What a process is started with.

    Attributes:
        pipe: The part of the graph this process runs.
        info: Which worker of how many this is; for the dispatching process, worker 0.
        source: A worker's connection to the dispatching process, if there is one.
        outlets: The dispatching process's connections to the workers, in order; None in a worker.
        init_fn: Called once with the sharded pipe; returns the pipe to run.
        reset_fn: Called for each epoch with the seeded pipe; returns the pipe to run.
        stall_after: Seconds an item, or one of the two functions, may take; None is for ever.
        pulse: What tells the main process that this one still runs, made at launch if `stall_after` is given.
        control: The connection to the main process, made at launch.
        main_pid: The process to live and die with.
    """

    pipe: Any
    info: WorkerInfo
    source: socket.socket | None = None
    outlets: list[socket.socket] | None = None
    init_fn: Callable[..., Any] | None = None
    reset_fn: Callable[..., Any] | None = None
    stall_after: float | None = None
    pulse: Pulse | None = None
    control: socket.socket | None = None
    main_pid: int = field(default_factory=os.getpid)

    @property
    def name(self) -> str:
        """How errors name this process."""
        return f"worker process {self.info.worker_id}" if self.outlets is None else "dispatching process"


@dataclass
class Reset:
    """What begins an epoch in a process.

    Attributes:
        epoch: The number the pipes are told.
        seeds: A seed generator of torchdata: its shared seeds are equal in all processes, its own differ.
        iter_reset_fn: Handed on from a service that stands before this one.
        extras: Handed to every pipe that has `_ais_reset`.
    """

    epoch: int
    seeds: Any
    iter_reset_fn: Callable[[Any], Any] | None = None
    extras: Any = field(default=None)


def run_job(job: Job) -> None:
    """Run a process to its end: the target of `multiprocessing.Process`."""
    _take_no_part_in_signals()
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
        with contextlib.suppress(HungUpError):
            control.post(Kind.BROKEN, load=Failure.of(error, f"in {job.name}"))
    finally:
        _end_soon(exit_code)


def _produce(job: Job, control: Channel) -> None:
    pipe = extract_wrapper(job.pipe)
    outlets = [Outlet(Channel(sock)) for sock in job.outlets or ()] or [Outlet(control)]
    watchdog = _watchdog(job, control, outlets)
    watchdog.pipe = pipe
    try:
        with watchdog.running():
            sources: list[Dispatched] = []
            if job.outlets is None:
                sources = _connect(pipe, job.source)
                with watchdog:
                    watchdog.pipe = pipe = _prepare_replica(job, pipe)
            Producer(pipe, control, outlets, job.name, partial(_begin, job), sources, watchdog).run()
    except SystemExit:
        raise
    except BaseException as error:
        for outlet in outlets:
            if outlet.channel is not control:
                with contextlib.suppress(HungUpError):
                    outlet.channel.post(Kind.BROKEN, load=Failure.of(error, f"in {job.name}"))
        raise


def _watchdog(job: Job, control: Channel, outlets: list[Outlet]) -> Watchdog:
    def fail(error: StallError) -> None:
        failure = Failure.of(error, f"in {job.name}")
        for channel in {control, *(outlet.channel for outlet in outlets)}:
            with contextlib.suppress(HungUpError):
                channel.post(Kind.BROKEN, load=failure)

    worker = job.info.worker_id if job.outlets is None else None
    return Watchdog(job.stall_after, job.name, worker, fail)


def _connect(pipe: Any, sock: socket.socket | None) -> list[Dispatched]:
    """Connect the pipe to the dispatching process, where the graph was cut."""
    if sock is None:
        return []
    channel = Channel(sock)
    sources = [part for part in all_pipes(pipe) if isinstance(part, Dispatched)]
    for source in sources:
        source.connect(channel)
    return sources


def _prepare_replica(job: Job, pipe: Any) -> Any:
    shard(pipe, job.info.num_workers, job.info.worker_id)
    number_ranks_first(all_pipes(pipe))
    if job.init_fn is not None:
        pipe = job.init_fn(pipe, job.info)
        if not hasattr(pipe, "__iter__"):
            raise TypeError(f"worker_init_fn must return the pipe to run, not {type(pipe).__name__}")
    return pipe


def _begin(job: Job, pipe: Any, reset: Reset) -> Any:
    """Seed the pipe and the process for an epoch, and return the pipe to iterate."""
    dispatching = job.outlets is not None
    pipe = process_reset_fn(pipe, job.info, reset.seeds, dispatching, reset.iter_reset_fn, job.reset_fn)
    tell_pipes(pipe, reset.epoch, reset.extras)
    return pipe


def tell_pipes(pipe: Any, epoch: int, extras: Any) -> None:
    """Call ``_ais_reset(epoch=, extras=)`` of every pipe of the graph that has it."""
    for part in all_pipes(pipe):
        tell = getattr(part, "_ais_reset", None)
        if callable(tell):
            tell(epoch=epoch, extras=extras)


def _take_no_part_in_signals() -> None:
    """Leave Ctrl-C and whatever else the main process handles to the main process; die of SIGTERM at once."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_soon(exit_code: int) -> None:
    """Let the interpreter end in good order, but not wait for ever for threads that the pipe left behind."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    timer = threading.Timer(_LINGER_S, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
