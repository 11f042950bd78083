"""Where produced items go: to one consumer, in order, as far as it has given credit."""

from __future__ import annotations

from collections import deque

from torchdata_ais.workers.channel import Channel, HungUpError, Kind, Message
from torchdata_ais.workers.pickling import Packed


class Outlet:
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
    def hungry(self) -> bool:
        """Whether the next item that is made for it could be sent at once."""
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
            self.hear(message)

    def hear(self, message: Message) -> None:
        """Take credit, or notice that no more items are wanted."""
        if message.epoch > self._epoch:  # the worker has heard of the new epoch before us
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
        """Send the message when its turn comes and there is credit; items cost one."""
        if self._done or not self.open:
            packed.drop()
            return
        self._queue.append((kind, packed))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent."""
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
