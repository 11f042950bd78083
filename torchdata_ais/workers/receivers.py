"""The pipes that receive: they stand where the graph was cut, and give the items of the processes on the other side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any

from torchdata_ais.errors import LoaderError, UsageError, WorkerDiedError
from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.workers.channel import Channel, HungUpError, Kind, Message

DISPATCH_CREDIT = 4
"""Items under way from the dispatching process to one worker.

Small on purpose: with messages of at most 32 KB they always fit into the socket, so that the dispatching process,
which serves all workers in turn, never has to wait for one of them to read.
"""


_DISPATCHER_GONE = "the dispatching process ended"


class _Live(IterDataPipe[Any]):
    """A pipe whose connection belongs to this process and never travels."""

    _live: Any = None

    def __getstate__(self) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name != "_live"}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)


class WorkerItems(_Live):
    """Yields the items of the worker processes: what `items` returns for each epoch."""

    def __init__(self, items: Callable[[], Iterator[Any]]) -> None:
        super().__init__()
        self._live = items

    def __iter__(self) -> Iterator[Any]:
        yield from self._live()


class Dispatched(_Live):
    """Yields, in a worker process, this worker's share of what the dispatching process sends."""

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
        """Tell the dispatching process that this worker wants no more of this epoch."""
        if not self._ended:
            _post(self._live, Kind.DONE, self._epoch)

    def __iter__(self) -> Iterator[Any]:
        epoch, channel = self._epoch, self._live
        if self._ended:
            raise UsageError.at(
                "a pipe after sharding_round_robin_dispatch reads its source a second time in one epoch, but the "
                "dispatching process gives every item once",
                todo="put `.cycle()` and the like before sharding_round_robin_dispatch",
            )
        _post(channel, Kind.CREDIT, epoch, DISPATCH_CREDIT)
        while True:
            message = self._next(channel, epoch)
            if message.kind is Kind.END:
                message.drop()
                self._ended = True
                return
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
