"""A web server of raw sockets: each request is answered by a script, byte by byte if need be."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

import xxhash


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    sock: socket.socket
    closing: threading.Event

    @property
    def offset(self) -> int:
        return int(self.headers.get("range", "bytes=0-")[6:].partition("-")[0])

    @property
    def ranged(self) -> bool:
        return "range" in self.headers

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait(self, seconds: float = 30.0) -> None:
        """Do nothing until the server is closed."""
        self.closing.wait(seconds)


Script = Callable[[Request], object]


class RawServer:
    """Answers the n-th request by the n-th script, later ones by the last."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.scripts = scripts
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._begin(self._accept)

    def url(self, name: str = "s.tar", **params: str) -> str:
        query = "".join(f"&{key}={value}" for key, value in params.items())
        return f"{self.endpoint}/v1/objects/b/{name}?provider=ais{query}"

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(60)  # it may just have accepted somebody
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _begin(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._begin(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            while head := self._head(sock):
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ", 2)
                pairs = (line.partition(":") for line in lines[1:] if line)
                headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
                request = Request(method, target, headers, sock, self._closing)
                with self._lock:
                    script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
                    self.requests.append(request)
                if script(request) is False:
                    break
        sock.close()

    @staticmethod
    def _head(sock: socket.socket) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = sock.recv(1)
            if not data:
                return b""
            head += data
        return head


def checksum(body: bytes) -> str:
    return xxhash.xxh64_hexdigest(body)


def head_of(
    body: bytes, request: Request, *, version: str | None = "1", cksum: str | None = "", ranges: bool = True
) -> tuple[bytes, bytes]:
    """Return head and body of the answer an AIStore target would give."""
    start = request.offset if ranges and request.ranged else 0
    if start and start >= len(body):
        return (
            f"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{len(body)}\r\n"
            "Content-Length: 0\r\n\r\n"
        ).encode(), b""
    status = "206 Partial Content" if ranges and request.ranged else "200 OK"
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) - start}"]
    if status.startswith("206"):
        lines.append(f"Content-Range: bytes {start}-{len(body) - 1}/{len(body)}")
    if version is not None:
        lines.append(f"Ais-Version: {version}")
    if cksum is not None:
        lines += ["Ais-Checksum-Type: xxhash2", f"Ais-Checksum-Value: {cksum or checksum(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), body[start:]


def whole(body: bytes, **facts: object) -> Script:
    def script(request: Request) -> None:
        head, rest = head_of(body, request, **facts)  # type: ignore[arg-type]
        request.send(head + rest)

    return script


def cut(body: bytes, at: int, *, reset: bool = False, **facts: object) -> Script:
    """Send `at` bytes of the body and close the connection."""

    def script(request: Request) -> bool:
        head, rest = head_of(body, request, **facts)  # type: ignore[arg-type]
        request.send(head + rest[:at])
        if reset:
            request.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return script


def stall(body: bytes, at: int, **facts: object) -> Script:
    """Send `at` bytes of the body, then nothing, with the connection open."""

    def script(request: Request) -> bool:
        head, rest = head_of(body, request, **facts)  # type: ignore[arg-type]
        request.send(head + rest[:at])
        request.wait()
        return False

    return script


def status(code: int, *headers: str, body: bytes = b"") -> Script:
    def script(request: Request) -> None:
        lines = [f"HTTP/1.1 {code} Status", f"Content-Length: {len(body)}", *headers]
        request.send(("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if request.method == "HEAD" else body))

    return script


def silent(request: Request) -> bool:
    """Send nothing."""
    request.wait()
    return False


def raw(data: bytes, *, close: bool = True) -> Script:
    def script(request: Request) -> bool:
        request.send(data)
        return not close

    return script


def redirect(location: str, code: int = 301) -> Script:
    return status(code, f"Location: {location}", body=b"<a>Moved</a>")
