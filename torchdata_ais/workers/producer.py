"""The loop of a process that produces: iterate the pipe, send items in turn, as far as there is credit."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from torchdata_ais.errors import LoaderError
from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.meter import iterate
from torchdata_ais.stage.origin import note_place
from torchdata_ais.stage.rows import Memory
from torchdata_ais.stage.upstream import at_work, parents
from torchdata_ais.workers.channel import Channel, Kind, Message
from torchdata_ais.workers.counts import Counts
from torchdata_ais.workers.failure import Failure
from torchdata_ais.workers.hooks import EnvelopeSender
from torchdata_ais.workers.job import Job
from torchdata_ais.workers.memory import Lender
from torchdata_ais.workers.outlet import Outlet
from torchdata_ais.workers.pickling import Packed, pack
from torchdata_ais.workers.receivers import Dispatched
from torchdata_ais.workers.stall import Watchdog

_MAX_HELD = 1000
"""Items the dispatching process keeps for workers that do not take them while others ask for more."""


class Producer:
    """Runs a pipe, epoch after epoch, for one consumer or for several in turn.

    Args:
        pipe: What to iterate, if an epoch begins with no other.
        job: What is done with it when an epoch begins, and for a pause; and how errors name this process.
        control: The channel that gives orders; its end ends the process.
        outlets: Who gets the items, round robin. A worker's only outlet is the control channel.
        sources: The pipes of the graph that read from the dispatching process.
        watchdog: Watches the time an item takes.

    Attributes:
        recorder: Who notes it.
    """

    def __init__(
        self,
        pipe: Any,
        job: Job,
        control: Channel,
        outlets: list[Outlet],
        sources: Sequence[Dispatched],
        watchdog: Watchdog,
    ) -> None:
        self._pipe = pipe
        self._part = job.part
        self._control = control
        self._outlets = outlets
        self._name = job.name
        self._sources = sources
        self._watchdog = watchdog
        self._by_fd = {outlet.channel.fileno(): outlet for outlet in outlets}
        self._poll = select.poll()
        for fd in {control.fileno(), *self._by_fd}:
            self._poll.register(fd, select.POLLIN)
        self._epoch = 0
        self._turn = 0
        self._paused = False
        self._iterator: Iterator[Any] | None = None
        self._envelope: Callable[[], Any] | None = None
        self._lender = Lender()
        self._counts = Counts(pipe, records=job.records) if outlets[0].channel is control else None
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
        return any(outlet.hungry for outlet in self._outlets)

    def _listen(self) -> bool:
        """Take in all messages; wait for one if there is nothing else to do. False at the end."""
        for fd, _ in self._poll.poll(0 if self._can_produce() else None):
            if fd == self._control.fileno():
                if not _drain(self._control, self._obey):
                    return False
            elif not _drain(self._by_fd[fd].channel, self._by_fd[fd].hear):
                self._poll.unregister(fd)
                self._by_fd[fd].close()
        return True

    def _obey(self, message: Message) -> None:
        if message.kind in (Kind.CREDIT, Kind.DONE):
            self._by_fd[self._control.fileno()].hear(message)
            return
        try:
            if message.kind is Kind.RESET:
                self._reset(message)
            else:
                self._adjust(message)
        except Exception as error:  # noqa: BLE001 - whatever the user's functions and pipes raise
            self._fail(error)
        if message.kind is not Kind.RESET:
            self._control.post(Kind.ANSWER, message.epoch)

    def _reset(self, message: Message) -> None:
        self._iterator = None
        self._epoch, self._turn = message.epoch, 0
        for outlet in self._outlets:
            outlet.begin(message.epoch, message.value)
            outlet.put(Kind.BEGIN, Packed())
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
        except BaseException as error:  # noqa: BLE001 - whatever the pipe raises
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
        self._outlets[self._turn].put(kind, packed)
        if self._counts is not None:
            self._counts.sending_s += perf_counter() - begin
            self._report()
        self._turn = (self._turn + 1) % len(self._outlets)
        if len(self._outlets) > 1 and sum(outlet.held for outlet in self._outlets) > _MAX_HELD:
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
            packed = [Packed() if extras is None else pack(extras) for _ in self._outlets]
        except Exception as error:  # noqa: BLE001 - objects can raise anything when pickled
            self._fail(error, " after the last item")
            return
        for outlet, last in zip(self._outlets, packed, strict=True):
            outlet.put(Kind.END, last)

    def _fail(self, error: BaseException, doing: str = "") -> None:
        if isinstance(error, Exception) and not doing:
            note_place(error, None, None, at_work(self._pipe))
        self._iterator = None
        self._report(now=True)
        failure = Failure.of(error, f"in {self._name}{doing}")
        for outlet in self._outlets:
            outlet.put(Kind.FAILED, pack(failure))

    def _report(self, *, now: bool = False) -> None:
        """Send what the pipe has counted, if it is time to."""
        if self._counts is not None and (report := self._counts.take(self._pipe, now=now)) is not None:
            self._outlets[0].put(Kind.STATS, pack(report))


def _offer_memory(pipe: Any, memory: Memory) -> None:
    """Tell the last stage, those of loaders left out, which memory is sent without a copy."""
    while isinstance(pipe, Stage) and pipe.hidden:
        pipe = parents(pipe)[0]
    if isinstance(pipe, Stage):
        pipe.use_memory(memory)


def _drain(channel: Channel, hear: Callable[[Message], None]) -> bool:
    """Pass on all messages that are here. False if nothing more can come."""
    try:
        while (message := channel.receive()) is not None:
            hear(message)
    except EOFError:
        return False
    return True
