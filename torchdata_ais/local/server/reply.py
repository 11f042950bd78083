"""Answers, and how they go out: the head with a small body in one write, files by sendfile."""

from __future__ import annotations

import html
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import msgspec

from .files import FileSlice

_REASONS = {status.value: status.phrase for status in HTTPStatus}
# AIStore is written in Go, whose phrase for this one is the older one.
_REASONS[416] = "Requested Range Not Satisfiable"

SMALL_BYTES = 64 * 1024
SENDFILE_BYTES = 8 << 20
UNCHUNKED_BYTES = 2048
"""Up to here a streamed body is sent with a Content-Length, beyond in chunks, as Go's server does."""


@dataclass(slots=True)
class Reply:
    """One answer. A body of unknown length is an iterator of blocks; `chunked` says it may not be joined.

    `sent` counts the bytes of body that went out so far.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileSlice | Iterator[bytes] = b""
    chunked: bool = False
    sent: int = 0

    @property
    def size(self) -> int | None:
        """How many bytes its body has; `None` where only the end will tell."""
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
    def json(cls, value: Any, content_type: str = "application/json; charset=utf-8") -> Reply:
        """A JSON value in AIStore's compact form."""
        return cls(200, {"Content-Type": content_type}, msgspec.json.encode(value))

    @classmethod
    def plain_json(cls, value: Any) -> Reply:
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
    """A header's value: a name with a line break in it must not make a second header."""
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def is_sent_at_once(reply: Reply) -> bool:
    """Return whether `send` needs one system call for head and body."""
    body = reply.body
    return isinstance(body, bytes) or (isinstance(body, FileSlice) and body.size <= SMALL_BYTES)


def send(sock: socket.socket, reply: Reply, *, method: str) -> None:
    """Send `reply` whole, counting in `reply.sent` how many bytes of body went out."""
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
