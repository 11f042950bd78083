"""Delivery of an answer under faults: late, slow, cut, reset or changed."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import time
from collections.abc import Iterator
from math import inf
from operator import itemgetter

from .faults import Bandwidth, Cut, CutSlow, FlipBit, Plan, Reset, Stall, WrongChecksum
from .files import BLOCK_BYTES
from .http import Reply, chunk, head_of

TICK_S = 0.005
_SIOCOUTQ = 0x5411
_DRAIN_DEADLINE_S = 5.0


class EndedError(Exception):
    """The fault has ended the connection."""


def deliver(sock: socket.socket, reply: Reply, plan: Plan, *, method: str) -> None:
    """Send `reply` by `plan`; `EndedError` if the plan ended the connection."""
    stops: list[Cut | Reset | Stall] = [*plan.all(Cut), *plan.all(Reset), *plan.all(Stall)]
    flips = plan.all(FlipBit)
    chunked = reply.size is None
    if chunked and any(action.at < 0 for action in [*stops, *flips]):
        reply.body = b"".join(reply.blocks())  # its end is not known before it was made
    size = reply.size or 0
    if method == "HEAD":
        reply.body, size, chunked = b"", 0, False
    length = "Transfer-Encoding: chunked\r\n" if chunked else f"Content-Length: {size}\r\n"
    checksum = reply.headers.get("Ais-Checksum-Value")
    if checksum and plan.last(WrongChecksum):
        reply.headers["Ais-Checksum-Value"] = ("1" if checksum[0] == "0" else "0") + checksum[1:]
    sock.sendall(head_of(reply, "" if method == "HEAD" else length))
    ends = sorted(((_absolute(stop.at, size), stop) for stop in stops), key=itemgetter(0))
    bits = [(_absolute(flip.at, size), 1 << flip.bit) for flip in flips]
    pace = _Pace(min((limit.bytes_per_s or inf for limit in plan.all(Bandwidth)), default=inf))
    slow = plan.last(CutSlow)
    if slow is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, slow.buffer)
        sock.settimeout(slow.seconds)
    for block in reply.blocks():
        for piece in pace.pieces(_flipped(block, reply.sent, bits)):
            rest = piece
            while ends and ends[0][0] < reply.sent + len(rest):
                at, stop = ends.pop(0)
                head, rest = rest[: at - reply.sent], rest[at - reply.sent :]
                _write(sock, reply, head, chunked=chunked)
                _end(sock, stop)
            _write(sock, reply, rest, chunked=chunked)
            pace.wait(reply.sent)
    for at, stop in ends:
        if at <= reply.sent:
            _end(sock, stop)
    if chunked:
        sock.sendall(b"0\r\n\r\n")
    sock.settimeout(None)


def _absolute(at: int, size: int) -> int:
    return max(0, at + size) if at < 0 else at


def _flipped(block: bytes, start: int, flips: list[tuple[int, int]]) -> bytes:
    hits = [(at - start, mask) for at, mask in flips if start <= at < start + len(block)]
    if not hits:
        return block
    changed = bytearray(block)
    for at, mask in hits:
        changed[at] ^= mask
    return bytes(changed)


def _write(sock: socket.socket, reply: Reply, view: memoryview, *, chunked: bool) -> None:
    """Send all; cut off a client that takes no byte for the socket's timeout."""
    left = memoryview(chunk(bytes(view))) if chunked and view else view
    try:
        while left:
            left = left[sock.send(left) :]
    except TimeoutError:
        _reset_when_closed(sock)
        raise EndedError from None
    reply.sent += len(view)


class _Pace:
    """Limits the rate of sending, in pieces of a few milliseconds."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate = bytes_per_s
        self.begun = time.monotonic()
        self.piece = int(max(4096, min(BLOCK_BYTES, bytes_per_s * TICK_S)))

    def pieces(self, block: bytes) -> Iterator[memoryview]:
        view = memoryview(block)
        for start in range(0, len(view), self.piece):
            yield view[start : start + self.piece]

    def wait(self, sent: int) -> None:
        ahead = self.begun + sent / self.rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def _end(sock: socket.socket, stop: Cut | Reset | Stall) -> None:
    if isinstance(stop, Stall):
        poll = select.poll()
        poll.register(sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
        if poll.poll(stop.seconds * 1000 if stop.seconds else None):  # the client has hung up
            raise EndedError
        return
    if isinstance(stop, Reset):
        # The queue is sent first, as a reset drops it.
        deadline = time.monotonic() + _DRAIN_DEADLINE_S
        while _unsent(sock) and time.monotonic() < deadline:
            time.sleep(0.001)
        _reset_when_closed(sock)
    raise EndedError


def _reset_when_closed(sock: socket.socket) -> None:
    """Make close() send RST and drop the queue: linger for 0 seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _unsent(sock: socket.socket) -> int:
    try:
        raw = fcntl.ioctl(sock.fileno(), _SIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return 0
    return int(struct.unpack("i", raw)[0])
