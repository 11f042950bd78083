"""One node: a listening socket on 127.0.0.1, a thread for each connection, dispatch by the route table."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import delivery
from .access import check_sender
from .archive import NotAnArchiveError
from .names import check_bucket_name, check_object_name, digest_of
from .problem import ReplyError, of_the_machine
from .reply import FileSlice, Reply, planned_bytes, send
from .routes import Call, find
from .wire import BadRequestError, Connection, HangupError, Request

if TYPE_CHECKING:
    from .state import Cluster

__all__ = ["Node"]

HOST = "127.0.0.1"
_LINGER_S = 2.0
_ACCEPT_PAUSE_S = 0.05
_BROKEN_LISTENER = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
# Which query parameter decides what a PUT of an object means.
_PUT_KEYS = ("append_type", "object_to", "uploadId")


class Node:
    """A proxy or a target.

    Args:
        cluster: What the nodes share.
        role: ``"proxy"`` or ``"target"``.
        node_id: Its id in the cluster map.
        port: Port to listen on, or 0.
    """

    def __init__(self, cluster: Cluster, role: str, node_id: str, port: int = 0) -> None:
        self.cluster = cluster
        self.role = role
        self.id = node_id
        self.digest = digest_of(node_id)
        self.tag = f"{role[0]}[{node_id}]"
        self._listener = socket.create_server((HOST, port), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self._peers = threading.local()

    def start(self) -> None:
        """Accept connections from now on."""
        threading.Thread(target=self._listen, name=f"accept-{self.tag}", daemon=True).start()

    def peer_of(self, request: Request) -> str:  # noqa: ARG002  one connection per thread
        """Address and port of the client."""
        return str(self._peers.address)

    def _listen(self) -> None:
        try:
            self._accept()
        except Exception:  # noqa: BLE001  a cluster that cannot be reached must not look as if it ran
            traceback.print_exc(file=sys.stderr)
            os._exit(1)

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if error.errno in _BROKEN_LISTENER:
                    raise
                time.sleep(
                    _ACCEPT_PAUSE_S
                )  # no file or memory left, or the client has gone: all of it passes
                continue
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(sock, address), daemon=True).start()
            except (OSError, RuntimeError, MemoryError):  # no thread can be started
                sock.close()
                time.sleep(_ACCEPT_PAUSE_S)

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self._peers.address = f"{address[0]}:{address[1]}"
        connection = Connection(sock, self._peers.address)
        try:
            while self._one(connection):
                pass
        except (HangupError, BadRequestError, delivery.EndedError, NotAnArchiveError, ReplyError, OSError):
            pass  # the client has gone, or a fault or an answer that cannot be finished lets it think so
        finally:
            sock.close()

    def _one(self, connection: Connection) -> bool:
        """Answer one request; `False` if the connection is at its end."""
        try:
            request = connection.next_request()
            if request is None:
                return False
            call = Call(self, request)
            reply = self._answer(call)
        except BadRequestError as error:
            text = f"400 Bad Request: {error}"
            send(connection.sock, Reply(400, [("Connection", "close")], text.encode()), method="GET")
            _linger(connection.sock)
            return False
        # Counted before it goes out, so that a client that has its answer finds it counted.
        record = self.cluster.count(self, request, reply.status, planned_bytes(reply, request.method))
        try:
            self._send(connection.sock, reply, call)
        finally:
            if isinstance(reply.body, FileSlice):
                reply.body.close()
            self.cluster.correct(record, reply.sent)
        if request.keep_alive and request.body.drain():
            return True
        _linger(connection.sock)
        return False

    def _send(self, sock: socket.socket, reply: Reply, call: Call) -> None:
        if call.plan is None:
            send(sock, reply, method=call.request.method)
        else:
            delivery.deliver(sock, reply, call.plan, method=call.request.method)

    def _answer(self, call: Call) -> Reply:
        try:
            reply = self._dispatch(call)
        except ReplyError as problem:
            return self.problem_reply(problem, call)
        except (HangupError, BadRequestError):
            raise
        except OSError as error:  # of the disk; the connection's own are a HangupError
            return self.problem_reply(of_the_machine(self.tag, error), call)
        except Exception as error:  # noqa: BLE001  a bug here is the client's 500, not a dead thread
            with suppress(OSError):  # a full disk, too, must not end in silence
                traceback.print_exc(file=sys.stderr)
            message = f"{self.tag}: {type(error).__name__}: {error}"
            return self.problem_reply(ReplyError(500, message), call)
        if call.plan is not None and call.plan.dead_redirect:
            _misdirect(reply, self.cluster.dead_port.getsockname()[1])
        return reply

    def _dispatch(self, call: Call) -> Reply:
        check_sender(call.request, self.cluster.ports)
        resource, key = self._resolve(call)
        if self.cluster.faults:
            self._plan_faults(call, resource, key)
        return find(call, resource, key).handler(call)

    def _plan_faults(self, call: Call, resource: str, key: str) -> None:
        verb = call.request.method
        if resource == "bucket" and verb == "GET" and key == "list":
            verb = "LIST"
        elif resource == "batch":
            verb = "BATCH"
        at_proxy = self.role == "proxy" and resource in ("object", "batch")
        name = call.name if resource == "object" else ""
        plan = self.cluster.faults.plan(at_proxy=at_proxy, verb=verb, bucket=call.bucket, name=name)
        call.plan = plan
        if plan is None:
            return
        if plan.delay:
            time.sleep(plan.delay)
        if plan.status is not None:
            headers: tuple[tuple[str, str], ...] = ()
            if plan.status.retry_after is not None:
                headers = (("Retry-After", f"{plan.status.retry_after:g}"),)
            raise ReplyError(plan.status.code, f"{self.tag}: injected fault", headers=headers)

    def _resolve(self, call: Call) -> tuple[str, str]:
        """Say what the path names and which of its requests this is; fill in bucket and object."""
        request = call.request
        version, _, rest = request.path.lstrip("/").partition("/")
        kind, _, rest = rest.partition("/")
        if version != "v1" or not kind:
            return request.path, ""
        if kind == "objects":
            call.bucket, slash, call.name = rest.partition("/")
            if not slash:
                return self._bucket_of_objects(call)
            check_object_name(call.name)
            if request.method in ("POST", "DELETE"):
                return "object", call.text("action")
            if request.method == "PUT":
                return "object", next((key for key in _PUT_KEYS if key in request.query), "")
            return "object", ""
        if kind == "buckets":
            call.bucket, _, call.name = rest.partition("/")
            if request.method == "HEAD":
                return "bucket", "bsumm_remote" if "bsumm_remote" in request.query else ""
            if call.bucket:
                check_bucket_name(call.bucket)
            return ("bucket" if call.bucket else "buckets"), call.text("action")
        if kind in ("daemon", "cluster"):
            if rest:
                return request.path, ""
            return kind, request.query.get("what") or call.text("action")
        if kind == "reverse":
            return (kind if rest == "daemon" else request.path), request.query.get("what", "")
        if kind == "sort":
            return kind, rest
        if kind == "ml":
            service, _, path = rest.partition("/")
            call.bucket, _, call.name = path.partition("/")
            return ("batch" if service == "moss" else request.path), ""
        call.name = rest
        if kind == "etl":
            first, _, more = rest.partition("/")
            return ("etl" if rest else "etls"), first if first == "_object" else more.partition("/")[0]
        return ("health" if kind == "health" else request.path), ""

    def _bucket_of_objects(self, call: Call) -> tuple[str, str]:
        if call.request.method == "POST":
            return "objects", call.text("action")
        path = call.request.path.strip("/")
        message = f"URL '{path}' is too short: expected 4 items, got {path.count('/') + 1}"
        raise ReplyError(400, message)

    def problem_reply(self, problem: ReplyError, call: Call) -> Reply:
        """Write an error as AIStore does; in a header where there can be no body."""
        request = call.request
        fields: dict[str, Any] = {"tcode": problem.tcode} if problem.tcode else {}
        fields |= {
            "message": problem.message,
            "method": request.method,
            "url_path": request.path,
            "remote_addr": self.peer_of(request),
            "caller": "",
            "node": self.tag,
            "status": problem.status,
        }
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        headers = [("Content-Type", "application/json"), *problem.headers]
        if request.method == "HEAD":
            headers.append(("Hdr-Error", text))
        headers.append(("X-Content-Type-Options", "nosniff"))
        return Reply(problem.status, headers, (text + "\n").encode())


def _misdirect(reply: Reply, port: int) -> None:
    for index, (name, value) in enumerate(reply.headers):
        if name == "Location":
            _, _, path = value.removeprefix("http://").partition("/")
            reply.headers[index] = (name, f"http://{HOST}:{port}/{path}")


def _linger(sock: socket.socket) -> None:
    """Close the way out and read what still comes: a close with bytes unread would reset the connection."""
    try:
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(_LINGER_S)
        deadline = time.monotonic() + _LINGER_S
        while sock.recv(65536) and time.monotonic() < deadline:
            pass
    except OSError:
        pass
