"""HTTP/1.1 requests read from one socket: the head at once, the body only when somebody asks for it."""

from __future__ import annotations

import re
import socket
import string
from collections.abc import Iterator
from urllib.parse import quote, unquote, unquote_plus

__all__ = ["BadRequestError", "Body", "Connection", "HangupError", "Request"]

MAX_HEAD_BYTES = 64 * 1024
BLOCK_BYTES = 1 << 20
MAX_JSON_BYTES = 16 << 20

# RFC 9112, without what it lets a lenient server put up with: two readers of one message must not differ.
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_WORD}) ([^\x00-\x20\x7f]+) HTTP/1\.([01])")
_HEADER = re.compile(rf"({_WORD}):([^\x00-\x08\x0a-\x1f\x7f]*)")
_ABSOLUTE = re.compile(r"http://([^/?#]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class HangupError(Exception):
    """The peer closed the connection, or broke it, in the middle of a message."""


class BadRequestError(Exception):
    """What arrived is not HTTP."""


class Body:
    """The body of one request, still in the socket.

    A proxy answers a PUT with a redirect before it reads anything, so a body is read by whoever wants it,
    and `drain` throws away what nobody wanted, so that the next request on the connection can be read.
    """

    __slots__ = ("_asked", "_chunked", "_connection", "_expects", "_left", "_started")

    def __init__(self, connection: Connection, length: int, *, chunked: bool, expects: bool) -> None:
        self._connection = connection
        self._left = length
        self._chunked = chunked
        self._expects = expects
        self._started = False
        self._asked = not expects

    @property
    def pending(self) -> bool:
        """Whether bytes of this body may still be on the way."""
        return self._chunked or self._left > 0

    def blocks(self) -> Iterator[memoryview]:
        """Yield the body in views of a buffer that the next step overwrites."""
        if self._expects and self.pending:
            try:
                self._connection.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            except OSError as cause:
                raise HangupError("the connection broke before the body") from cause
            self._asked = True
        self._started = True
        if not self._chunked:
            yield from self._exactly()
            return
        while True:
            line = self._connection.read_line()
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise BadRequestError(f"not the size of a chunk: {line[:100]!r}")
            self._left = int(size[1], 16)
            if self._left == 0:
                self._skip_trailers()
                self._chunked = False
                return
            yield from self._exactly()
            if self._connection.read_line():
                raise BadRequestError("a chunk is longer than its size")

    def _skip_trailers(self) -> None:
        seen = 0
        while line := self._connection.read_line():
            seen += len(line)
            if seen > MAX_HEAD_BYTES:
                raise BadRequestError("what follows the body is too long")

    def _exactly(self) -> Iterator[memoryview]:
        connection = self._connection
        while self._left:
            block = connection.read_some(self._left)
            self._left -= len(block)
            yield block

    def read(self) -> bytes:
        """Return the whole body; for the JSON bodies of control requests."""
        out = bytearray()
        for block in self.blocks():
            out += block
            if len(out) > MAX_JSON_BYTES:
                raise BadRequestError("the body of a control request is too long")
        return bytes(out)

    def drain(self) -> bool:
        """Throw the rest away; `False` if the connection cannot be used again."""
        if not self.pending:
            return True
        if not self._asked or (self._chunked and self._started):
            return False
        for _ in self.blocks():
            pass
        return True


class Request:
    """One request: `path` items and `query` are decoded, header names are lower-case.

    `authority` is the host of a target in absolute form (``GET http://host/path``), else `None`.
    """

    __slots__ = ("authority", "body", "headers", "keep_alive", "method", "path", "query", "target")

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: Body,
        *,
        keep_alive: bool,
        authority: str | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive
        self.authority = authority
        path, _, query = target.partition("?")
        try:
            self.path = unquote(path, errors="strict") if "%" in path else path
            self.query = _parse_query(query) if query else {}
        except UnicodeDecodeError as cause:
            raise BadRequestError("the URL is not UTF-8") from cause


def _parse_query(query: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for item in query.split("&"):
        key, _, value = item.partition("=")
        if "%" in item or "+" in item:
            key = unquote_plus(key, errors="strict")
            value = unquote_plus(value, errors="strict")
        if key:
            out.setdefault(key, value)
    return out


class Connection:
    """The reading side of an accepted socket, with what was read ahead."""

    __slots__ = ("_ahead", "_block", "peer", "sock")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self._ahead = b""
        self._block: bytearray | None = None

    def next_request(self) -> Request | None:
        """Return the next request, or `None` when the peer has closed the connection between requests."""
        ahead = self._ahead
        while not 0 <= (end := ahead.find(b"\r\n\r\n")) <= MAX_HEAD_BYTES:
            if len(ahead) > MAX_HEAD_BYTES:
                raise BadRequestError("the head of the request is too long")
            try:
                data = self.sock.recv(65536)
            except OSError:
                return None
            if not data:
                return None
            ahead += data
        self._ahead = ahead[end + 4 :]
        return self._parse(ahead[:end].decode("latin-1"))

    def _parse(self, head: str) -> Request:
        first, *lines = head.split("\r\n")
        found = _REQUEST_LINE.fullmatch(first)
        if found is None:
            raise BadRequestError(f"not a request line of HTTP/1.1: {first[:100]!r}")
        method, target, minor = found.groups()
        headers = _headers(lines)
        if minor == "1" and "host" not in headers:
            raise BadRequestError("a request of HTTP/1.1 without Host")
        authority, target = _split_target(target)
        chunked = "transfer-encoding" in headers
        if chunked and (headers["transfer-encoding"].lower() != "chunked" or minor == "0"):
            raise BadRequestError(f"Transfer-Encoding: {headers['transfer-encoding'][:100]}")
        length = headers.get("content-length", "0")
        if chunked and "content-length" in headers:
            raise BadRequestError("Content-Length beside Transfer-Encoding")
        if not _LENGTH.fullmatch(length):
            raise BadRequestError(f"Content-Length: {length[:100]}")
        wish = headers.get("connection", "").lower()
        keep_alive = "close" not in wish and (minor == "1" or "keep-alive" in wish)
        expects = "100-continue" in headers.get("expect", "").lower()
        body = Body(self, int(length), chunked=chunked, expects=expects)
        return Request(method, target, headers, body, keep_alive=keep_alive, authority=authority)

    def read_some(self, most: int) -> memoryview:
        """Return at least one and at most `most` bytes of a body."""
        if self._ahead:
            taken, self._ahead = self._ahead[:most], self._ahead[most:]
            return memoryview(taken)
        if self._block is None:
            self._block = bytearray(BLOCK_BYTES)
        view = memoryview(self._block)[: min(most, BLOCK_BYTES)]
        try:
            count = self.sock.recv_into(view)
        except OSError as cause:
            raise HangupError("the connection broke in the body") from cause
        if not count:
            raise HangupError("the body ended before its length")
        return view[:count]

    def read_line(self) -> bytes:
        """Return the next line of a chunked body, without its end."""
        while (end := self._ahead.find(b"\r\n")) < 0:
            if len(self._ahead) > MAX_HEAD_BYTES:
                raise BadRequestError("a line of the body is too long")
            try:
                data = self.sock.recv(65536)
            except OSError as cause:
                raise HangupError("the connection broke in the body") from cause
            if not data:
                raise HangupError("the body ended inside a chunk")
            self._ahead += data
        line, self._ahead = self._ahead[:end], self._ahead[end + 2 :]
        return line


def _headers(lines: list[str]) -> dict[str, str]:
    """The fields by lower-case name. Several of one name are one list, but for those that may come once."""
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise BadRequestError(f"not a header: {line[:100]!r}")
        name, value = found[1].lower(), found[2].strip(" \t")
        before = headers.get(name)
        if before is None:
            headers[name] = value
        elif name == "host" or (name == "content-length" and value != before):
            raise BadRequestError(f"more than one {found[1]}")
        elif name != "content-length":
            headers[name] = f"{before}, {value}"
    return headers


def _split_target(target: str) -> tuple[str | None, str]:
    """The authority of a target in absolute form, and its path and query in ASCII."""
    authority = None
    if not target.startswith("/"):
        found = _ABSOLUTE.fullmatch(target)
        if found is None:
            raise BadRequestError(f"not a target of a request: {target[:100]!r}")
        authority, target = found.groups()
        if not target.startswith("/"):
            target = f"/{target}"
    if not target.isascii():  # what came as bare UTF-8
        target = quote(target.encode("latin-1"), safe=string.punctuation)
    return authority, target
