"""Streams that begin: a cluster that says it is busy hears nothing from any of them until it wants to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from helpers.raw_server import RawServer, Request, raw, whole

from torchdata_ais.errors import ReadError, UsageError
from torchdata_ais.store import BlockSource, Retry, StoreOptions, open_blocks
from torchdata_ais.store.transport.concurrency_limit import ConcurrencyLimit, concurrency_limit_of

BODY = bytes(range(256)) * 20
OPTIONS = StoreOptions(retry=Retry(attempts=3, backoff=0.01))
BUSY_S = 0.6


def read(server: RawServer, name: str, options: StoreOptions = OPTIONS) -> None:
    with open_blocks(server.url(name), options) as source:
        assert b"".join(source) == BODY


def pace(server: RawServer, options: StoreOptions = OPTIONS) -> ConcurrencyLimit:
    return concurrency_limit_of(urlsplit(server.endpoint).netloc, options.node_requests, opening=True)


def busy(code: int) -> bytes:
    return f"HTTP/1.1 {code} Busy\r\nRetry-After: {BUSY_S}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("code", [429, 503])
def test_all_streams_of_a_process_wait_as_long_as_one_was_told(code: int) -> None:
    times: list[float] = []
    told = threading.Event()

    def timed(script: Callable[[Request], object]) -> Callable[[Request], object]:
        def run(request: Request) -> object:
            times.append(time.monotonic())
            result = script(request)
            told.set()
            return result

        return run

    with RawServer(timed(raw(busy(code), close=False)), timed(whole(BODY))) as server:
        first = threading.Thread(target=read, args=(server, "first.tar"))
        first.start()
        assert told.wait(60)
        end = time.monotonic() + 60
        while pace(server).limit == 32:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert pace(server).limit == 16
        read(server, "second.tar")
        first.join(60)
        assert not first.is_alive()
    assert len(times) == 3
    assert min(times[1:]) - times[0] >= BUSY_S * 0.95


def test_it_may_begin_more_again_when_the_cluster_keeps_up() -> None:
    with RawServer(raw(busy(429).replace(b"0.6", b"0.0"), close=False), whole(BODY)) as server:
        read(server, "first.tar")
        after = pace(server).limit
        assert after < 17
        for number in range(40):
            read(server, f"{number}.tar")
        assert after < pace(server).limit <= 32


def test_bodies_under_way_keep_nobody_from_beginning() -> None:
    """All shards that are open at the same time must come, however few may begin at once."""
    options = StoreOptions(node_requests=1, prefetch_bytes=1 << 20, block_bytes=1024, retry=Retry(attempts=1))
    body = BODY * 100
    with RawServer(whole(body)) as server:
        sources: list[BlockSource] = [open_blocks(server.url(f"{n}.tar"), options) for n in range(6)]
        try:
            assert all(
                next(source) for source in sources
            )  # of each its first bytes, the rest is not wanted yet
            assert pace(server, options).running == 0
        finally:
            for source in sources:
                source.close()


def test_errors_that_are_not_about_load_slow_nobody_down() -> None:
    with RawServer(raw(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", close=False)) as server:
        with pytest.raises(ReadError):
            read(server, "s.tar", StoreOptions(retry=Retry(attempts=2, backoff=0.01)))
        assert pace(server).limit == 32


def test_a_stream_that_is_closed_waits_for_no_turn() -> None:
    with RawServer(raw(busy(429).replace(b"0.6", b"30"), close=False), whole(BODY)) as server:
        first = open_blocks(server.url("first.tar"), OPTIONS)
        end = time.monotonic() + 60
        while pace(server).limit == 32:
            assert time.monotonic() < end
            time.sleep(0.001)
        second = open_blocks(server.url("second.tar"), OPTIONS)
        begun = time.monotonic()
        second.close()
        first.close()
        assert time.monotonic() - begun < 20
        assert len(server.requests) == 1


@pytest.mark.parametrize("number", [0, -3])
def test_bounds_that_cannot_work_are_refused(number: int) -> None:
    with pytest.raises(UsageError, match="node_requests"):
        StoreOptions(node_requests=number)
