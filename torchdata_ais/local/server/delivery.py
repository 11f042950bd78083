"""Sending an answer as a fault wants it: late, slowly, cut, reset, stalled, with a flipped bit."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

from .actions import CutSlow
from .faults import Plan
from .files import BLOCK_BYTES, FileSlice
from .reply import Reply, chunk, head_of

TICK_S = 0.005
_SIOCOUTQ = 0x5411
_DRAIN_DEADLINE_S = 5.0


class EndedError(Exception):
    """The fault has ended the connection."""


def deliver(sock: _Sending, reply: Reply, plan: Plan, *, method: str) -> None:
    """Send `reply` under `plan`; `EndedError` if the plan ended the connection."""
    if plan.wrong_checksum:
        reply.headers = [_spoiled(header) for header in reply.headers]
    from_end = any(at < 0 for at, _, _ in plan.ends) or any(at < 0 for at, _ in plan.flips)
    size, blocks, chunked = _blocks(reply, from_end=from_end)
    if method == "HEAD":
        size, blocks = 0, iter(())
    extra = ""
    if method != "HEAD":
        extra = "Transfer-Encoding: chunked\r\n" if chunked else f"Content-Length: {size}\r\n"
    sock.sendall(head_of(reply, extra))
    ends = sorted((_absolute(at, size), how, seconds) for at, how, seconds in plan.ends)
    flips = [(_absolute(at, size), mask) for at, mask in plan.flips]
    pace = _Pace(plan.bytes_per_s)
    if plan.slow is not None:
        sock = _InTime(sock, plan.slow)
    for block in blocks:
        for piece in pace.pieces(_flipped(block, reply.sent, flips)):
            view = memoryview(piece)
            while ends and ends[0][0] < reply.sent + len(view):
                at, how, seconds = ends.pop(0)
                head, view = view[: at - reply.sent], view[at - reply.sent :]
                _write(sock, reply, head, chunked=chunked)
                _end(sock, how, seconds)
            _write(sock, reply, view, chunked=chunked)
            pace.wait(reply.sent)
    for at, how, seconds in ends:
        if at <= reply.sent:
            _end(sock, how, seconds)
    if chunked and method != "HEAD":
        sock.sendall(b"0\r\n\r\n")


def _absolute(at: int, size: int) -> int:
    return max(0, at + size) if at < 0 else at


def _blocks(reply: Reply, *, from_end: bool) -> tuple[int, Iterator[bytes], bool]:
    body = reply.body
    if isinstance(body, bytes):
        return len(body), iter((body,)), False
    if isinstance(body, FileSlice):
        return body.size, body.blocks(), False
    if from_end:  # which is not known before it was made
        whole = b"".join(body)
        return len(whole), iter((whole,)), True
    return 0, body, True


def _flipped(block: bytes, start: int, flips: list[tuple[int, int]]) -> bytes:
    hits = [(at - start, mask) for at, mask in flips if start <= at < start + len(block)]
    if not hits:
        return block
    changed = bytearray(block)
    for at, mask in hits:
        changed[at] ^= mask
    return bytes(changed)


def _spoiled(header: tuple[str, str]) -> tuple[str, str]:
    name, value = header
    if name == "Ais-Checksum-Value" and value:
        value = ("1" if value[0] == "0" else "0") + value[1:]
    return name, value


def _write(sock: _Sending, reply: Reply, view: memoryview, *, chunked: bool) -> None:
    if view:
        sock.sendall(chunk(bytes(view)) if chunked else view)
        reply.sent += len(view)


class _InTime:
    """A socket whose connection is reset when its other side takes no byte for some seconds."""

    def __init__(self, sock: _Sending, slow: CutSlow) -> None:
        self._sock: socket.socket = sock._sock if isinstance(sock, _InTime) else sock
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, slow.buffer)
        self._seconds = slow.seconds

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all, as fast as the other side takes it."""
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        while view:
            if not poll.poll(self._seconds * 1000):
                self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise EndedError
            with suppress(BlockingIOError):
                view = view[self._sock.send(view, socket.MSG_DONTWAIT) :]

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """As of a socket."""
        self._sock.setsockopt(level, option, value)

    def fileno(self) -> int:
        """As of a socket."""
        return self._sock.fileno()


_Sending = socket.socket | _InTime


class _Pace:
    """Keeps the bytes sent below a straight line in time, in pieces of a few milliseconds."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate = bytes_per_s
        self.begun = time.monotonic()
        self.piece = max(4096, min(BLOCK_BYTES, int(bytes_per_s * TICK_S)))

    def pieces(self, block: bytes) -> Iterator[bytes | memoryview]:
        if not self.rate:
            yield block
            return
        view = memoryview(block)
        for start in range(0, len(view), self.piece):
            yield view[start : start + self.piece]

    def wait(self, sent: int) -> None:
        if self.rate:
            ahead = self.begun + sent / self.rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)


def _end(sock: _Sending, how: str, seconds: float) -> None:
    if how == "stall":
        if _client_left(sock, seconds):
            raise EndedError
        return
    if how == "reset":
        # Lingering for 0 seconds makes close() send RST, and drops what is still queued: let that go first.
        deadline = time.monotonic() + _DRAIN_DEADLINE_S
        while _unsent(sock) and time.monotonic() < deadline:
            time.sleep(0.001)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise EndedError


def _unsent(sock: _Sending) -> int:
    try:
        raw = fcntl.ioctl(sock.fileno(), _SIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return 0
    return int(struct.unpack("i", raw)[0])


def _client_left(sock: _Sending, seconds: float) -> bool:
    """Wait until the client hangs up; `False` when `seconds` (if not 0) have passed before."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(seconds * 1000 if seconds else None))
