"""A node at work: a listening socket on 127.0.0.1, a thread for each connection, dispatch by the route table."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from . import delivery
from .access import check_sender
from .actions import Busy, DeadRedirect, Delay, Status
from .api_objects import redirect
from .files import FileSlice
from .messages import BadRequestError, Connection, HangupError, Request
from .names import check_bucket_name, check_object_name
from .nodes import HOST, Node
from .problem import ReplyError, of_the_machine
from .reply import Reply, send
from .routes import Call, find
from .state import Cluster

_LINGER_S = 2.0
_ACCEPT_PAUSE_S = 0.05
_BROKEN_LISTENER = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
# Which query parameter decides what a PUT of an object means.
_PUT_KEYS = ("append_type", "object_to", "uploadId")


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
        with self.cluster.one_more(self.node):
            return self._answer(request)

    def _refuse(self, error: BadRequestError) -> bool:
        text = f"400 Bad Request: {error}"
        send(self.sock, Reply(400, {"Connection": "close"}, text.encode()), method="GET")
        return False

    def _answer(self, request: Request) -> bool:
        try:
            call = Call(self.cluster, self.node, request, self.peer)
            reply = _answer(call)
        except BadRequestError as error:
            return self._refuse(error)
        goes_on = request.keep_alive and request.body.can_be_drained
        if not goes_on:
            reply.headers["Connection"] = "close"
        # Counted before it goes out, so that a client that has its answer finds it counted.
        planned = 0 if request.method == "HEAD" else reply.size or 0
        record = self.cluster.count(self.node, request, reply.status, planned)
        try:
            if call.plan:
                delivery.deliver(self.sock, reply, call.plan, method=request.method)
            else:
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


def _answer(call: Call) -> Reply:
    try:
        reply = _dispatch(call)
    except ReplyError as problem:
        return _problem_reply(problem, call)
    except (HangupError, BadRequestError):
        raise
    except OSError as error:  # of the disk; the connection's own are a HangupError
        return _problem_reply(of_the_machine(call.node.tag, error), call)
    except Exception as error:  # noqa: BLE001  a bug here is the client's 500, not a dead thread
        with suppress(OSError):  # a full disk, too, must not end in silence
            traceback.print_exc(file=sys.stderr)
        message = f"{call.node.tag}: {type(error).__name__}: {error}"
        return _problem_reply(ReplyError(500, message), call)
    location = reply.headers.get("Location")
    if location is not None and call.plan.last(DeadRedirect):
        port = call.cluster.dead.getsockname()[1]
        reply.headers["Location"] = (
            f"http://{HOST}:{port}/{location.removeprefix('http://').partition('/')[2]}"
        )
    return reply


def _dispatch(call: Call) -> Reply:
    check_sender(call.request, call.cluster.ports)
    resource, key = _resolve(call)
    if call.cluster.faults:
        _meet_faults(call, resource, key)
    found = find(call, resource, key)
    return redirect(call) if resource == "object" and call.node.role == "proxy" else found.handler(call)


def _meet_faults(call: Call, resource: str, key: str) -> None:
    verb = call.request.method
    if resource == "bucket" and verb == "GET" and key == "list":
        verb = "LIST"
    elif resource == "batch":
        verb = "BATCH"
    at_proxy = call.node.role == "proxy" and resource in ("object", "batch")
    name = call.name if resource == "object" else ""
    plan = call.plan = call.cluster.faults.plan(at_proxy=at_proxy, verb=verb, bucket=call.bucket, name=name)
    busy, status = plan.last(Busy), plan.last(Status)
    if busy is not None and call.cluster.under_way(call.node) > busy.above:
        raise _refused(call, 429, busy.retry_after)
    time.sleep(sum(delay.seconds for delay in plan.all(Delay)))
    if status is not None:
        raise _refused(call, status.code, status.retry_after)


def _refused(call: Call, code: int, retry_after: float | None) -> ReplyError:
    headers = None if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return ReplyError(code, f"{call.node.tag}: injected fault", headers=headers)


def _resolve(call: Call) -> tuple[str, str]:
    """Say what the path names and which of its requests this is; fill in bucket and object."""
    request = call.request
    version, _, rest = request.path.lstrip("/").partition("/")
    kind, _, rest = rest.partition("/")
    first, slash, more = rest.partition("/")
    if version != "v1" or not kind:
        return request.path, ""
    if kind == "objects":
        call.bucket, call.name = first, more
        return ("object" if slash else "objects"), _object_key(call, more if slash else None)
    if kind == "buckets":
        call.bucket, call.name = first, more
        if request.method == "HEAD":
            return "bucket", "bsumm_remote" if "bsumm_remote" in request.query else ""
        if first:
            check_bucket_name(first)
        return ("bucket" if first else "buckets"), call.text("action")
    if kind in ("daemon", "cluster") and not rest:
        return kind, request.query.get("what") or call.text("action")
    if kind == "reverse" and rest == "daemon":
        return kind, request.query.get("what", "")
    if kind == "sort":
        return kind, rest
    if kind == "ml" and first == "moss":
        call.bucket, _, call.name = more.partition("/")
        return "batch", ""
    call.name = rest
    if kind == "etl":
        return ("etl" if rest else "etls"), first if first == "_object" else more.partition("/")[0]
    return ("health" if kind == "health" else request.path), ""


def _object_key(call: Call, name: str | None) -> str:
    """Which of the requests of an object this is; without a name only a POST of the bucket is one."""
    method = call.request.method
    if name is not None:
        check_object_name(name)
    elif method != "POST":
        path = call.request.path.strip("/")
        raise ReplyError(400, f"URL '{path}' is too short: expected 4 items, got {path.count('/') + 1}")
    if method in ("POST", "DELETE"):
        return call.text("action")
    return next((key for key in _PUT_KEYS if key in call.query), "") if method == "PUT" else ""


def _problem_reply(problem: ReplyError, call: Call) -> Reply:
    """Write an error as AIStore does; in a header where there can be no body."""
    request = call.request
    fields: dict[str, Any] = {"tcode": problem.tcode} if problem.tcode else {}
    fields |= {
        "message": problem.message,
        "method": request.method,
        "url_path": request.path,
        "remote_addr": call.peer,
        "caller": "",
        "node": call.node.tag,
        "status": problem.status,
    }
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    headers = {"Content-Type": "application/json", **problem.headers}
    if request.method == "HEAD":
        headers["Hdr-Error"] = text
    headers["X-Content-Type-Options"] = "nosniff"
    return Reply(problem.status, headers, (text + "\n").encode())
