"""Connections that lie idle: closed before a node closes them; where the node was first, nobody hears of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import requests

from torchdata_ais.errors import ConnectError, ReadError, UsageError
from torchdata_ais.store import Retry, Stats, StoreOptions, open_blocks, read_batch, read_range
from torchdata_ais.store.objects.sdk_adapter import BoundedAdapter
from torchdata_ais.testing import shard_bytes

ONCE = StoreOptions(retry=Retry(attempts=1))
"""A second try that counts would be an error."""
BODY = bytes(range(256)) * 20
TAR = shard_bytes({"b/s.tar": BODY[:600]})
SAFE_S, NODE_S = 0.2, 0.5


class Node:
    """Answers requests, and closes connections: those idle for `idle_s`, and each after its `most`-th request.

    The last one it reads, and then it closes the connection without an answer: a request and the end of an idle
    connection that cross on their way look like that.
    """

    def __init__(self, answer: bytes, idle_s: float | None = None, most: int | None = None) -> None:
        self._answer, self._idle_s, self._most = answer, idle_s, most
        self.connections = self.unanswered = self.closed_idle = 0
        self.answered = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._socks: list[socket.socket] = []
        self._threads[0].start()

    def url(self) -> str:
        return f"{self.endpoint}/v1/objects/b/s.tar?provider=ais"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._socks.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(self._idle_s)
        begun = 0
        with sock, contextlib.suppress(OSError):
            while True:
                try:
                    head = sock.recv(65536)
                except TimeoutError:
                    self.closed_idle += 1
                    return
                if not head:
                    return
                begun += 1
                if self._most is not None and begun > self._most:
                    self.unanswered += 1
                    return
                while b"content-length" in head.lower() and b"}" not in head:
                    head += sock.recv(65536)
                self.answered += 1
                sock.sendall(self._answer)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def answer(body: bytes, *head: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *head]
    return "\r\n".join([*lines, "", ""]).encode() + body


OBJECT = answer(BODY, "Ais-Version: 1")
RANGE = OBJECT.replace(b"200 OK", b"206 Partial Content").replace(
    b"Ais-Version", f"Content-Range: bytes 0-{len(BODY) - 1}/{len(BODY)}\r\nAis-Version".encode()
)
BATCH = answer(TAR, "Content-Type: application/x-tar")


def stream(node: Node, options: StoreOptions) -> None:
    with open_blocks(node.url(), options) as source:
        assert b"".join(source) == BODY
        assert source.stats.retries == 0


def one_range(node: Node, options: StoreOptions) -> None:
    stats = Stats()
    assert read_range(node.url(), 0, len(BODY), options, stats=stats) == BODY
    assert stats.retries == 0


def batch(node: Node, options: StoreOptions) -> None:
    found: dict[int, bytes] = {}
    answered = read_batch(
        [("ais://b/s.tar", 0, 600)], replace(options, endpoint=node.endpoint), found.__setitem__
    )
    assert (found, answered.missing) == ({0: BODY[:600]}, ())


WAYS = pytest.mark.parametrize(
    ("ask", "said"), [(stream, OBJECT), (one_range, RANGE), (batch, BATCH)], ids=["GET", "Range", "GetBatch"]
)


@WAYS
def test_a_connection_that_the_node_closes_at_its_reuse_is_no_failure(
    ask: Callable[[Node, StoreOptions], None], said: bytes
) -> None:
    with Node(said, most=1) as node:
        for _ in range(4):
            ask(node, ONCE)
        assert (node.answered, node.unanswered, node.connections) == (4, 3, 4)


@WAYS
def test_an_idle_connection_is_closed_before_the_node_closes_it(
    ask: Callable[[Node, StoreOptions], None], said: bytes
) -> None:
    options = replace(ONCE, idle_timeout=SAFE_S)
    with Node(said, idle_s=30.0) as node:
        ask(node, options)
        ask(node, options)
        assert node.connections == 1  # not idle yet
        time.sleep(SAFE_S * 1.5)
        ask(node, options)
        assert (node.connections, node.closed_idle) == (2, 0)


@WAYS
def test_idle_connections_that_the_node_has_closed_are_no_failure(
    ask: Callable[[Node, StoreOptions], None], said: bytes
) -> None:
    with Node(said, idle_s=0.05) as node:
        for count in range(1, 4):
            ask(node, ONCE)
            end = time.monotonic() + 60
            while node.closed_idle < count:
                assert time.monotonic() < end
                time.sleep(0.01)
        assert node.answered == 3


def test_many_connections_that_end_at_their_reuse_are_all_replaced() -> None:
    """A node that restarts ends all of them at once."""
    with Node(RANGE, most=1) as node:
        threads = [threading.Thread(target=one_range, args=(node, ONCE)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        one_range(node, ONCE)
        assert node.answered == 9


def test_a_new_connection_that_breaks_counts() -> None:
    with Node(OBJECT, most=0) as node:
        with pytest.raises(ReadError, match="broke before an answer"):
            stream(node, ONCE)
        assert (node.connections, node.unanswered) == (1, 1)


def test_a_node_that_is_gone_after_an_idle_time_is_an_error() -> None:
    with Node(OBJECT) as node:
        stream(node, ONCE)
    with pytest.raises(ConnectError):
        stream(node, ONCE)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_times_that_cannot_work_are_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="idle_timeout"):
        StoreOptions(idle_timeout=seconds)


def test_a_control_call_over_a_lost_connection_is_sent_again_if_that_is_safe() -> None:
    with Node(answer(b"[]", "Content-Type: application/json"), most=1) as node, requests.Session() as session:
        session.mount("http://", BoundedAdapter(ONCE))
        for _ in range(3):
            assert session.get(f"{node.endpoint}/v1/cluster", timeout=60).json() == []
        with pytest.raises(requests.ConnectionError):
            session.post(f"{node.endpoint}/v1/buckets/b", timeout=60)  # it may have been done
        assert (node.answered, node.unanswered) == (3, 3)
