"""End of a response."""

from __future__ import annotations

import re
from contextlib import suppress
from http.client import (
    HTTPException,
    HTTPMessage,
    HTTPResponse,
    IncompleteRead,
    RemoteDisconnected,
    UnknownProtocol,
    parse_headers,
)
from io import BytesIO
from typing import Any

from urllib3.response import BaseHTTPResponse

_INTERIM = 32  # answers before the answer: 100 Continue, 102 Processing, 103 Early Hints
_LINE = (64 << 10) + 1  # bytes; http.client refuses a line of so many
_LINES = 101  # http.client refuses a head of so many
_OLD = ("HTTP/1.0", "HTTP/0.9")
_NO_BODY = (204, 304)
# A usual line. All others are left to http.client.
_FIELD = re.compile(r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n]*)\r\n", re.MULTILINE)


class _Head:
    """Lines of a response's head; an end before the empty line is an error."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._lines.readline(limit)
        if not line.endswith(b"\n") and len(line) != limit:
            raise RemoteDisconnected("the connection was closed within the head of the response")
        return line

    def fields(self) -> HTTPMessage:
        """Return the header fields.

        http.client takes three times as long for usual ones.
        """
        lines = [self.readline(_LINE)]
        while lines[-1] not in (b"\r\n", b"\n") and len(lines) < _LINES and len(lines[-1]) < _LINE:
            lines.append(self.readline(_LINE))
        head = b"".join(lines)
        found = _FIELD.findall(head.decode("latin-1"))
        if lines[-1] != b"\r\n" or len(found) != len(lines) - 1 or len(lines) == _LINES:
            return parse_headers(BytesIO(head))
        message = HTTPMessage()
        for name, value in found:
            message.set_raw(name, value.lstrip(" \t"))
        return message

    def __getattr__(self, name: str) -> object:
        return getattr(self._lines, name)


class StrictResponse(HTTPResponse):
    """A response with a complete head and chunks framed by the standard."""

    def begin(self) -> None:
        """Read the head."""
        body = self.fp
        head = _Head(body)
        self.fp = head  # type: ignore[assignment]
        try:
            version, self.status, reason = self._read_status()
            if version not in _OLD and not version.startswith("HTTP/1."):
                raise UnknownProtocol(version)
            self.headers = self.msg = head.fields()
        finally:
            if self.fp is head:  # type: ignore[comparison-overlap]
                self.fp = body
        self.code, self.reason = self.status, reason.strip()
        self.version = 10 if version in _OLD else 11
        self._find_end()

    def _find_end(self) -> None:
        """Determine where the body ends."""
        self.chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        self.chunk_left = self.length = None
        if not self.chunked:
            with suppress(ValueError):
                length = int(self.headers.get("Content-Length", ""))
                self.length = None if length < 0 else length
        if self.status in _NO_BODY or self.status < 200 or self._method == "HEAD":  # type: ignore[attr-defined]
            self.length = 0
        endless = not self.chunked and self.length is None
        self.will_close = endless or self._check_close()  # type: ignore[attr-defined]

    def _read_status(self) -> tuple[str, int, str]:
        """Return the first final status; http.client accepts any but 100."""
        for _ in range(_INTERIM):
            status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            # 101 is not an answer to these requests: an error.
            if not 100 <= status[1] < 200 or status[1] == 101:
                return status
            parse_headers(self.fp)
        raise HTTPException(f"more than {_INTERIM} interim answers, and no answer")

    def _safe_read(self, amt: int) -> bytes:
        data: bytes = super()._safe_read(amt)  # type: ignore[misc]
        # Between two chunks, http.client reads two bytes and does not look at them.
        if getattr(self, "chunk_left", None) == 0 and amt == 2 and data != b"\r\n":
            raise IncompleteRead(data)
        return data

    def read_once(self, size: int) -> bytes:
        """Return the bytes of one read of the socket; ``b""`` ends the body."""
        left: int = self.length  # type: ignore[assignment]
        if not left:
            return b""
        data: bytes = self.fp.read1(min(size, left))
        if not data:
            raise RemoteDisconnected("the connection was closed")
        self.length = left - len(data)
        return data

    def read_into(self, view: memoryview) -> int:
        """Fill a part of `view` by one read of the socket; return 0 at the end.

        The body is not chunked.
        """
        if self.fp is None:
            return 0
        left: int | None = self.length  # None: the body ends with the connection
        count: int = self.fp.readinto1(view if left is None else view[:left])
        if left is not None:
            if left and not count:
                raise IncompleteRead(b"", left)
            self.length = left - count
        if not count or self.length == 0:
            self._close_conn()  # type: ignore[attr-defined]
        return count


def strict_body(response: BaseHTTPResponse) -> StrictResponse:
    """Return the strict response inside of a response.

    It is read without urllib3's layers, a dozen calls each time. urllib3 does not know that it was read: give the
    response back with `let_go`.
    """
    strict: StrictResponse = response._original_response  # type: ignore[attr-defined]
    return strict


def let_go(response: BaseHTTPResponse) -> None:
    """Release the connection: to the pool after a whole body, else closed."""
    if not response.closed:
        response.close()
    response.release_conn()


def plain_body(response: BaseHTTPResponse) -> StrictResponse | None:
    """Return the `strict_body` if its number of bytes is known, else None."""
    plain = strict_body(response)
    return plain if not plain.chunked and plain.length and plain.fp is not None else None
