"""Promises 6 and 7 for an open object: no hang, no thread left, memory bounded in bytes."""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from helpers.raw_server import RawServer, raw, silent, stall, status, whole
from helpers.waiting import until

from torchdata_ais.errors import NotFoundError, ReadError, StallError, UsageError
from torchdata_ais.store import Retry, StoreOptions, open_blocks
from torchdata_ais.store.transport import read_ahead

BODY = random.Random(0).randbytes(1 << 20)
PATIENT = StoreOptions(stall_timeout=60, first_byte_timeout=60, connect_timeout=2, block_bytes=64 << 10)


def fetchers():
    return [thread for thread in threading.enumerate() if thread.name == "torchdata_ais.fetch"]


def open_files():
    folder = Path("/proc/self/fd")
    return list(folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    for thread in fetchers():
        thread.join(60)
    assert not fetchers()
    assert read_ahead._budget.used == 0
    assert read_ahead._budget.shares == 0


SLEEPY = StoreOptions(retry=Retry(backoff=60, max_backoff=60))


@pytest.mark.parametrize(
    ("script", "options"),
    [
        pytest.param(silent, PATIENT, id="waiting for the head"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nX-", close=False), PATIENT, id="within the head"),
        pytest.param(stall(BODY, 1000), PATIENT, id="within the body"),
        pytest.param(status(503), SLEEPY, id="between two tries"),
        pytest.param(
            whole(BODY), StoreOptions(block_bytes=1000, prefetch_bytes=3000), id="waiting for the budget"
        ),
        pytest.param(whole(BODY), PATIENT, id="at the end"),
        pytest.param(status(404), PATIENT, id="after an error"),
    ],
)
def test_close_ends_the_thread_at_any_moment(script, options):
    with RawServer(script) as server:
        source = open_blocks(server.url(), options)
        until(lambda: server.requests)
        time.sleep(0.1)
        source.close()
        until(lambda: not fetchers(), 10)  # no time limit of a request is as short
        source.close()
        with pytest.raises(UsageError, match="closed"):
            next(source)


def test_close_does_not_wait_for_a_connection_that_does_not_come():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        crowd = [socket.socket() for _ in range(4)]  # the queue is full: connecting hangs
        for sock in crowd:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        source = open_blocks(f"http://127.0.0.1:{port}/v1/objects/b/o?provider=ais", PATIENT)
        time.sleep(0.1)
        source.close()
        with pytest.raises(UsageError):
            next(source)
        for sock in crowd:
            sock.close()


def test_a_handshake_that_does_not_come_is_an_error():
    quick = StoreOptions(connect_timeout=0.3, retry=Retry(attempts=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/v1/objects/b/o?provider=ais"
        with open_blocks(url, quick) as source, pytest.raises((StallError, ConnectionError)):
            next(source)


def test_a_source_that_ended_with_an_error_is_collected_though_nobody_closed_it():
    with RawServer(status(404)) as server:
        source = open_blocks(server.url(), PATIENT)
        for _ in range(2):  # and the error comes again
            with pytest.raises(NotFoundError):
                next(source)
        gone = weakref.ref(source)
        del source
        gc.collect()
        assert gone() is None
        assert read_ahead._budget.shares == 0


def test_close_by_another_thread_frees_a_waiting_consumer():
    with RawServer(silent) as server, open_blocks(server.url(), PATIENT) as source:
        closer = threading.Timer(0.2, source.close)
        closer.start()
        with pytest.raises(UsageError, match="closed"):
            next(source)
        closer.join()


def test_a_source_that_nobody_holds_is_collected_and_its_thread_ends():
    with RawServer(silent) as server:
        source = open_blocks(server.url(), PATIENT)
        until(lambda: server.requests)
        del source
        gc.collect()
        until(lambda: not fetchers())


def test_no_more_is_fetched_than_the_budget_allows():
    options = StoreOptions(block_bytes=32 << 10, prefetch_bytes=128 << 10)
    with RawServer(whole(BODY)) as server:
        sources = [open_blocks(server.url(), options) for _ in range(3)]
        until(lambda: read_ahead._budget.used >= 96 << 10)
        time.sleep(0.2)
        most = 0
        total = 0
        for blocks in zip(*sources, strict=False):
            assert read_ahead._budget.used <= (128 << 10) + 3 * (32 << 10)
            most = max(most, read_ahead._budget.used)
            total += sum(map(len, blocks))
        assert most > 32 << 10
        for source in sources:
            source.close()


def test_with_the_smallest_budget_every_order_of_reading_goes_on():
    options = StoreOptions(block_bytes=1000, prefetch_bytes=1)
    order = random.Random(1)
    with RawServer(whole(BODY[:50_000])) as server:
        sources = {number: open_blocks(server.url(), options) for number in range(6)}
        got = dict.fromkeys(sources, b"")
        while sources:
            number = order.choice(list(sources))
            try:
                got[number] += next(sources[number])
            except StopIteration:
                sources.pop(number).close()
    assert set(got.values()) == {BODY[:50_000]}


@pytest.mark.ci
def test_a_slow_consumer_is_not_taken_for_a_slow_network():
    options = StoreOptions(
        block_bytes=64 << 10, prefetch_bytes=1, stall_timeout=1.0, retry=Retry(attempts=1, deadline=1.5)
    )
    with RawServer(whole(BODY * 4)) as server, open_blocks(server.url(), options) as source:
        first = next(source)
        time.sleep(2.0)
        assert len(first) + sum(map(len, source)) == 4 * len(BODY)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="forking with threads is a warning there")
def test_a_forked_process_opens_its_own_and_leaves_its_parents_alone():
    options = StoreOptions(block_bytes=1000, prefetch_bytes=5000)
    body = BODY[:300_000]
    with RawServer(whole(body)) as server:
        idle = [open_blocks(server.url(), options) for _ in range(2)]
        assert [b"".join(source) for source in idle] == [body, body]
        with open_blocks(server.url(), options) as kept:
            first = next(kept)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with open_blocks(server.url(), options) as own:
                        same = b"".join(own) == body
                    try:
                        next(kept)
                    except UsageError:
                        kept.close()
                        code = 0 if same else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert first + b"".join(kept) == body
            assert kept.verified is True
        # The parent has idle connections, yet the child came by one of its own.
        assert server.requests[-1].sock not in [request.sock for request in server.requests[:-1]]


def test_many_objects_in_many_threads_come_whole():
    def script(request):
        name = request.target.partition("?")[0].rsplit("/")[-1]
        whole(name.encode() * 5000)(request)

    wrong = []
    with RawServer(script) as server:

        def work(worker):
            for number in range(10):
                with open_blocks(server.url(f"{worker}-{number}"), StoreOptions(block_bytes=777)) as source:
                    if b"".join(source) != f"{worker}-{number}".encode() * 5000:
                        wrong.append((worker, number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong


def test_closing_halfway_again_and_again_leaves_no_socket():
    before = len(open_files())
    with RawServer(whole(BODY)) as server:
        for _ in range(30):
            with open_blocks(server.url(), PATIENT) as source:
                next(source)
    gc.collect()
    assert len(open_files()) <= before + 2


def test_an_error_comes_after_the_bytes_before_it():
    with RawServer(stall(BODY, 200_000)) as server:
        options = StoreOptions(stall_timeout=1.0, retry=Retry(attempts=1), block_bytes=1000)
        got = []
        with open_blocks(server.url(), options) as source:
            until(lambda: source._channel._done)  # the error is there before its bytes are wanted
            with pytest.raises(StallError):
                got.extend(source)
            with pytest.raises(StallError):
                next(source)
    assert sum(map(len, got)) == 200_000


def test_a_bug_in_a_reader_is_an_error_and_not_a_short_object(monkeypatch):
    def broken(self, response):
        yield b"x"
        raise ZeroDivisionError("bug")

    monkeypatch.setattr("torchdata_ais.store.transport.body.HTTPReader._read", broken)
    with RawServer(whole(BODY)) as server, open_blocks(server.url(), PATIENT) as source:
        assert next(source) == b"x"
        with pytest.raises(ReadError, match="ZeroDivisionError") as caught:
            next(source)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
