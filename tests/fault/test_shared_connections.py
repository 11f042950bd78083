"""Promise 2 below the tar reader: connections are shared between objects, their bytes never are.

Every eight bytes of a body say of which object they are and where they stand, so a byte of another response, or of
another place, is seen at once.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from helpers.raw_server import RawServer, Request, cut, head_of, redirect, status, whole

from torchdata_ais.errors import AISError, NotFoundError
from torchdata_ais.store import Retry, StoreOptions, open_blocks
from torchdata_ais.store.transport.cancel import Cancel

WORDS = 16_384
BODY = 8 * WORDS


def body_of(number: int) -> bytes:
    return (np.arange(WORDS, dtype=">u8") + (number << 32)).tobytes()


BODIES = [body_of(number) for number in range(8)]


def answer(request: Request, rng: random.Random) -> object:
    """Answer as a cluster of one node on a bad day: half of the answers are broken in some way."""
    name = request.target.partition("?")[0].rpartition("/")[2]
    body = BODIES[int(name)]
    if "moved" not in request.target and rng.random() < 0.3:
        moved = request.target.replace("?", "?moved=1&")
        return redirect(moved)(request)
    at = rng.randrange(BODY)
    actions: list[Any] = [whole(body)] * 4
    actions += [
        cut(body, at),
        cut(body, at, reset=True),
        stall_for_a_while(body, at),
        status(503, body=BODIES[(int(name) + 1) % 8][: rng.randrange(70_000)]),
        whole(body, ranges=False),
        crumbs(body, rng.randrange(1, 30_000)),
        lambda _: False,
    ]
    return rng.choice(actions)(request)


def stall_for_a_while(body: bytes, at: int) -> Any:
    """Send half, nothing for longer than the client waits, and then the rest all the same."""

    def script(request: Request) -> None:
        head, rest = head_of(body, request)
        request.send(head + rest[:at])
        request.wait(0.06)
        request.send(rest[at:])

    return script


def crumbs(body: bytes, size: int) -> Any:
    def script(request: Request) -> None:
        head, rest = head_of(body, request)
        request.send(head)
        for start in range(0, len(rest), size):
            request.send(rest[start : start + size])

    return script


class Client:
    """Reads objects one after the other, from the start or the middle, to the end or not, by turns."""

    def __init__(self, server: RawServer, seed: int, reads: int) -> None:
        self.rng = random.Random(seed)
        self.server = server
        self.reads = reads
        self.whole = self.errors = self.left = 0
        self.wrong: list[str] = []

    def __call__(self) -> None:
        for _ in range(self.reads):
            try:
                self.read()
            except AISError as error:
                self.errors += 1
                if "in the body" in str(error):
                    self.wrong.append(str(error))

    def read(self) -> None:
        rng = self.rng
        number = rng.randrange(len(BODIES))
        start = rng.choice([0, 0, 8 * rng.randrange(WORDS)])
        options = StoreOptions(
            stall_timeout=0.04,
            first_byte_timeout=1.0,
            retry=Retry(4, backoff=0.0, max_backoff=0.0, deadline=20.0),
            block_bytes=rng.choice([1000, 16_384, 1 << 20]),
            prefetch_bytes=rng.choice([1, 50_000, 1 << 20]),
            verify=False,  # it would be seen in the checksum; here it must not happen
        )
        stop = rng.randrange(BODY) if rng.random() < 0.4 else None
        position = start
        with open_blocks(self.server.url(str(number)), options, start=start) as source:
            if stop is not None and rng.random() < 0.5:
                threading.Timer(rng.random() * 0.01, source.close).start()
            for block in source:
                if block != BODIES[number][position : position + len(block)]:
                    self.wrong.append(f"object {number} at {position}: {block[:16].hex()}")
                    return
                position += len(block)
                if stop is not None and position >= stop:
                    self.left += 1
                    return
        if position != BODY:
            self.wrong.append(f"object {number} ended at {position}")
        self.whole += 1


def read_all(seed: int, threads: int, reads: int) -> list[Client]:
    rng = random.Random(seed)
    with RawServer(lambda request: answer(request, rng)) as server:
        clients = [Client(server, seed * 100 + number, reads) for number in range(threads)]
        running = [threading.Thread(target=client) for client in clients]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return clients


def check(clients: list[Client]) -> None:
    assert not [text for client in clients for text in client.wrong]
    # Each way to end is met, so that the check is not idle.
    assert min(sum(client.whole for client in clients), sum(client.left for client in clients)) > 10


def test_promise_2_no_byte_of_another_object_or_place_whatever_breaks() -> None:
    check(read_all(1, threads=6, reads=25))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_promise_2_no_byte_of_another_object_in_thousands_of_reads() -> None:
    for seed in range(2, 10):
        check(read_all(seed, threads=8, reads=100))


def test_a_connection_given_back_is_no_longer_the_readers() -> None:
    """`close` shuts down the socket in use. After a redirect that is no longer the proxy's: it may be another's."""
    sockets: list[object] = []
    gate = threading.Event()

    def target(request: Request) -> None:
        gate.wait(60)
        status(404)(request)

    with RawServer(target) as node, RawServer(redirect(node.url("1"))) as proxy:
        options = StoreOptions(endpoint=proxy.endpoint, retry=Retry(1))
        watched = Cancel.watch

        def watch(self: Cancel, sock: Any) -> None:
            sockets.append(sock)
            watched(self, sock)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Cancel, "watch", watch)
            source = open_blocks(proxy.url("1"), options)
            end = time.monotonic() + 60
            while not node.requests and time.monotonic() < end:
                time.sleep(0.005)
            gate.set()
            with pytest.raises(NotFoundError, match="404") as caught:
                next(source)
            assert caught.value.url == "ais://b/1"
            source.close()
    # Told of the proxy's socket, then of none, and only then of the target's.
    first = next(sock for sock in sockets if sock is not None)
    after = sockets[sockets.index(first) :]
    other = next(index for index, sock in enumerate(after) if sock not in (None, first))
    assert None in after[:other]
