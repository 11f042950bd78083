"""Producing processes: workers and the dispatching process."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Protocol, runtime_checkable

import torch

from torchdata_ais._util.process_end import end_with
from torchdata_ais._util.process_pool import take_no_part_in_signals
from torchdata_ais.errors import LoaderError
from torchdata_ais.observe.collect import Report, report_of, restart
from torchdata_ais.observe.diagnosis.batch_records import BatchRecorder
from torchdata_ais.observe.diagnosis.worker_queries import Answering
from torchdata_ais.pipes.base.collate import Memory
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.meter import iterate
from torchdata_ais.pipes.base.policy import note_place
from torchdata_ais.pipes.base.torch_pipes import all_pipes
from torchdata_ais.pipes.base.upstream import at_work, parents
from torchdata_ais.workers.channel import Channel, HungUpError, Kind, Message
from torchdata_ais.workers.heartbeat import Watchdog
from torchdata_ais.workers.memory import Lender
from torchdata_ais.workers.pickling import Failure, Packed, pack
from torchdata_ais.workers.process import DISPATCHER, Dispatched, ProcessConfig


class Consumer:
    """A consumer of the produced items, and how many it can take."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.open = True
        self._queue: deque[tuple[Kind, Packed]] = deque()
        self._epoch = 0
        self._credit = 0
        self._done = False
        self._early: list[Message] = []

    @property
    def has_credit(self) -> bool:
        """Report whether its next item could be sent at once."""
        return self.open and not self._done and self._credit > 0 and not self._queue

    @property
    def held(self) -> int:
        """Items made for it and not yet sent."""
        return len(self._queue)

    def begin(self, epoch: int, credit: int = 0) -> None:
        """Forget the last epoch."""
        while self._queue:
            self._queue.popleft()[1].drop()
        self._epoch, self._credit, self._done = epoch, credit, False
        early, self._early = self._early, []
        for message in early:
            self.receive(message)

    def receive(self, message: Message) -> None:
        """Take credit, or notice that no more items are wanted."""
        if message.epoch > self._epoch:  # the worker knows of the new epoch before us
            self._early.append(message)
        elif message.epoch == self._epoch:
            if message.kind is Kind.CREDIT:
                self._credit += message.value
            elif message.kind is Kind.DONE:
                self._done = True
                while self._queue:
                    self._queue.popleft()[1].drop()
        self.flush()

    def put(self, kind: Kind, packed: Packed) -> None:
        """Send the message at its turn and with credit; items cost one credit."""
        if self._done or not self.open:
            packed.drop()
            return
        self._queue.append((kind, packed))
        self.flush()

    def flush(self) -> None:
        """Send all messages that can be sent."""
        while self._queue:
            kind, packed = self._queue[0]
            costs = kind in (Kind.ITEM, Kind.TAGGED)
            if costs and not self._credit:
                return
            self._queue.popleft()
            self._credit -= costs
            try:
                self.channel.send(kind, self._epoch, 0, packed)
            except HungUpError:
                self.close()

    def close(self) -> None:
        """Expect nothing of this consumer any more."""
        self.open = False
        while self._queue:
            self._queue.popleft()[1].drop()


_FIRST_S = 0.1
_EVERY_S = 1.0


class Counts:
    """Takes reports of a pipe, at most one a second; its stages count from 0.

    Attributes:
        sending_s: Seconds spent on handing items over.
        recorder: Notes a record a batch, which goes along, if wanted.
    """

    def __init__(self, pipe: Any, *, records: bool = False) -> None:
        restart(pipe)
        self.recorder = BatchRecorder(pipe) if records else None
        self.sending_s = 0.0
        self._pause_s = _FIRST_S
        self._next = monotonic() + self._pause_s

    def take(self, pipe: Any, *, now: bool = False) -> Report | None:
        """Return the counts of all epochs so far; None if it is not time."""
        time = monotonic()
        if time < self._next and not now:
            return None
        self._pause_s = min(_EVERY_S, 2 * self._pause_s)
        self._next = time + self._pause_s
        report = report_of(pipe)
        report.sending_s, report.in_workers = self.sending_s, True
        if self.recorder is not None:
            report.recorded = self.recorder.take()
        return report


def ended(report: Report) -> Report:
    """Return the last report of a process that has ended: its work counts."""
    for stage in report.stages:
        stage.stats.held = stage.stats.held_max = 0
    report.processes = 0
    return report


@runtime_checkable
class EpochListener(Protocol):
    """A pipe that receives each epoch's number before its first item."""

    def _ais_reset(self, *, epoch: int, extras: object) -> None:
        """Receive the number of the epoch, and the data for this worker."""


@runtime_checkable
class EnvelopeSender(Protocol):
    """A pipe that sends data with its items as the last one of a worker."""

    def _ais_envelope(self) -> object:
        """Return the data for the item just made, or after the last; None: none."""


def notify_pipes(pipes: Iterable[object], epoch: int, extras: object) -> None:
    """Notify the pipes that are epoch listeners."""
    for pipe in pipes:
        if isinstance(pipe, EpochListener):
            pipe._ais_reset(epoch=epoch, extras=extras)


_MAX_HELD = 1000
"""Items that the dispatching process keeps for slow workers while the others request more."""


class Producer:
    """Runs a pipe, epoch after epoch, for one or several consumers in turn.

    The end of the channel `control`, which gives orders, ends the process. It is a worker's only consumer. The
    `sources` are the pipes of the graph that read from the dispatching process.

    Attributes:
        recorder: Records the batches.
    """

    def __init__(
        self,
        pipe: Any,
        config: ProcessConfig,
        control: Channel,
        consumers: list[Consumer],
        sources: Sequence[Dispatched],
        watchdog: Watchdog,
    ) -> None:
        self._pipe = pipe
        self._part = config.part
        self._control = control
        self._consumers = consumers
        self._name = config.name
        self._sources = sources
        self._watchdog = watchdog
        self._by_fd = {consumer.channel.fileno(): consumer for consumer in consumers}
        self._poll = select.poll()
        for fd in {control.fileno(), *self._by_fd}:
            self._poll.register(fd, select.POLLIN)
        self._epoch = 0
        self._turn = 0
        self._paused = False
        self._iterator: Iterator[object] | None = None
        self._envelope: Callable[[], object] | None = None
        self._lender = Lender()
        self._counts = Counts(pipe, records=config.records) if consumers[0].channel is control else None
        self.recorder = None if self._counts is None else self._counts.recorder

    def run(self) -> None:
        """Produce until the control channel ends."""
        try:
            while self._listen():
                if self._can_produce():
                    self._produce()
        finally:
            self._iterator = None  # closes the generators of the pipe, while their modules still exist

    def _can_produce(self) -> bool:
        if self._iterator is None or self._paused:
            return False
        return any(consumer.has_credit for consumer in self._consumers)

    def _listen(self) -> bool:
        """Take in all messages; wait for one when idle. False at the end."""
        for fd, _ in self._poll.poll(0 if self._can_produce() else None):
            if fd == self._control.fileno():
                if not _drain(self._control, self._handle):
                    return False
            elif not _drain(self._by_fd[fd].channel, self._by_fd[fd].receive):
                self._poll.unregister(fd)
                self._by_fd[fd].close()
        return True

    def _handle(self, message: Message) -> None:
        if message.kind in (Kind.CREDIT, Kind.DONE):
            self._by_fd[self._control.fileno()].receive(message)
            return
        try:
            if message.kind is Kind.RESET:
                self._reset(message)
            else:
                self._adjust(message)
        except Exception as error:  # noqa: BLE001 - any error of the user's functions and pipes
            self._fail(error)
        if message.kind is not Kind.RESET:
            self._control.post(Kind.ANSWER, message.epoch)

    def _reset(self, message: Message) -> None:
        self._iterator = None
        self._epoch, self._turn = message.epoch, 0
        for consumer in self._consumers:
            consumer.begin(message.epoch, message.value)
            consumer.put(Kind.BEGIN, Packed())
        for source in self._sources:
            source.begin(message.epoch)
        with self._watchdog:
            self._pipe = self._part.begin(self._pipe, message.load())
        _offer_memory(self._pipe, self._lender.block)
        self._envelope = self._pipe._ais_envelope if isinstance(self._pipe, EnvelopeSender) else None
        self._iterator = self._watchdog.watch(iterate(self._pipe))
        if self.recorder is not None:
            self.recorder.begin(self._pipe)
            self._iterator = self.recorder.watch(self._iterator)

    def _adjust(self, message: Message) -> None:
        """Pause, resume or limit the pipes of the graph that know how to."""
        function, *arguments = message.load()
        if message.kind is Kind.PAUSE:
            self._paused = True
            self._part.pause(self._pipe)
        if function is not None:
            self._pipe = function(self._pipe, *arguments)
        if message.kind is Kind.RESUME:
            self._part.resume(self._pipe)
            self._paused = False

    def _produce(self) -> None:
        assert self._iterator is not None
        try:
            value = next(self._iterator)
        except StopIteration:
            self._finish()
            return
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - any error of the pipe
            self._fail(error)
            return
        begin = perf_counter()
        try:
            with self._watchdog:
                extras = self._envelope() if self._envelope is not None else None
                kind, load = (Kind.ITEM, value) if extras is None else (Kind.TAGGED, (value, extras))
                packed = pack(load, self._lender)
        except Exception as error:  # noqa: BLE001 - objects can raise anything when pickled
            self._fail(error, f" while pickling an item of type {type(value).__qualname__!r}")
            return
        self._consumers[self._turn].put(kind, packed)
        if self._counts is not None:
            self._counts.sending_s += perf_counter() - begin
            self._report()
        self._turn = (self._turn + 1) % len(self._consumers)
        if len(self._consumers) > 1 and sum(consumer.held for consumer in self._consumers) > _MAX_HELD:
            self._fail(
                LoaderError.at(
                    f"{_MAX_HELD} items wait for workers that do not take them, while other workers ask for more",
                    todo="let the pipes after sharding_round_robin_dispatch take about as many items in each worker",
                )
            )

    def _finish(self) -> None:
        self._iterator = None
        self._report(now=True)
        for source in self._sources:
            source.finish()
        try:
            extras = self._envelope() if self._envelope is not None else None
            packed = [Packed() if extras is None else pack(extras) for _ in self._consumers]
        except Exception as error:  # noqa: BLE001 - objects can raise anything when pickled
            self._fail(error, " after the last item")
            return
        for consumer, last in zip(self._consumers, packed, strict=True):
            consumer.put(Kind.END, last)

    def _fail(self, error: BaseException, doing: str = "") -> None:
        if isinstance(error, Exception) and not doing:
            note_place(error, None, None, at_work(self._pipe))
        self._iterator = None
        self._report(now=True)
        failure = Failure.of(error, f"in {self._name}{doing}")
        for consumer in self._consumers:
            consumer.put(Kind.FAILED, pack(failure))

    def _report(self, *, now: bool = False) -> None:
        """Send the pipe's counts, if it is time to."""
        if self._counts is not None and (report := self._counts.take(self._pipe, now=now)) is not None:
            self._consumers[0].put(Kind.STATS, pack(report))


def _offer_memory(pipe: object, memory: Memory) -> None:
    """Give the last stage, not a loader's, memory that is sent without a copy."""
    while isinstance(pipe, Stage) and pipe.hidden:
        pipe = parents(pipe)[0]
    if isinstance(pipe, Stage):
        pipe.use_memory(memory)


def _drain(channel: Channel, receive: Callable[[Message], None]) -> bool:
    """Pass on all messages that are here. False if nothing more can come."""
    try:
        while (message := channel.receive()) is not None:
            receive(message)
    except EOFError:
        return False
    return True


_LINGER_S = 1.0
"""Longest life of an ended process due to the pipe's threads."""


def run_process(config: ProcessConfig) -> None:
    """Run a process to its end: the target of `multiprocessing.Process`."""
    take_no_part_in_signals()
    end_with(config.main_pid)
    if config.pulse is not None:
        config.pulse.begin()
    torch.set_num_threads(1)
    gc.freeze()  # inherited objects are not garbage: a scan would copy the main process's memory page by page
    assert config.control is not None
    control = Channel(config.control)
    exit_code = 1
    try:
        _produce(config, control)
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except HungUpError:
        exit_code = 0  # the main process has gone on without us
    except BaseException as error:  # noqa: BLE001 - reported, and then this process ends
        _tell([control], config, error)
    finally:
        _end_soon(exit_code)


def _produce(config: ProcessConfig, control: Channel) -> None:
    pipe = config.part.open()
    consumers = [Consumer(Channel(sock)) for sock in config.consumers] or [Consumer(control)]
    answering = None if config.flight is None else Answering(config.flight, config.name)
    channels = {control, *(consumer.channel for consumer in consumers)}
    worker = None if config.worker_id == DISPATCHER else config.worker_id
    watchdog = Watchdog(config.stall_after, config.name, worker, partial(_tell, channels, config), pipe)
    try:
        with watchdog.running():
            sources = _connect(pipe, config.source)
            with watchdog:
                watchdog.pipe = pipe = config.part.prepare(pipe)
            producer = Producer(pipe, config, control, consumers, sources, watchdog)
            if answering is not None:
                answering.recorder = producer.recorder
            producer.run()
    except SystemExit:
        raise
    except BaseException as error:
        _tell(channels - {control}, config, error)
        raise


def _tell(channels: Iterable[Channel], config: ProcessConfig, error: BaseException) -> None:
    """Send the last word of this process, where anybody still reads it."""
    for channel in channels:
        with contextlib.suppress(HungUpError):
            channel.post(Kind.BROKEN, load=Failure.of(error, f"in {config.name}"))


def _connect(pipe: object, sock: socket.socket | None) -> list[Dispatched]:
    """Connect the pipe to the dispatching process, where the graph was cut."""
    if sock is None:
        return []
    channel = Channel(sock)
    sources = [part for part in all_pipes(pipe) if isinstance(part, Dispatched)]
    for source in sources:
        source.connect(channel)
    return sources


def _end_soon(exit_code: int) -> None:
    """End the interpreter in order, with a limited wait for remaining threads."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    timer = threading.Timer(_LINGER_S, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
