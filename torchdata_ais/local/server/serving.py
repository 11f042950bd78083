"""A node at work: a listening socket on 127.0.0.1, and a thread for each connection."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import dataclass

from . import delivery
from .dispatch import answer
from .files import FileSlice
from .messages import BadRequestError, Connection, HangupError, Request
from .nodes import HOST, Node
from .problem import ReplyError
from .reply import Reply, is_sent_at_once, send
from .routes import Call
from .state import Cluster

_LINGER_S = 2.0
_ACCEPT_PAUSE_S = 0.05
_BROKEN_LISTENER = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on this port of 127.0.0.1; 0 takes a free one."""
    return socket.create_server((HOST, port), backlog=512)


def serve(cluster: Cluster, node: Node, listener: socket.socket) -> None:
    """Accept the connections of a node, in a thread."""

    def run() -> None:
        try:
            _accept(cluster, node, listener)
        except Exception:  # noqa: BLE001  a cluster that cannot be reached must not look as if it ran
            traceback.print_exc(file=sys.stderr)
            os._exit(1)

    threading.Thread(target=run, name=f"accept-{node.tag}", daemon=True).start()


def _accept(cluster: Cluster, node: Node, listener: socket.socket) -> None:
    while True:
        try:
            sock, (host, port) = listener.accept()
        except OSError as error:
            if error.errno in _BROKEN_LISTENER:
                raise
            time.sleep(_ACCEPT_PAUSE_S)  # no file or memory left, or the client has gone: all of it passes
            continue
        try:
            cluster.connected()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            served = _Served(cluster, node, sock, f"{host}:{port}")
            threading.Thread(target=served.run, daemon=True).start()
        except (OSError, RuntimeError, MemoryError):  # no thread can be started
            sock.close()
            time.sleep(_ACCEPT_PAUSE_S)


@dataclass
class _Served:
    """One connection."""

    cluster: Cluster
    node: Node
    sock: socket.socket
    peer: str

    def run(self) -> None:
        """Answer its requests until it ends."""
        with self.sock, closing(Connection(self.sock)) as connection:
            try:
                while self._one(connection):
                    pass
                _linger(self.sock)
            except (HangupError, BadRequestError, delivery.EndedError, ReplyError, OSError):
                pass  # the client has gone, or a fault or an answer that cannot be finished lets it think so

    def _one(self, connection: Connection) -> bool:
        """Answer one request, and say whether another one may follow."""
        try:
            request = connection.next_request()
        except BadRequestError as error:
            return self._refuse(error)
        with ExitStack() as under_way:
            under_way.enter_context(self.cluster.one_more(self.node))
            return self._answer(request, under_way)

    def _refuse(self, error: BadRequestError) -> bool:
        text = f"400 Bad Request: {error}"
        send(self.sock, Reply(400, {"Connection": "close"}, text.encode()), method="GET")
        return False

    def _answer(self, request: Request, under_way: ExitStack) -> bool:
        try:
            call = Call(self.cluster, self.node, request, self.peer)
            reply = answer(call)
        except BadRequestError as error:
            return self._refuse(error)
        closes = reply.headers.get("Connection") == "close"
        goes_on = request.keep_alive and request.body.can_be_drained and not closes
        if not goes_on:
            reply.headers["Connection"] = "close"
        # Counted before it goes out, so that a client that has its answer finds it counted.
        planned = 0 if request.method == "HEAD" else reply.size or 0
        record = self.cluster.count(self.node, request, reply.status, planned)
        try:
            if call.plan:
                delivery.deliver(self.sock, reply, call.plan, method=request.method)
            else:
                if request.method == "HEAD" or is_sent_at_once(reply):
                    under_way.close()  # a client that has its answer may make its next request elsewhere at once
                send(self.sock, reply, method=request.method)
        finally:
            if isinstance(reply.body, FileSlice):
                reply.body.close()
            self.cluster.correct(record, reply.sent)
        if goes_on:
            request.body.drain()
        return goes_on


def _linger(sock: socket.socket) -> None:
    """Close the way out and read what still comes: a close with bytes unread would reset the connection."""
    sock.shutdown(socket.SHUT_WR)
    sock.settimeout(_LINGER_S)
    deadline = time.monotonic() + _LINGER_S
    while sock.recv(65536) and time.monotonic() < deadline:
        pass
