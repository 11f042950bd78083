"""A body in chunks, taken apart out of one buffer: few reads of the socket, and one copy of each byte."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from io import BytesIO
from typing import Any

_BUFFER = (
    256 << 10
)  # taken from the socket at once: each read costs system calls, and a turn of the interpreter
_ROOM = 64 << 10  # in a buffer, that is worth receiving into
_MOST_PARTS = 1024  # that lie in buffers, of what is asked for; beyond that they are put together
_MOST_BYTES = 512 << 10
_LINE = 4 << 10  # of a chunk's length with its extensions, or a trailer
_TRAILERS = 100
_FIRST = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\n]*)?\r\n")
_NEXT = re.compile(rb"\r\n" + _FIRST.pattern)  # the end of the chunk before stands first
_NO_LENGTH = re.compile(rb".{2}[^\n]*\n", re.DOTALL)  # a line, and it was not taken for one


class _Spare(threading.local):
    """The buffer that the last body of this thread used."""

    buffer: bytearray | None = None


_spare = _Spare()


class ChunkedBody:
    """Reads the body of a response that comes in chunks, in place of `http.client`.

    That reads 8 KiB and the rest of a chunk one after the other, and copies what it puts together once more.

    Args:
        response: One of whose body nothing was read. Its connection can be used again when this came to the end.

    Memory: 512 KiB, of which the next body that the thread reads uses one half again; at most 512 KiB more where that
    much is asked for at once.
    """

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._source: Any = response.fp
        # Only while bytes are taken, so that there is no circle of references.
        self._receive: Callable[[memoryview], int] | None = None
        self._buffer = _spare.buffer or bytearray(_BUFFER)
        _spare.buffer = None
        self._view = memoryview(self._buffer)
        self._at = self._end = 0  # what is left in the buffer
        self._parts: list[memoryview] = []  # of what is asked for, in this buffer and those that are full
        self._full: list[bytearray] = []
        self._free: bytearray | None = None
        self._left = 0  # of the chunk
        self._begins = _FIRST
        self._over = False

    def take(self, size: int, receive: Callable[[memoryview], int] | None = None) -> bytes:
        """Return the next `size` bytes; fewer only at the end of the body.

        Args:
            size: How many.
            receive: Called in place of `received`, which it calls.

        Raises:
            HTTPException: The body broke off, or is not framed as the standard says.
        """
        self._receive = receive or self.received
        parts, came, put = self._parts, 0, 0
        whole: BytesIO | None = None
        try:
            while came < size and (self._left or self._next_chunk()):
                at, end, left = self._at, self._end, self._left
                if at == end:
                    self._fill()
                    continue
                count = size - came
                if count > left:
                    count = left
                if count > end - at:
                    count = end - at
                parts.append(self._view[at : at + count])
                self._at = at + count
                self._left = left - count
                came += count
                if came - put >= _MOST_BYTES or len(parts) >= _MOST_PARTS:
                    whole = whole or BytesIO()
                    whole.writelines(parts)
                    put = came
                    self._let_go()
            if whole is None:
                return b"".join(parts)
            whole.writelines(parts)
            return whole.getvalue()  # without a copy
        finally:
            self._receive = None
            self._let_go()

    def _let_go(self) -> None:
        """Forget the parts; keep one of the buffers they lay in."""
        self._parts.clear()
        if self._full:
            self._free = self._full.pop()
            self._full.clear()

    def _next_chunk(self) -> bool:
        """Go on to the next chunk; return False at the end of the body."""
        if self._over:
            return False
        while (found := self._begins.match(self._buffer, self._at, self._end)) is None:
            if self._end - self._at > _LINE or _NO_LENGTH.match(self._buffer, self._at, self._end):
                raise HTTPException("the length of a chunk is no number")
            self._fill()
        self._at = found.end()
        self._begins = _NEXT
        self._left = int(found[1], 16)
        if self._left:
            return True
        for _ in range(_TRAILERS):
            if not self._line():
                break
        else:
            raise HTTPException(f"more than {_TRAILERS} trailers follow the body")
        self._over = True
        _spare.buffer = self._buffer
        self._response.chunk_left = None
        self._response._close_conn()  # type: ignore[attr-defined]
        return False

    def _line(self) -> bytes:
        """Return the next line, without its end."""
        while True:
            stop = self._buffer.find(b"\r\n", self._at, self._end)
            if stop >= 0:
                line = bytes(self._view[self._at : stop])
                self._at = stop + 2
                return line
            if self._end - self._at > _LINE:
                raise HTTPException("a line between chunks does not end")
            self._fill()

    def _fill(self) -> None:
        """Receive more behind what is left in the buffer."""
        kept = self._end - self._at
        if not kept and not self._parts:
            self._at = self._end = 0
        elif _BUFFER - self._end < _ROOM:
            rest = bytes(self._view[self._at : self._end])  # a part of a line
            if self._parts:
                self._full.append(self._buffer)
                self._buffer, self._free = self._free or bytearray(_BUFFER), None
                self._view = memoryview(self._buffer)
            self._view[:kept] = rest
            self._at, self._end = 0, kept
        count = self._receive(self._view[self._end :]) if self._receive is not None else 0
        if not count:
            raise RemoteDisconnected("the connection was closed within the body")
        self._end += count

    def received(self, view: memoryview) -> int:
        """Fill `view` with what has come, or comes next; return how many bytes, 0 at the end of the connection."""
        if self._source is self._response.fp:  # what came with the head
            early: bytes = self._source.read1(len(view))
            self._source = self._source.raw
            view[: len(early)] = early
            if early:
                return len(early)
        count: int = self._source.readinto(view)
        return count
