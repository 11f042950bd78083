"""HTTP/1.1 requests and responses.

The standard library's parser (`http.client.parse_headers`) takes a bare line feed for the end of a line, joins folded
lines, and drops all lines after a malformed one. Another reader would understand such a message differently, so heads
are read here, strictly by RFC 9112.
"""

from __future__ import annotations

import html
import os
import re
import socket
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from io import BufferedReader
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from .files import BLOCK_BYTES, FileSlice

MAX_HEAD_BYTES = 64 * 1024
MAX_JSON_BYTES = 16 << 20

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_WORD}) ([^\x00-\x20\x7f]+) HTTP/1\.([01])")
_HEADER = re.compile(rf"({_WORD}):([^\x00-\x08\x0a-\x1f\x7f]*)")
_ABSOLUTE = re.compile(r"http://([^/?#]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class HangupError(Exception):
    """The peer closed the connection, or broke it."""


class BadRequestError(Exception):
    """The received bytes are not HTTP."""


class Body:
    """The body of one request, still in the socket.

    A proxy answers a PUT with a redirect before it reads anything. So a body is read by its handler, and `drain`
    discards an unread body, so that the next request on the connection can be read. A client not `asked` for it waits
    for ``100 Continue``.
    """

    __slots__ = ("_asked", "_chunked", "_connection", "_in_chunk", "_left")

    def __init__(self, connection: Connection, length: int, *, chunked: bool, asked: bool) -> None:
        self._connection = connection
        self._left = length
        self._chunked = chunked
        self._in_chunk = False
        self._asked = asked

    @property
    def announced(self) -> int:
        """Bytes announced by the head and not read; 0 for a body in chunks."""
        return self._left

    @property
    def pending(self) -> bool:
        """Report whether bytes of this body may still be on the way."""
        return self._chunked or self._left > 0

    @property
    def can_be_drained(self) -> bool:
        """Report whether the next request can follow.

        A client without an answer to its Expect header may or may not send the body.
        """
        return self._asked or not self.pending

    def blocks(self) -> Iterator[memoryview]:
        """Yield the rest of the body in views of one buffer, written each time."""
        if not self.can_be_drained:
            self._asked = True
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while self.pending:
            while self._left:
                block = self._connection.read_some(self._left)
                self._left -= len(block)
                yield block
            if self._chunked:
                self._next_chunk()

    def _next_chunk(self) -> None:
        if self._in_chunk and self._connection.read_line():
            raise BadRequestError("a chunk is longer than its size")
        line = self._connection.read_line()
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise BadRequestError(f"not the size of a chunk: {line[:100]!r}")
        self._in_chunk = True
        self._left = int(size[1], 16)
        if not self._left:
            self._connection.read_lines()  # trailers
            self._chunked = False

    def read(self) -> bytes:
        """Return the whole body; for the JSON bodies of control requests."""
        out = bytearray()
        for block in self.blocks():
            out += block
            if len(out) > MAX_JSON_BYTES:
                raise BadRequestError("the body of a control request is too long")
        return bytes(out)

    def drain(self) -> None:
        """Throw the rest away."""
        for _ in self.blocks():
            pass


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        target: Its target as received, with bare UTF-8 quoted.
        query: The decoded query parameters; of several of one name, the first.
        headers: By lower-case names.
        authority: The host of a target in absolute form (``GET http://host/path``), else `None`.
    """

    method: str
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Body
    keep_alive: bool
    authority: str | None


class Connection:
    """The reading side of an accepted socket, with its read-ahead buffer."""

    __slots__ = ("_block", "_file", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = BufferedReader(sock.makefile("rb", buffering=0), MAX_HEAD_BYTES)
        self._block: memoryview | None = None

    def close(self) -> None:
        """Release the socket, which is open for as long as this is."""
        self._file.close()

    def next_request(self) -> Request:
        """Return the next request."""
        lines = [line.decode("latin-1") for line in self.read_lines()] or [""]
        found = _REQUEST_LINE.fullmatch(lines[0])
        if found is None:
            raise BadRequestError(f"not a request line of HTTP/1.1: {lines[0][:100]!r}")
        method, target, minor = found.groups()
        headers = _headers(lines[1:])
        if minor == "1" and "host" not in headers:
            raise BadRequestError("a request of HTTP/1.1 without Host")
        authority, target = _split_target(target)
        path, _, query = target.partition("?")
        try:
            path = unquote(path, errors="strict")
            parameters = dict(reversed(parse_qsl(query, keep_blank_values=True, errors="strict")))
        except UnicodeDecodeError as cause:
            raise BadRequestError("the URL is not UTF-8") from cause
        wish = headers.get("connection", "").lower()
        keep_alive = "close" not in wish and (minor == "1" or "keep-alive" in wish)
        body = self._body(headers, minor)
        return Request(method, target, path, parameters, headers, body, keep_alive, authority)

    def _body(self, headers: dict[str, str], minor: str) -> Body:
        coding = headers.get("transfer-encoding")
        if coding is not None and (coding.lower() != "chunked" or minor == "0"):
            raise BadRequestError(f"Transfer-Encoding: {coding[:100]}")
        if coding is not None and "content-length" in headers:
            raise BadRequestError("Content-Length beside Transfer-Encoding")
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length):
            raise BadRequestError(f"Content-Length: {length[:100]}")
        asked = "100-continue" not in headers.get("expect", "").lower()
        return Body(self, int(length), chunked=coding is not None, asked=asked)

    def send(self, data: bytes) -> None:
        """Send bytes to the peer."""
        try:
            self._sock.sendall(data)
        except OSError as cause:
            raise HangupError("the connection broke before the body") from cause

    def read_some(self, most: int) -> memoryview:
        """Return at least one and at most `most` bytes of a body."""
        if self._block is None:
            self._block = memoryview(bytearray(BLOCK_BYTES))
        try:
            count = self._file.readinto1(self._block[:most])
        except OSError as cause:
            raise HangupError("the connection broke in the body") from cause
        if not count:
            raise HangupError("the body ended before its length")
        return self._block[:count]

    def read_lines(self) -> list[bytes]:
        """Return the lines of a head or a trailer, without the empty last one."""
        lines = []
        left = MAX_HEAD_BYTES
        while line := self.read_line(left):
            lines.append(line)
            left -= len(line) + 2
        return lines

    def read_line(self, most: int = MAX_HEAD_BYTES) -> bytes:
        """Return the next line without its end."""
        try:
            line = self._file.readline(max(2, most))
        except OSError as cause:
            raise HangupError("the connection broke") from cause
        if line.endswith(b"\r\n"):
            return line[:-2]
        if line.endswith(b"\n") or len(line) >= most:
            raise BadRequestError("a line that is too long, or ends in a bare line feed")
        raise HangupError("the connection was closed")


def _headers(lines: list[str]) -> dict[str, str]:
    """The fields by lower-case name.

    Several of one name are one list, but for those that may come once.
    """
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
    """Authority of an absolute target, and its path and query in ASCII."""
    authority = None
    if not target.startswith("/"):
        found = _ABSOLUTE.fullmatch(target)
        if found is None:
            raise BadRequestError(f"not a target of a request: {target[:100]!r}")
        authority, target = found.groups()
        if not target.startswith("/"):
            target = f"/{target}"
    if not target.isascii():  # from bare UTF-8
        target = quote(target.encode("latin-1"), safe=string.punctuation)
    return authority, target


_REASONS = {status.value: status.phrase for status in HTTPStatus}
# AIStore is written in Go, whose phrase for this one is the older one.
_REASONS[416] = "Requested Range Not Satisfiable"

SMALL_BYTES = 64 * 1024
SENDFILE_BYTES = 8 << 20
UNCHUNKED_BYTES = 2048  # a streamed body up to this has a Content-Length, as in Go's server


@dataclass(slots=True)
class Reply:
    """One answer.

    A body of unknown length is an iterator of blocks; with `chunked` it may not be joined.

    `sent` counts the bytes of body that went out so far.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileSlice | Iterator[bytes] = b""
    chunked: bool = False
    sent: int = 0

    @property
    def size(self) -> int | None:
        """Number of bytes of its body; `None` if it is unknown before its end."""
        if isinstance(self.body, bytes):
            return len(self.body)
        return self.body.size if isinstance(self.body, FileSlice) else None

    def blocks(self) -> Iterator[bytes]:
        """Yield the body."""
        if isinstance(self.body, bytes):
            return iter((self.body,))
        return self.body.blocks() if isinstance(self.body, FileSlice) else self.body

    @classmethod
    def text(cls, text: str, status: int = 200) -> Reply:
        """A bare text, such as the id of a job."""
        return cls(status, {"Content-Type": "text/plain; charset=utf-8"}, text.encode())

    @classmethod
    def json(cls, value: object, content_type: str = "application/json; charset=utf-8") -> Reply:
        """A JSON value in AIStore's compact form."""
        return cls(200, {"Content-Type": content_type}, msgspec.json.encode(value))

    @classmethod
    def plain_json(cls, value: object) -> Reply:
        """JSON that AIStore writes without a type: Go guesses text from the bytes."""
        return cls.json(value, "text/plain; charset=utf-8")

    @classmethod
    def redirect(cls, status: int, location: str, method: str) -> Reply:
        """A redirect as Go writes it: with a small HTML body for GET only."""
        headers = {"Content-Type": "text/html; charset=utf-8"} if method in ("GET", "HEAD") else {}
        body = b""
        if method == "GET":
            body = f'<a href="{html.escape(location)}">{_REASONS[status]}</a>.\n\n'.encode()
        return cls(status, headers | {"Location": location}, body)


def head_of(reply: Reply, extra: str = "") -> bytes:
    """The status line and the headers."""
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}"]
    lines += [f"{name}: {_one_line(value)}" for name, value in reply.headers.items()]
    lines.append(f"Date: {formatdate(usegmt=True)}")
    return ("\r\n".join(lines) + "\r\n" + extra + "\r\n").encode()


def _one_line(value: str) -> str:
    """A header's value without line breaks, which would start a header."""
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def is_sent_at_once(reply: Reply) -> bool:
    """Return whether `send` needs one system call for head and body."""
    body = reply.body
    return isinstance(body, bytes) or (isinstance(body, FileSlice) and body.size <= SMALL_BYTES)


def send(sock: socket.socket, reply: Reply, *, method: str) -> None:
    """Send `reply` whole, counting in `reply.sent` the bytes of its body."""
    body = reply.body
    if method == "HEAD":
        sock.sendall(head_of(reply))
    elif isinstance(body, bytes):
        sock.sendall(head_of(reply, f"Content-Length: {len(body)}\r\n") + body)
        reply.sent = len(body)
    elif isinstance(body, FileSlice):
        _send_file(sock, reply, body)
    else:
        _send_blocks(sock, reply, body)


def _send_file(sock: socket.socket, reply: Reply, body: FileSlice) -> None:
    head = head_of(reply, f"Content-Length: {body.size}\r\n")
    if body.size <= SMALL_BYTES:
        sock.sendall(head + os.pread(body.fd, body.size, body.offset))
        reply.sent = body.size
        return
    sock.sendall(head, socket.MSG_MORE if hasattr(socket, "MSG_MORE") else 0)
    out = sock.fileno()
    while reply.sent < body.size:
        count = os.sendfile(
            out, body.fd, body.offset + reply.sent, min(body.size - reply.sent, SENDFILE_BYTES)
        )
        if not count:
            raise OSError("the file became shorter while it was sent")
        reply.sent += count


def _send_blocks(sock: socket.socket, reply: Reply, blocks: Iterator[bytes]) -> None:
    first = bytearray()
    for block in blocks:
        first += block
        if len(first) > UNCHUNKED_BYTES or (reply.chunked and first):
            break
    else:
        sock.sendall(head_of(reply, f"Content-Length: {len(first)}\r\n") + first)
        reply.sent = len(first)
        return
    sock.sendall(head_of(reply, "Transfer-Encoding: chunked\r\n") + chunk(bytes(first)))
    reply.sent = len(first)
    for block in blocks:
        if block:
            sock.sendall(chunk(block))
            reply.sent += len(block)
    sock.sendall(b"0\r\n\r\n")


def chunk(block: bytes) -> bytes:
    """One block in the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(block), block)
