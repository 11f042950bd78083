"""A process of the loader."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

from torchdata_ais._util.process_end import safe_context
from torchdata_ais.errors import LoaderError, StallError, UsageError, WorkerDiedError
from torchdata_ais.observe.diagnosis.worker_queries import Asked
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe, graph_lock
from torchdata_ais.workers.channel import Channel, HungUpError, Kind, Message
from torchdata_ais.workers.heartbeat import Heartbeat, Patience

_GRACE_S = 2.0
"""Time for a process to end after a request: for the item under way."""

_FAILED_GRACE_S = 0.5
"""The same when one has failed, and the caller waits for the error."""

_EXIT_S = 5.0
"""Time for one that has hung up to exit, with its exit code: a second and more on a busy machine."""

_HINTS = {
    -signal.SIGKILL: "when nobody killed it, the machine's or container's memory ran out: use fewer workers, smaller "
    "batches or smaller prefetch counts",
    -signal.SIGBUS: "a bus error mostly means that shared memory ran out: enlarge /dev/shm or prefetch less",
    -signal.SIGSEGV: "a native library crashed: run the same pipe with num_workers=0 under `python -X faulthandler`",
    1: "its own output above may say why; with the start methods spawn and forkserver, a script needs its main part "
    'under `if __name__ == "__main__":`',
}


class Peer:
    """A process that was started, or is about to be."""

    def __init__(self, name: str, worker_id: int, channel: Channel) -> None:
        self.name = name
        self.worker_id = worker_id
        self.channel = channel
        self.inbox: deque[Message] = deque()
        self.taken = 0
        """Items taken since credit was last given back."""
        self.failed = False
        """Report whether it ended without a request, or its pipe raised."""
        self.process: Any = None
        self.pid: int | None = None
        self.life: int = -1
        """A descriptor that becomes readable when the process has ended."""
        self._own_life = False
        self.flight: Asked | None = None
        """Address that answers queries about its activity."""
        self._patience: Patience

    def start(self, process: BaseProcess, stall_after: float | None, pulse: Heartbeat | None) -> None:
        """Start the process and watch it; see `Patience` for its silence."""
        with graph_lock:  # spawn pickles the pipe
            process.start()
        self.process, self.pid = process, process.pid
        try:
            self.life, self._own_life = os.pidfd_open(self.pid or 0), True
        except (AttributeError, OSError):
            self.life = process.sentinel
        worker = self.worker_id if self.worker_id >= 0 else None
        self._patience = Patience(self.name, worker, self.pid, stall_after, pulse)

    def waited_for(self, seconds: float) -> None:
        """Note that nothing has come for `seconds` more; raise if it does not run."""
        with self._failing():
            self._patience.waited(seconds)

    def refuse_stopped(self) -> None:
        """Raise `StallError` if it is stopped: other errors follow from that."""
        with self._failing():
            self._patience.refuse_stopped()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except StallError:
            self.failed = True
            raise

    def is_alive(self) -> bool:
        """Report whether the process is alive, whichever process reaps it."""
        return not wait([self.life], 0)

    def read_all(self) -> bool:
        """Move arrived messages into the inbox. False if no more can come."""
        try:
            while (message := self.channel.receive()) is not None:
                self.inbox.append(message)
        except EOFError:
            return False
        return True

    def its_error(self, message: Message) -> Exception:
        """Return the error that a FAILED or BROKEN message carries."""
        self.failed = True
        error: Exception = message.load().rebuild()
        return error

    def why_it_ended(self) -> Exception:
        """Return the error for a process that is gone: its last word or exit code."""
        self.failed = True
        self.read_all()
        for message in self.inbox:
            if message.kind is Kind.BROKEN:
                return self.its_error(message)
        self.process.join(_EXIT_S)
        code = self.process.exitcode
        how = "without an exit code" if code is None else f"with exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how += f" ({signal.Signals(-code).name})"
        if code is None and self.is_alive():
            how = "its connection while it was still running"
        todo = _HINTS.get(code, "look for `sys.exit` and `os._exit` in the pipe's functions")
        where = {"worker": self.worker_id, "pid": self.pid, "exit_code": code}
        return WorkerDiedError.at(f"{self.name} (pid {self.pid}) ended {how}", todo=todo, **where)

    def close(self) -> None:
        """Free its resources here, after its end or in a child of the owner."""
        for message in self.inbox:
            message.drop()
        self.inbox.clear()
        self.channel.close()
        if self.flight is not None:
            self.flight.close()
        if self._own_life:
            os.close(self.life)
            self._own_life = False


def stop(peers: Sequence[Peer], owner_pid: int) -> None:
    """End all processes: hang up, wait for items, terminate, kill.

    Takes at most three seconds. Does nothing in a process that was forked from the owner.
    """
    if os.getpid() != owner_pid:
        return
    for peer in peers:
        peer.channel.hang_up()
    started = [peer for peer in peers if peer.pid is not None]
    try:
        _wait_for(started, _FAILED_GRACE_S if any(peer.failed for peer in peers) else _GRACE_S)
        for peer in _living(started):
            peer.process.terminate()
        _wait_for(started, 0.5)
    finally:  # a second Ctrl-C must not leave processes running
        for peer in _living(started):
            peer.process.kill()
        for peer in started:
            peer.process.join(0.5)
            with contextlib.suppress(ValueError):
                peer.process.close()
        for peer in peers:
            peer.close()


def _living(peers: Sequence[Peer]) -> list[Peer]:
    return [peer for peer in peers if peer.is_alive()]


def _wait_for(peers: Sequence[Peer], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for peer in peers:
        wait([peer.life], max(0.0, deadline - time.monotonic()))


StartMethod = Literal["fork", "spawn", "forkserver"]
"""Start methods of worker processes."""


def start_context(method: StartMethod | None, preload: str) -> Any:
    """Return the context to start workers in.

    A fork server of it imports torch and `preload`, all that workers need, once for all of them. The user's preloaded
    modules stay.
    """
    from multiprocessing import forkserver

    context = safe_context(method)
    server: object = getattr(forkserver, "_forkserver", None)
    has_had_no_say = getattr(server, "_preload_modules", None) == ["__main__"]  # the user
    if context.get_start_method() == "forkserver" and has_had_no_say:
        context.set_forkserver_preload(["__main__", preload])
    return context


DISPATCHER = -1
"""The number of the dispatching process among the workers."""


class PipePart(Protocol):
    """The part of a pipe that one process runs, sent there by pickle."""

    def open(self) -> Any:
        """Return the pipe."""

    def prepare(self, pipe: object) -> Any:
        """Make the pipe that of this process, once; return the one to run."""

    def begin(self, pipe: object, reset: Any) -> Any:
        """Start an epoch by `reset` (of `Pool.reset`); return the pipe to iterate."""

    def pause(self, pipe: object) -> None:
        """Have its threads make nothing more."""

    def resume(self, pipe: object) -> None:
        """Resume them."""


@dataclass
class ProcessConfig:
    """Start arguments of a process.

    Attributes:
        part: The part that it runs.
        worker_id: Its number, or `DISPATCHER`.
        source: A worker's connection to the dispatching process, if there is one.
        consumers: The dispatching process's connections to the workers, in order.
        stall_after: Seconds an item, or a function of the user, may take; None is for ever.
        records: Whether to note a record a batch.
        flight: With `records`, the address for queries about its activity; made at launch.
        pulse: Its heartbeat for the main process, made at launch if `stall_after` is given.
        control: The connection to the main process, made at launch.
        main_pid: The process to live and die with.
    """

    part: PipePart
    worker_id: int
    source: socket.socket | None = None
    consumers: list[socket.socket] = field(default_factory=list)
    stall_after: float | None = None
    records: bool = False
    flight: socket.socket | None = None
    pulse: Heartbeat | None = None
    control: socket.socket | None = None
    main_pid: int = field(default_factory=os.getpid)

    @property
    def name(self) -> str:
        """Name of this process in errors."""
        return "dispatching process" if self.worker_id == DISPATCHER else f"worker process {self.worker_id}"


DISPATCH_CREDIT = 4
"""Items under way from the dispatching process to one worker.

Small on purpose: with messages of at most 32 KB they always fit into the socket, so that the dispatching process,
which serves all workers in turn, never has to wait for one of them to read.
"""


_DISPATCHER_GONE = "the dispatching process ended"


class _Live(IterDataPipe[Any]):
    """A pipe whose connection belongs to this process and never travels."""

    _live: Any = None

    def __getstate__(self) -> object:
        state = {name: value for name, value in self.__dict__.items() if name != "_live"}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)


class WorkerItems(_Live):
    """Yields the items of the workers: those of `items` for each epoch."""

    def __init__(self, items: Callable[[], Iterator[object]]) -> None:
        super().__init__()
        self._live = items

    def __iter__(self) -> Iterator[Any]:
        yield from self._live()


class Dispatched(_Live):
    """Yields, in a worker, its share of the dispatching process's items."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._ended = False

    def connect(self, channel: Channel) -> None:
        """Read from this channel."""
        self._live = channel

    def begin(self, epoch: int) -> None:
        """Expect the items of this epoch from now on."""
        self._epoch, self._ended = epoch, False

    def finish(self) -> None:
        """Report that this worker needs no more items of the current epoch."""
        if not self._ended:
            _post(self._live, Kind.DONE, self._epoch)

    def __iter__(self) -> Iterator[Any]:
        epoch, channel = self._epoch, self._live
        if self._ended:
            raise UsageError.at(
                "a pipe after sharding_round_robin_dispatch reads its source a second time in one epoch, but the "
                "dispatching process gives every item once",
                todo="put .repeated() and the like before sharding_round_robin_dispatch",
            )
        _post(channel, Kind.CREDIT, epoch, DISPATCH_CREDIT)
        while True:
            message = self._next(channel, epoch)
            if message.kind is Kind.END:
                message.drop()
                self._ended = True
                return
            # Before the item is used, so that the next one is sent meanwhile.
            _post(channel, Kind.CREDIT, epoch, 1)
            yield message.load()

    def _next(self, channel: Channel, epoch: int) -> Message:
        while True:
            try:
                message = channel.receive()
            except EOFError as error:
                raise WorkerDiedError(_DISPATCHER_GONE) from error
            if message is None:
                wait([channel.fileno()])
            elif message.kind is Kind.BROKEN:
                raise message.load().rebuild()
            elif message.epoch > epoch:
                message.drop()
                raise LoaderError("this epoch was given up for a newer one")
            elif message.epoch < epoch or message.kind is Kind.BEGIN:
                message.drop()
            elif message.kind is Kind.FAILED:
                raise message.load().rebuild()
            else:
                return message


def _post(channel: Channel, kind: Kind, epoch: int, value: int = 0) -> None:
    try:
        channel.post(kind, epoch, value)
    except HungUpError as error:
        raise WorkerDiedError(_DISPATCHER_GONE) from error
