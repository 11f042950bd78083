"""Messages over a socket pair: small, in order, with file descriptors.

A message is a fixed header, a payload, and the descriptors that belong to it. A loss within a message raises. Reading
never blocks. Writing blocks only while the other side is alive. A channel is closed by `hang_up`, which the other side
sees as the end of the stream even if some forked process still holds a copy of the socket.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from torchdata_ais.errors import LoaderError
from torchdata_ais.workers.pickling import Packed, pack, unpack

_HEADER = struct.Struct("<BBHHHIIQ")
_CHUNK = 64 << 10
_FD_SIZE = array.array("i").itemsize
_ANCILLARY = socket.CMSG_SPACE(253 * _FD_SIZE)
_RECEIVE_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class HungUpError(Exception):
    """The other side of a channel is gone, or has hung up."""


class Kind(IntEnum):
    """Kinds of messages."""

    # towards the process that produces
    RESET = 1
    """Begin an epoch; `value` is the first credit."""
    CREDIT = 2
    """Send `value` items more in this epoch."""
    DONE = 3
    """No more items of this epoch are wanted."""
    PAUSE = 4
    RESUME = 5
    LIMIT = 6

    # towards the process that consumes
    BEGIN = 16
    """Start of an epoch; all of older epochs is over."""
    ITEM = 17
    """One item."""
    TAGGED = 18
    """One item with the extras of the pipe's tail."""
    END = 19
    """The epoch's items are all sent; carries the last extras."""
    FAILED = 20
    """The pipe raised in this epoch."""
    BROKEN = 21
    """The process cannot continue, in any epoch."""
    ANSWER = 22
    """PAUSE, RESUME or LIMIT is done."""
    STATS = 23
    """The pipe's counts so far, of all epochs."""


class Message(NamedTuple):
    """A message as it arrived; its content is unpickled on request only."""

    kind: Kind
    epoch: int
    value: int
    packed: Packed

    def load(self) -> Any:
        """Rebuild the payload. Only once, and only if `drop` was not called."""
        return unpack(self.packed)

    def drop(self) -> None:
        """Give up the payload: its shared memory is freed."""
        self.packed.drop()


class Channel:
    """One end of a connection between two processes; it owns the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = bytearray()
        self._start = 0
        self._fds: deque[int] = deque()
        self._sending = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return this process's end, and the socket for the other's `Channel`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def fileno(self) -> int:
        """Return the descriptor to wait on; -1 once closed."""
        return self._sock.fileno()

    def post(self, kind: Kind, epoch: int = 0, value: int = 0, load: object = None) -> None:
        """Pickle `load`, if it is not None, and send. See `send`."""
        self.send(kind, epoch, value, Packed() if load is None else pack(load))

    def send(
        self, kind: Kind, epoch: int, value: int, packed: Packed, alive: Callable[[], bool] | None = None
    ) -> None:
        """Send one message and close its descriptors.

        Blocks while the socket is full. `alive` is called about twice a second then, and False ends the wait.

        Raises:
            HungUpError: The other side is gone, or has hung up.
        """
        header = _HEADER.pack(
            kind,
            packed.in_file,
            len(packed.fds),
            packed.buffers,
            packed.shared,
            epoch,
            value,
            len(packed.payload),
        )
        data = memoryview(header + packed.payload)
        try:
            with self._sending:
                fds: tuple[int, ...] = packed.fds
                while data:
                    sent = self._send_some(data, fds)
                    if sent:
                        data, fds = data[sent:], ()
                    elif alive is not None and not alive():
                        raise HungUpError("the other side is gone")
        except OSError as error:
            raise HungUpError("the other side is gone") from error
        finally:
            packed.close()

    def _send_some(self, data: memoryview, fds: tuple[int, ...]) -> int:
        try:
            if fds:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
                return self._sock.sendmsg([data], [rights], socket.MSG_DONTWAIT)
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            poll = select.poll()
            poll.register(self._sock, select.POLLOUT)
            poll.poll(500)
        except OSError as error:
            # The user's descriptors under way are at their limit: the other side has to take some first.
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(0.005)
        return 0

    def receive(self) -> Message | None:
        """Return the next message if it is here, else None. Never blocks.

        Raises:
            EOFError: The other side is gone, or hung up.
            LoaderError: This process has no file descriptors left for the message.
        """
        while True:
            message = self._parse()
            if message is not None:
                return message
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(_CHUNK, _ANCILLARY, _RECEIVE_FLAGS)
            except BlockingIOError:
                return None
            except OSError as error:
                raise EOFError("the channel is closed") from error
            for level, kind, rights in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    whole = len(rights) - len(rights) % _FD_SIZE
                    self._fds.extend(array.array("i", rights[:whole]))
            if flags & socket.MSG_CTRUNC:
                raise LoaderError.at(
                    "no file descriptors left in this process to receive a batch's shared memory",
                    todo="raise the limit (`ulimit -n`), hold fewer batches, or make fewer, larger tensors of a batch",
                )
            if not data:
                raise EOFError("the other side is gone")
            self._received += data

    def _parse(self) -> Message | None:
        available = len(self._received) - self._start
        if available < _HEADER.size:
            return None
        head = _HEADER.unpack_from(self._received, self._start)
        kind, in_file, fds, buffers, shared, epoch, value, length = head
        if available < _HEADER.size + length:
            return None
        begin = self._start + _HEADER.size
        payload = bytes(memoryview(self._received)[begin : begin + length])
        self._start = begin + length
        if self._start == len(self._received) or self._start > _CHUNK:
            del self._received[: self._start]
            self._start = 0
        packed = Packed(
            payload, tuple(self._fds.popleft() for _ in range(fds)), buffers, bool(in_file), shared
        )
        return Message(Kind(kind), epoch, value, packed)

    def hang_up(self) -> None:
        """End the connection for all copies of the socket, and close this one."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Close this process's copy of the socket, and messages not taken yet."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())
