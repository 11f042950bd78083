"""Pool of worker processes."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torchdata_ais._util.process_pool import holding_signals
from torchdata_ais.errors import LoaderError, WorkerDiedError
from torchdata_ais.observe.collect import Report
from torchdata_ais.observe.diagnosis.batch_records import Recorded
from torchdata_ais.observe.diagnosis.flight_record import ProcessPart
from torchdata_ais.observe.diagnosis.worker_queries import Asked, ask_all, ask_records
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.workers.channel import Channel, HungUpError, Kind, Message
from torchdata_ais.workers.heartbeat import Heartbeat
from torchdata_ais.workers.memory import forget_all, give_back_done
from torchdata_ais.workers.pickling import Packed, pack
from torchdata_ais.workers.process import DISPATCHER, Peer, ProcessConfig, stop
from torchdata_ais.workers.producer import run_process


class YieldingLock:
    """A lock held during long waits, with priority for short requests.

    Attributes:
        lock: The lock. The waiting thread acquires it directly, all others by `asked_for`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._let_go = threading.Condition(self.lock)
        self._claims: set[int] = set()
        """Threads that want the lock of one that waits."""
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)

    def watch(self, fd: int) -> None:
        """End every `wait` when this can be read."""
        self._poll.register(fd, select.POLLIN)

    @contextlib.contextmanager
    def asked_for(self) -> Iterator[None]:
        """Hold the lock; wake a thread that waits with it, so that it releases it."""
        if not self.lock.acquire(blocking=False):
            try:
                self._claims.add(threading.get_ident())
                with contextlib.suppress(OSError):
                    self._wake_write.send(b"!")
                self.lock.acquire()
            finally:
                self._claims.discard(threading.get_ident())
        try:
            yield
        finally:
            self._let_go.notify_all()
            self.lock.release()

    def wait(self, fd: int, most_ms: int) -> list[int]:
        """Wait until one can be read, or the lock was lent; return the readable."""
        self._poll.register(fd, select.POLLIN)
        try:
            ready = [ready_fd for ready_fd, _ in self._poll.poll(most_ms)]
        finally:
            self._poll.unregister(fd)
        if self._wake_read.fileno() in ready:  # it is -1 if a signal handler has closed this meanwhile
            self._wake_read.recv(64)
            while not self._let_go.wait_for(lambda: not self._claims, most_ms / 1000):
                pass  # one that was interrupted takes its claim back without a word
        return ready

    def close(self) -> None:
        """Close the sockets."""
        self._wake_read.close()
        self._wake_write.close()


class WorkerReports:
    """Receives the workers' reports and sends them queries, from any thread.

    The lock `turn` is held by the thread that takes their items.

    Attributes:
        reports: The last counts of each worker.
        over: Whether all workers have ended.
    """

    def __init__(self, workers: Sequence[Peer], turn: YieldingLock) -> None:
        self._workers = workers
        self._turn = turn
        self._asking = threading.Lock()  # one thread at a time queries the workers' activity
        self._last_doing: list[ProcessPart] = []
        self.over = False
        self.reports: dict[int, Report] = {}

    def takes(self, worker: Peer, message: Message) -> bool:
        """Take the message, if it is a report of counts. Who calls holds the lock."""
        if message.kind is not Kind.STATS:
            return False
        report: Report = message.load()
        self.reports[worker.worker_id] = report.after(self.reports.get(worker.worker_id))
        return True

    def doing(self) -> list[ProcessPart]:
        """Return the activity of workers with records, last seen if they ended."""
        if self.over:
            return self._last_doing
        with self._asking:
            return ask_all(map(_asked, self._with_records()))

    def note_doing(self) -> None:
        """Save the workers' activity before they end, for readers of the error."""
        self._last_doing = self.doing()

    def records(self) -> list[tuple[int, Recorded]]:
        """Return the workers' records since the last call."""
        # While a thread waits for items, it takes in reports as they come.
        if self._turn.lock.acquire(blocking=False):
            try:
                for worker in self._workers:
                    worker.read_all()
                    rest = deque(message for message in worker.inbox if not self.takes(worker, message))
                    worker.inbox = rest
            finally:
                self._turn.lock.release()
        with self._asking:
            asked = self._with_records()
            fresh = ask_records(map(_asked, asked))
        told = {number: report.take() for number, report in list(self.reports.items())}
        parts = (
            (peer.worker_id, Recorded.joined([told.get(peer.worker_id), new]))
            for peer, new in zip(asked, fresh, strict=True)
        )
        return [(worker, recorded) for worker, recorded in parts if recorded is not None]

    def _with_records(self) -> list[Peer]:
        return [worker for worker in self._workers if worker.flight is not None]


def _asked(worker: Peer) -> tuple[str, int, Asked]:
    assert worker.flight is not None
    return worker.name, worker.pid or 0, worker.flight


_LOOK_ROUND_S = 0.25
"""Shortest time between two liveness checks by a busy consumer."""

_POLL_MS = 500

_OPEN: weakref.WeakSet[Pool] = weakref.WeakSet()
"""Pools of this process; a forked child must close its copies of their connections."""


class Pool:
    """The worker processes of one loader, and its dispatching process if any.

    At most `window` items are under way from each worker.

    Attributes:
        telling: Reports and queries of the workers.
    """

    def __init__(self, context: Any, window: int, ranks: Ranks | None = None) -> None:
        self._context = context
        self._window = window
        self._ranks = ranks
        self._next_look = 0.0
        self._workers: list[Peer] = []
        self._dispatcher: Peer | None = None
        self._peers: list[Peer] = []
        self._epoch = 0
        self._turn: deque[Peer] = deque()
        """The workers that still have items, the one whose turn it is first."""
        self._turn_lock = YieldingLock()
        self._lock = self._turn_lock.lock
        self.telling = WorkerReports(self._workers, self._turn_lock)
        self.closed = False
        self.last_worker: int | None = None
        self.last_extras: dict[int, Any] = {}
        # Runs when the pool is garbage, or at interpreter exit, whatever comes first.
        self._stop = weakref.finalize(self, _close, self._peers, self._turn_lock, os.getpid())
        _OPEN.add(self)

    @property
    def processes(self) -> list[Any]:
        """The running processes, workers first."""
        return [peer.process for peer in self._peers]

    def launch(self, config: ProcessConfig) -> None:
        """Start one process.

        The config's `control` is made here, its other sockets are closed here afterwards.
        """
        channel, theirs = Channel.pair()
        config.control = theirs
        config.pulse = None if config.stall_after is None else Heartbeat(config.stall_after)
        peer = Peer(config.name, config.worker_id, channel)
        if config.records:
            ours, config.flight = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.flight = Asked(ours)
        self._peers.append(peer)
        if config.worker_id == DISPATCHER:
            self._dispatcher = peer
        else:
            self._workers.append(peer)
        try:
            process = self._context.Process(target=run_process, args=(config,), daemon=True, name=config.name)
            with holding_signals(self._context.get_start_method()):
                peer.start(process, config.stall_after, config.pulse)
        except (ConnectionError, EOFError) as error:
            raise WorkerDiedError.at(
                f"{config.name} ended while it was being started",
                todo="its own output above may say why",
                worker=config.worker_id,
            ) from error
        finally:
            for sock in (theirs, config.source, config.flight, *config.consumers):
                if sock is not None:
                    sock.close()
        self._turn_lock.watch(peer.life)

    def reset(self, loads: Sequence[object], dispatched_load: object = None) -> None:
        """Start an epoch by arguments of `PipePart.begin`; drop items under way."""
        self._epoch += 1
        with self._turn_lock.asked_for(), self._while_open():
            self.last_worker, self.last_extras = None, {}
            for worker, load in zip(self._workers, loads, strict=True):
                worker.taken = 0
                self._post(worker, Kind.RESET, load)
            # Last, so that every worker knows of the epoch before its items come.
            if self._dispatcher is not None:
                self._post(self._dispatcher, Kind.RESET, dispatched_load)

    def items(self) -> Iterator[Any]:
        """Yield the items of the epoch, one of each worker that has some in turn."""
        epoch = self._epoch
        self._turn = turn = deque(self._workers)
        try:
            with self._while_open():
                # Round robin over the workers that still have items: the order never depends on timing.
                while turn:
                    with self._lock:
                        message = self._take(turn[0], epoch)
                        if message is None:
                            return
                        value = self._open(turn[0], message)
                    if message.kind is Kind.END:
                        turn.popleft()
                    else:
                        turn.rotate(-1)
                        yield value
        except Exception as error:
            self.telling.note_doing()
            if self._ranks is not None:
                self._ranks.report(error)
            raise

    def is_ready(self) -> bool:
        """Report whether the next item of the epoch is here, without waiting."""
        with self._lock:
            if not self._turn:
                return False
            worker = self._turn[0]
            worker.read_all()  # the waiting thread reports that it is gone
            kinds = (Kind.ITEM, Kind.TAGGED)
            return any(message.kind in kinds and message.epoch == self._epoch for message in worker.inbox)

    def order(self, kind: Kind, *load: object) -> None:
        """Make every process pause, resume or limit its pipes; wait for all.

        Workers stop before the process that feeds them, and continue after it.
        """
        with self._turn_lock.asked_for(), self._while_open():
            dispatcher = [] if self._dispatcher is None else [self._dispatcher]
            groups = [self._workers, dispatcher]
            for group in groups if kind is Kind.PAUSE else reversed(groups):
                for peer in group:
                    self._post(peer, kind, load)
                for peer in group:
                    self._await_answer(peer)

    def close(self) -> None:
        """End all processes. See `process.stop` for how long that can take."""
        self.closed = self.telling.over = True
        _OPEN.discard(self)
        with self._turn_lock.asked_for():
            self._stop()

    def abandon(self) -> None:
        """Close this child's copies silently: the processes belong to its parent."""
        self.closed = self.telling.over = True
        self._stop.detach()
        for peer in self._peers:
            peer.close()
        self._turn_lock.close()

    @contextlib.contextmanager
    def _while_open(self) -> Iterator[None]:
        """Raise if this pool is closed, now or by a signal handler meanwhile."""
        self._refuse_closed()
        try:
            yield
        except Exception:
            if self.closed:
                raise _shut_down() from None
            raise

    def _refuse_closed(self) -> None:
        if self.closed:
            raise _shut_down()

    def _take(self, worker: Peer, epoch: int) -> Message | None:
        """Return the worker's next item or end; None after a newer epoch started."""
        give_back_done()  # before a worker looks for memory to put the next item into
        while True:
            self._refuse_closed()
            if epoch != self._epoch:
                return None
            if time.monotonic() >= self._next_look:
                self._look_after_all()
            message = worker.inbox.popleft() if worker.inbox else self._receive(worker)
            if message is None:
                self._wait(worker)
            elif self.telling.takes(worker, message):
                pass
            elif message.kind is Kind.BROKEN:
                if self._dispatcher is not None:
                    self._dispatcher.refuse_stopped()
                raise worker.its_error(message)
            elif message.epoch != epoch or message.kind in (Kind.BEGIN, Kind.ANSWER):
                message.drop()
            elif message.kind is Kind.FAILED:
                error = worker.its_error(message)
                if isinstance(error, WorkerDiedError):  # it met the end of the dispatching process: name that
                    if self._dispatcher is not None:
                        self._dispatcher.process.join(0.5)
                    self._look_after_all()
                raise error
            else:
                return message

    def _open(self, worker: Peer, message: Message) -> object:
        """Rebuild the item, note its extras, and let the worker make the next one."""
        if message.kind is Kind.END:
            if message.packed.payload or message.packed.fds:
                self.last_extras[worker.worker_id] = message.load()
            return None
        worker.taken += 1
        if worker.taken >= max(1, self._window // 4):
            self._post_credit(worker)
        try:
            value = message.load()
        except Exception as error:
            raise LoaderError.at(
                f"an item of {worker.name} arrived but cannot be rebuilt here: {type(error).__name__}: {error}",
                todo="what a pipe yields must unpickle in the main process; every tensor it holds takes a file "
                "descriptor here, so raise the limit (`ulimit -n`) or hold fewer batches if those have run out",
                worker=worker.worker_id,
            ) from error
        self.last_worker = worker.worker_id
        if message.kind is Kind.TAGGED:
            value, self.last_extras[worker.worker_id] = value
        return value

    def _post(self, peer: Peer, kind: Kind, load: object) -> None:
        try:
            peer.channel.send(kind, self._epoch, self._window, pack(load), partial(_goes_on, peer))
        except HungUpError:
            raise peer.why_it_ended() from None

    def _post_credit(self, worker: Peer) -> None:
        with contextlib.suppress(HungUpError):  # noticed when its items are read
            worker.channel.send(Kind.CREDIT, self._epoch, worker.taken, Packed(), partial(_goes_on, worker))
        worker.taken = 0

    def _receive(self, peer: Peer) -> Message | None:
        try:
            return peer.channel.receive()
        except EOFError:
            raise peer.why_it_ended() from None

    def _await_answer(self, peer: Peer) -> None:
        while True:
            message = self._receive(peer)
            if message is None:
                self._wait(peer)
                self._refuse_closed()
            elif message.kind is Kind.ANSWER and message.epoch == self._epoch:
                return
            elif message.kind in (Kind.FAILED, Kind.BROKEN):
                raise peer.its_error(message)
            else:  # an item that was sent before the answer: its turn comes after it
                peer.inbox.append(message)

    def _wait(self, peer: Peer) -> None:
        """Wait for a message of the process, the end of one, or a lock's claim."""
        fd = peer.channel.fileno()
        ready = self._turn_lock.wait(fd, _POLL_MS)
        if self.closed:  # by a signal handler, while we waited
            return
        if not ready:
            # Processes may wait for one another until this process reads: read from all.
            for worker in self._workers:
                worker.read_all()
            for owing in {peer, self._dispatcher or peer}:
                owing.waited_for(_POLL_MS / 1000)
        elif ready != [fd]:
            self._next_look = 0.0

    def _look_after_all(self) -> None:
        """Raise if a process has ended, or if there is another reason to stop."""
        self._next_look = time.monotonic() + _LOOK_ROUND_S
        for peer in self._peers:
            if not peer.is_alive():
                raise peer.why_it_ended()
        if self._ranks is not None:
            self._ranks.look_round()


def _shut_down() -> LoaderError:
    return LoaderError.at("the loader was shut down", todo="make a new DataLoader2 to read again")


def _goes_on(peer: Peer) -> bool:
    """Return whether a process may still read messages, when it has not."""
    peer.waited_for(_POLL_MS / 1000)
    return peer.is_alive()


def _close(peers: list[Peer], turn_lock: YieldingLock, owner_pid: int) -> None:
    stop(peers, owner_pid)
    turn_lock.close()
    peers.clear()
    give_back_done()
    if not _OPEN:
        forget_all()


def _let_go_in_child() -> None:
    for pool in list(_OPEN):
        pool.abandon()


os.register_at_fork(after_in_child=_let_go_in_child)
