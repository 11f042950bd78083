"""Process and sockets of a node.

The parent holds the other ends of stdin and stdout. The first line in is the configuration, the first line
out the ports; each further line in is a command and gets one line back. The end of stdin, or a parent
process that is another than the one that started this, ends the process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from . import delivery
from .dispatch import answer
from .faults import Fault
from .files import FileSlice
from .http import BadRequestError, Connection, HangupError, Reply, Request, is_sent_at_once, send
from .names import HOST, Node
from .problem import ReplyError
from .routes import Call, load_routes
from .state import Cluster

_LINGER_S = 2.0
_ACCEPT_PAUSE_S = 0.05
_BROKEN_LISTENER = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


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
            threading.Thread(target=_Served(cluster, node, sock, f"{host}:{port}").run, daemon=True).start()
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
        """Answer one request, and report whether another one may follow."""
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
    """Read the rest: a close with bytes unread would reset the connection."""
    sock.shutdown(socket.SHUT_WR)
    sock.settimeout(_LINGER_S)
    deadline = time.monotonic() + _LINGER_S
    while sock.recv(65536) and time.monotonic() < deadline:
        pass


_PARENT_CHECK_S = 0.5


class RootInUseError(OSError):
    """Error of a folder in use, which the starting process matches by name."""


def main() -> None:
    """Run until a stop request, or until the parent has gone."""
    os.umask(0o077)  # objects may be private
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops this process itself
    threading.stack_size(512 * 1024)
    config = json.loads(sys.stdin.readline())
    load_routes()
    root = Path(config["root"])
    threading.Thread(target=_end_with, args=(config["parent"], root, config["remove"]), daemon=True).start()
    try:
        _held = _lock(root)  # for as long as this process lives
        cluster = build(root, config)
    except OSError as error:
        _say({"error": str(error), "errno": error.errno, "name": type(error).__name__})
        _end(root, remove=config["remove"])
    _say({"proxy": cluster.proxy.port, "targets": [node.port for node in cluster.targets]})
    commands: dict[str, Callable[..., Any]] = {
        "stats": cluster.stats,
        "requests": cluster.requests,
        "add_fault": lambda fault: cluster.faults.add(Fault.from_json(fault)),
        "clear_faults": cluster.faults.clear,
        "fired": cluster.faults.fired,
        "reset": cluster.reset,
        "forget_counts": cluster.forget_counts,
    }
    for line in sys.stdin:
        arguments = json.loads(line)
        _say(commands[arguments.pop("do")](**arguments))
    cluster.etls.clear()
    _end(root, remove=config["remove"])


def build(root: Path, config: dict[str, Any]) -> Cluster:
    """Make the cluster of a configuration and let its nodes listen."""
    wanted = [config["port"], *[0] * config["targets"]]  # 0 takes a free one
    listeners = [socket.create_server((HOST, port), backlog=512) for port in wanted]
    ports = [listener.getsockname()[1] for listener in listeners]
    cluster = Cluster(
        root, ports, etl=config["etl"], secret=config["secret"], python_path=config["python_path"]
    )
    for fault in config["faults"]:
        cluster.faults.add(Fault.from_json(fault))
    for node, listener in zip((cluster.proxy, *cluster.targets), listeners, strict=True):
        serve(cluster, node, listener)
    return cluster


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _lock(root: Path) -> IO[str]:
    """Hold the folder: two clusters that write one journal would ruin it."""
    file = (root / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise RootInUseError(f"another cluster runs on {root}") from cause
    return file


def _end_with(parent: int, root: Path, remove: bool) -> None:
    """End the process when the parent is gone: its forks hold the pipe open."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    _end(root, remove=remove)


def _end(root: Path, *, remove: bool) -> NoReturn:
    """End the process at once; a temporary folder is removed with it."""
    if remove:
        shutil.rmtree(root, ignore_errors=True)
    os._exit(0)
