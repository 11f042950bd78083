"""`read_batch`: each range that arrives is the one asked for, whole; what did not come so is named, whatever came."""

from __future__ import annotations

import json
import random
import socket
import struct
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from helpers.examples import examples
from helpers.raw_server import RawServer, Request, Script, raw, redirect, status
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais.errors import (
    AuthError,
    ConnectError,
    NotFoundError,
    ReadError,
    StallError,
    TransportError,
    UsageError,
)
from torchdata_ais.local import (
    Action,
    Cut,
    DeadRedirect,
    EmptyEntry,
    EndBatch,
    LocalCluster,
    Placeholder,
    Reset,
    Stall,
    Status,
    SwapEntries,
    WholeObject,
)
from torchdata_ais.store import (
    BatchAnswer,
    Cancel,
    Cancelled,
    ConcurrencyLimit,
    Retry,
    StoreOptions,
    batch_group,
    put_object,
    read_batch,
    read_range,
)
from torchdata_ais.store.transport.batches import Asked, NotAsAskedError, entries_of

RANDOM = random.Random(3)
LONG = "ein/langer/" + "n" * 120 + "/ü name?&#%+.tar"
SHARDS = {f"ais://b/{name}": RANDOM.randbytes(6000) for name in ("s-0.tar", "s-1.tar", LONG)}
SHARDS |= {"ais://other/s-0.tar": RANDOM.randbytes(6000)}
WANTED = [
    ("ais://b/s-0.tar", 0, 1),
    ("ais://b/s-1.tar", 100, 511),
    ("ais://b/s-0.tar", 5, 512),
    ("ais://other/s-0.tar", 5000, 513),
    (f"ais://b/{LONG}", 7, 700),
    ("ais://b/s-1.tar", 100, 511),
]
Found = dict[int, bytes]


def bytes_of(wanted: tuple[str, int, int]) -> bytes:
    url, start, length = wanted
    return SHARDS[url][start : start + length]


RIGHT = {number: bytes_of(one) for number, one in enumerate(WANTED)}


def entry(name: str, data: bytes, size: int | None = None, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data) if size is None else size, kind
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)


def name_of(url: str) -> str:
    return url.removeprefix("ais://")


ENTRIES = [entry(name_of(one[0]), bytes_of(one)) for one in WANTED]
END = bytes(1024)
ARCHIVE = b"".join(ENTRIES) + END


def chunked(body: bytes, size: int = 1000, *, whole: bool = True) -> bytes:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + framed + (b"0\r\n\r\n" if whole else b"")


def asked_in(request: Request) -> dict[str, Any]:
    """Read and return the body of the request."""
    data = b""
    while len(data) < int(request.headers["content-length"]):
        data += request.sock.recv(1 << 16)
    request.headers["asked"] = data.decode()
    return dict(json.loads(data))


def answer(data: bytes, *, reset: bool = False) -> Script:
    """Send the bytes of a response, then close the connection."""

    def script(request: Request) -> bool:
        asked_in(request)
        request.send(data)
        if reset:
            request.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return script


def serve(request: Request) -> None:
    """Answer as a cluster does."""
    asked = asked_in(request)
    places = [
        (f"ais://{one.get('bucket', 'b')}/{one['objname']}", one["start"], one["length"])
        for one in asked["in"]
    ]
    request.send(chunked(b"".join(entry(name_of(one[0]), bytes_of(one)) for one in places) + END))


def then(script: Script) -> Script:
    """Read the body of the request first."""

    def both(request: Request) -> object:
        asked_in(request)
        return script(request)

    return both


def store(server: RawServer, attempts: int = 3, **more: Any) -> StoreOptions:
    return StoreOptions(server.endpoint, retry=Retry(attempts, backoff=0.0, deadline=20.0), **more)


def read(
    *scripts: Script, wanted: Sequence[tuple[str, int, int]] = WANTED, attempts: int = 3
) -> tuple[BatchAnswer, Found, list[Request]]:
    found: Found = {}
    with RawServer(*scripts) as server:
        got = read_batch(wanted, store(server, attempts), found.__setitem__)
        return got, found, server.requests


def numbers_asked(request: Request) -> list[tuple[str, int, int]]:
    entries = json.loads(request.headers["asked"])["in"]
    return [(one["objname"], one["start"], one["length"]) for one in entries]


def test_each_range_is_what_was_asked_for() -> None:
    order: list[int] = []
    found: Found = {}

    def arrived(number: int, data: bytes) -> None:
        order.append(number)
        found[number] = data

    with RawServer(serve) as server:
        wanted = [*WANTED, ("ais://b/s-0.tar", 9, 0)]
        assert read_batch(wanted, store(server), arrived) == BatchAnswer()
        assert read_batch([], store(server), arrived) == BatchAnswer()
        (request,) = server.requests
    assert found == RIGHT | {6: b""}
    assert order == [6, 0, 1, 2, 3, 4, 5]
    assert (request.method, request.target) == ("GET", "/v1/ml/moss/b?provider=ais")
    assert json.loads(request.headers["asked"]) == {
        "in": [
            {"objname": "s-0.tar", "start": 0, "length": 1},
            {"objname": "s-1.tar", "start": 100, "length": 511},
            {"objname": "s-0.tar", "start": 5, "length": 512},
            {"objname": "s-0.tar", "start": 5000, "length": 513, "bucket": "other", "provider": "ais"},
            {"objname": LONG, "start": 7, "length": 700},
            {"objname": "s-1.tar", "start": 100, "length": 511},
        ],
        "mime": ".tar",
        "coer": True,
        "onob": False,
        "strm": True,
    }


def test_a_namespace_is_named_by_the_request() -> None:
    with RawServer(then(status(501))) as server:
        read_batch([("ais://@u#n/b/s", 0, 1)], store(server), print)
        assert server.requests[0].target == "/v1/ml/moss/b?provider=ais&namespace=%40u%23n"


def test_what_one_request_cannot_name_is_refused() -> None:
    options = StoreOptions("http://127.0.0.1:9")
    for other in ("s3://b/s-0.tar", "http://127.0.0.1:8/v1/objects/b/s-0.tar?provider=ais", "ais://@#n/b/s"):
        with pytest.raises(UsageError, match="one request cannot name"):
            read_batch([WANTED[0], (other, 0, 1)], options, print)
    for alone in ("/s-0.tar", "ais://b/", "http://127.0.0.1:9/v1/objects/b/s?provider=ais&etl_name=x"):
        with pytest.raises(UsageError, match="no object as it is stored"):
            batch_group(alone, options)
    with pytest.raises(UsageError, match="no cluster is named"):
        batch_group("ais://b/s", StoreOptions())


WRONG = {
    "another name": entry("b/s-9.tar", RIGHT[1]),
    "another bucket": entry("other/s-1.tar", RIGHT[1]),
    "no bucket": entry("s-1.tar", RIGHT[1]),
    "fewer bytes": entry("b/s-1.tar", RIGHT[1][:-1]),
    "more bytes": entry("b/s-1.tar", RIGHT[1] + b"x"),
    "the whole object": entry("b/s-1.tar", SHARDS["ais://b/s-1.tar"]),
    "no bytes": entry("b/s-1.tar", b""),
    "a size that is not there": entry("b/s-1.tar", b"", 1 << 40),
    "a placeholder of another": entry("__404__/b/s-9.tar", b""),
    "a placeholder with bytes": entry("__404__/b/s-1.tar", RIGHT[1]),
    "the entry after it": ENTRIES[2],
    "the entry before it": ENTRIES[0],
    "a folder": entry("b/s-1.tar", b"", 0, tarfile.DIRTYPE),
    "a link": entry("b/s-1.tar", RIGHT[1], kind=tarfile.SYMTYPE),
    "no header": b"x" * 512,
    "a damaged header": ENTRIES[1][:100] + b"x" + ENTRIES[1][101:],
    "records that are none": entry("b/s-1.tar", b"nothing", kind=tarfile.XHDTYPE),
    "records without an end": entry("b/s-1.tar", b"", 1 << 30, tarfile.XHDTYPE),
    "the end": b"",
}


@pytest.mark.parametrize("case", WRONG)
def test_promise_1_what_was_not_asked_for_is_not_taken(case: str) -> None:
    got, found, requests = read(answer(chunked(ENTRIES[0] + WRONG[case] + b"".join(ENTRIES[2:]) + END)))
    if case == "the end":
        got, found, requests = read(answer(chunked(ENTRIES[0] + END)))
    assert found == {0: RIGHT[0]}
    assert (got.missing, got.absent) == ((1, 2, 3, 4, 5), ())
    assert not got.answered_as_asked
    assert got.supported
    assert got.reason
    assert len(requests) == 1


def test_promise_7_an_entry_of_another_size_is_not_read() -> None:
    taken = threading.Event()

    def endless(request: Request) -> bool:
        asked_in(request)
        request.send(chunked(entry("b/s-0.tar", b"", 1 << 40), whole=False))
        try:
            while True:
                request.send(b"%x\r\n%s\r\n" % (1 << 20, bytes(1 << 20)))
        except OSError:
            taken.set()
        return False

    got, found, _ = read(endless)
    assert taken.is_set()
    assert not got.answered_as_asked
    assert found == {}
    assert f"{1 << 40} bytes" in got.reason


@pytest.mark.parametrize("size", [0, 60_000])
def test_promise_6_extension_headers_without_end_are_not_read_to_an_end(size: int) -> None:
    records = b"%d comment=%s\n" % (size + 15, b"x" * size) if size else b""
    header = entry("b/s-0.tar", records, kind=tarfile.XHDTYPE)
    sent = 0

    def endless(request: Request) -> bool:
        nonlocal sent
        asked_in(request)
        request.send(chunked(b"", whole=False))
        try:
            while sent < 64 << 20:
                piece = header * (1 + 20_000 // len(header))
                request.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
        except OSError:
            pass
        return False

    got, found, _ = read(endless)
    assert found == {}
    assert "bytes of extension headers" in got.reason
    assert sent < 64 << 20


@pytest.mark.parametrize("more", [ENTRIES[0] + END, END[:512] + ENTRIES[0] + END, b"x" * 512 + END])
def test_more_than_was_asked_for_is_noticed(more: bytes) -> None:
    got, found, _ = read(answer(chunked(b"".join(ENTRIES) + more)))
    assert found == RIGHT
    assert (got.missing, got.answered_as_asked) == ((), False)


def test_an_archive_may_be_filled_up_with_zeros() -> None:
    assert read(answer(chunked(ARCHIVE + bytes(-len(ARCHIVE) % 10240))))[:2] == (BatchAnswer(), RIGHT)


def test_what_the_cluster_lacks_is_named_and_the_rest_comes() -> None:
    lacking = entry("__404__/" + name_of(WANTED[1][0]), b"")
    lacking_long = entry("__404__/" + name_of(WANTED[4][0]), b"")
    archive = ENTRIES[0] + lacking + ENTRIES[2] + ENTRIES[3] + lacking_long + ENTRIES[5] + END
    got, found, _ = read(answer(chunked(archive)))
    assert got == BatchAnswer((1, 4), (1, 4))
    assert found == {number: RIGHT[number] for number in (0, 2, 3, 5)}


def test_what_the_cluster_lacks_is_not_asked_for_again() -> None:
    lacking = entry("__404__/b/s-0.tar", b"")
    begun = chunked(lacking + ENTRIES[1], whole=False)
    got, found, requests = read(answer(begun), serve)
    assert got == BatchAnswer((0,), (0,))
    assert found == {number: RIGHT[number] for number in range(1, 6)}
    assert len(numbers_asked(requests[1])) == 4


def test_what_comes_after_a_missing_object_counts_at_once() -> None:
    wanted = [("ais://b/gone.tar", 0, 100_000), *WANTED]
    lacking = entry("__404__/b/gone.tar", b"")
    cuts = [answer(chunked(one, whole=False)) for one in (lacking + ENTRIES[0], *ENTRIES[1:5])]
    got, found, requests = read(*cuts, answer(chunked(ENTRIES[5] + END)), wanted=wanted, attempts=2)
    assert got == BatchAnswer((0,), (0,))
    assert found == {number + 1: data for number, data in RIGHT.items()}
    assert [len(numbers_asked(request)) for request in requests] == [7, 5, 4, 3, 2, 1]


def test_an_answer_cut_after_its_last_entry_is_whole_even_if_that_one_is_missing() -> None:
    got, found, requests = read(
        answer(chunked(ENTRIES[0] + entry("__404__/b/gone.tar", b""), whole=False)),
        wanted=[WANTED[0], ("ais://b/gone.tar", 0, 100_000)],
    )
    assert (got, found, len(requests)) == (BatchAnswer((1,), (1,)), {0: RIGHT[0]}, 1)


HEAD = len(chunked(b"", whole=False))
WHOLE = chunked(ARCHIVE, 300)


@settings(max_examples=examples(150), deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), reset=st.booleans())
def test_promise_1_after_a_cut_anywhere_only_the_rest_is_asked_for(at: int, reset: bool) -> None:
    got, found, requests = read(answer(WHOLE[:at], reset=reset), serve)
    assert (got, found) == (BatchAnswer(), RIGHT)
    if len(requests) == 2:
        rest = numbers_asked(requests[1])
        assert rest == numbers_asked(requests[0])[-len(rest) :]
        assert at < HEAD or reset or len(rest) < 6 or at < HEAD + 1100
    else:
        assert at > len(WHOLE) - 1100  # all had come


@settings(max_examples=examples(150), deadline=None)
@given(at=st.integers(0, len(ARCHIVE)), plain=st.booleans())
def test_promise_1_an_answer_that_ends_early_in_good_order_is_no_whole_one(at: int, plain: bool) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nContent-Length: {at}\r\n\r\n".encode()
    got, found, requests = read(answer(head + ARCHIVE[:at] if plain else chunked(ARCHIVE[:at])))
    assert found == {number: RIGHT[number] for number in range(len(found))}
    assert got.missing == tuple(range(len(found), 6))
    assert got.answered_as_asked == (at >= len(ARCHIVE) - 512)
    assert len(requests) == 1
    ends = [sum(map(len, ENTRIES[: number + 1])) for number in range(6)]
    assert len(found) >= sum(end <= at for end in ends)


HEADERS = [
    sum(map(len, ENTRIES[:number])) for number in (0, 1, 2, 3, 5)
]  # of all but the one with PAX records


@settings(max_examples=examples(100), deadline=None)
@given(at=st.sampled_from(HEADERS), byte=st.integers(0, 511), bit=st.integers(0, 7))
def test_promise_1_a_header_with_a_flipped_bit_is_not_believed(at: int, byte: int, bit: int) -> None:
    archive = bytearray(ARCHIVE)
    archive[at + byte] ^= 1 << bit
    got, found, _ = read(answer(chunked(bytes(archive))))
    assert found == {number: RIGHT[number] for number in range(len(found))}
    # A blank or a zero at the end of a number field means the same.
    if got.answered_as_asked:
        assert found == RIGHT
    else:
        assert got.missing == tuple(range(len(found), 6))


class Pieces:
    """A body that is there already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def fill(self, view: memoryview) -> int:
        taken = self.take(len(view))
        view[: len(taken)] = taken
        return len(taken)


SOUP = st.lists(
    st.one_of(st.sampled_from([*ENTRIES, *WRONG.values(), END, END[:512]]), st.binary(max_size=600)),
    max_size=8,
)


@settings(max_examples=examples(500), deadline=None)
@given(parts=SOUP)
def test_promise_1_whatever_comes_is_as_asked_or_refused(parts: list[bytes]) -> None:
    asked = [Asked(number, name_of(url), start, length) for number, (url, start, length) in enumerate(WANTED)]
    numbers: list[int] = []
    with suppress(NotAsAskedError):
        for number, data in entries_of(Pieces(b"".join(parts)), asked):  # type: ignore[arg-type]
            assert data is not None
            assert len(data) == WANTED[number][2]
            numbers.append(number)
    assert numbers == list(range(len(numbers)))


REFUSED: list[tuple[Script, type[TransportError]]] = [
    (status(401), AuthError),
    (status(403), AuthError),
    (status(404, body=b'{"message":"bucket \\"ais://b\\" does not exist"}'), NotFoundError),
    (status(400, body=b'{"message":"no storage targets"}'), ReadError),
    (status(500), ReadError),
    (status(507), ReadError),
    (status(200, "Content-Type: text/html", body=b"<html>"), ReadError),
]


@pytest.mark.parametrize(("script", "kind"), REFUSED)
def test_errors_say_what_they_are(script: Script, kind: type[TransportError]) -> None:
    with pytest.raises(kind, match="ais://b") as caught:
        read(then(script), attempts=1)
    assert caught.value.url == "ais://b"


@pytest.mark.parametrize("code", [400, 404, 405, 501])
def test_a_server_that_knows_no_batches_is_told_apart(code: int) -> None:
    message = b'{"message":"invalid request URI: \'GET /v1/ml/moss/b\'"}'
    got, found, requests = read(then(status(code, body=message)))
    assert (got.missing, found, len(requests)) == ((0, 1, 2, 3, 4, 5), {}, 1)
    assert not got.supported
    assert not got.answered_as_asked
    assert "invalid request URI" in got.reason


def test_a_proxy_that_does_not_reach_a_target_is_asked_again() -> None:
    what = 'Post \\"http://10.0.0.1:51081/v1/ml/moss/b/noxid/x/2?provider=ais&tid=t\\": dial tcp: connection refused'
    gone = then(status(400, body=f'{{"tcode":"Error","message":"{what}","status":400}}'.encode()))
    got, found, requests = read(gone, gone, serve)
    assert (got, found, len(requests)) == (BatchAnswer(), RIGHT, 3)
    with pytest.raises(ReadError, match=r"connection refused.*Start the storage targets"):
        read(gone)


def test_a_target_that_refuses_does_know_them() -> None:
    with RawServer(then(status(400, body=b'{"message":"not satisfiable range"}'))) as target:
        location = f"{target.endpoint}/v1/ml/moss/b/gbt-x/y/2?provider=ais"
        got, _, _ = read(then(redirect(location, 307)))
    assert got.supported
    assert not got.answered_as_asked
    assert "not satisfiable range" in got.reason


@pytest.mark.parametrize("code", [429, 503])
def test_a_busy_cluster_is_asked_again_when_it_says(code: int) -> None:
    found: Found = {}
    pace = ConcurrencyLimit(first=8)
    with RawServer(then(status(code, "Retry-After: 0.3")), serve) as server:
        begun = time.monotonic()
        assert read_batch(WANTED, store(server), found.__setitem__, pace=pace) == BatchAnswer()
        assert time.monotonic() - begun >= 0.3
    assert found == RIGHT
    assert 4.0 < pace.limit < 5.0
    assert pace.running == 0


def test_a_range_keeps_the_pace_too() -> None:
    pace = ConcurrencyLimit(first=8)
    head = "HTTP/1.1 206 Partial Content", "Ais-Version: 1", "Content-Range: bytes 0-1/9", "Content-Length: 2"
    data = "\r\n".join([*head, "", "ab"]).encode()
    with RawServer(status(429), raw(data)) as server:
        assert read_range("ais://b/s", 0, 2, store(server), pace=pace) == b"ab"
    assert 4.0 < pace.limit < 5.0


def test_an_entry_that_came_begins_the_count_of_attempts_anew() -> None:
    cuts = [answer(chunked(one, whole=False)) for one in ENTRIES[:5]]
    got, found, requests = read(*cuts, serve, attempts=2)
    assert (got, found, len(requests)) == (BatchAnswer(), RIGHT, 6)
    assert [len(numbers_asked(request)) for request in requests] == [6, 5, 4, 3, 2, 1]
    found.clear()
    one, none = (answer(chunked(data, whole=False)) for data in (ENTRIES[0], b""))
    with RawServer(one, none) as server:
        with pytest.raises(ReadError, match=r"6 ranges.* broke off .*tried 2 times"):
            read_batch(WANTED, store(server, 2), found.__setitem__)
    assert found == {0: RIGHT[0]}


@pytest.mark.ci
def test_promise_6_a_server_that_falls_silent_or_drips_is_given_up() -> None:
    def silent(request: Request) -> bool:
        asked_in(request)
        request.send(WHOLE[: HEAD + 900])
        request.wait()
        return False

    def drip(request: Request) -> bool:
        asked_in(request)
        request.send(WHOLE[:HEAD])
        for byte in WHOLE[HEAD:]:
            if request.closing.wait(0.05):
                break
            request.send(bytes([byte]))
        return False

    for script in (silent, drip):
        found: Found = {}
        begun = time.monotonic()
        with RawServer(script) as server, pytest.raises(StallError):
            read_batch(WANTED, store(server, 1, stall_timeout=0.3), found.__setitem__)
        assert time.monotonic() - begun < 10
        assert found == {number: RIGHT[number] for number in range(len(found))}


@pytest.mark.ci
def test_promise_6_the_deadline_is_that_of_the_whole_request() -> None:
    def slowly(request: Request) -> bool:
        asked_in(request)
        request.send(chunked(b"", whole=False))
        for one in ENTRIES:
            request.send(chunked(one, len(one), whole=False)[HEAD:])
            if request.closing.wait(0.5):
                break
        return False

    found: Found = {}
    with RawServer(slowly) as server:
        options = StoreOptions(server.endpoint, retry=Retry(3, backoff=0.0, deadline=1.5))
        with pytest.raises(StallError, match=r"deadline of 1\.5 s"):
            read_batch(WANTED, options, found.__setitem__)
    assert 0 < len(found) < 6


@pytest.mark.parametrize("when", ["before", "in the answer", "in a pause", "waiting for a turn"])
def test_promise_6_it_can_be_cancelled(when: str) -> None:
    cancel = Cancel()
    begun = threading.Event()
    pace = ConcurrencyLimit(first=1)

    def silent(request: Request) -> bool:
        asked_in(request)
        request.send(WHOLE[: HEAD + 900])
        begun.set()
        request.wait()
        return False

    def busy(request: Request) -> None:
        then(status(429, "Retry-After: 15"))(request)
        begun.set()

    with RawServer(busy if when == "in a pause" else silent) as server:
        ended: list[BaseException] = []

        def run() -> None:
            try:
                read_batch(WANTED, store(server), lambda *_: None, cancel=cancel, pace=pace)
            except Cancelled as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        if when == "before":
            cancel.cancel()
        if when == "waiting for a turn":
            with pace.turn():
                thread.start()
                cancel.cancel()
                thread.join(60)
        else:
            thread.start()
            if when != "before":
                assert begun.wait(60)
                cancel.cancel()
            thread.join(60)
        assert len(ended) == 1


def test_promise_6_a_range_can_be_cancelled() -> None:
    cancel = Cancel()
    begun = threading.Event()

    def silent(request: Request) -> bool:
        begun.set()
        request.wait()
        return False

    with RawServer(silent) as server:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read_range, "ais://b/s", 0, 9, store(server), cancel=cancel)
            assert begun.wait(60)
            cancel.cancel()
            with pytest.raises(Cancelled):
                reading.result(60)


def test_an_error_of_who_takes_the_bytes_ends_it() -> None:
    def full(number: int, data: bytes) -> None:
        raise ZeroDivisionError

    with RawServer(serve) as server:
        with pytest.raises(ZeroDivisionError):
            read_batch(WANTED, store(server), full)
        assert len(server.requests) == 1


def test_no_connection_is_an_error_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectError, match="no connection"):
        read_batch(WANTED, StoreOptions(f"http://127.0.0.1:{port}", retry=Retry(1)), print)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as running:
        for bucket in ("b", "other"):
            running.client().bucket(bucket).create()
        for url, data in SHARDS.items():
            put_object(url, data, StoreOptions(running.endpoint))
        yield running


def from_cluster(cluster: LocalCluster, attempts: int = 3) -> tuple[BatchAnswer, Found]:
    found: Found = {}
    options = StoreOptions(cluster.endpoint, retry=Retry(attempts, backoff=0.0, deadline=20.0))
    return read_batch(WANTED, options, found.__setitem__), found


@pytest.fixture
def faults(cluster: LocalCluster) -> Iterator[Callable[..., int]]:
    def add(action: Action, **more: Any) -> int:
        return cluster.faults.add(action, verb="BATCH", **more)

    cluster.reset_stats()
    yield add
    cluster.faults.clear()


def test_a_cluster_is_asked_at_its_proxy_each_time(cluster: LocalCluster, faults: Callable[..., int]) -> None:
    for _ in range(3):
        assert from_cluster(cluster) == (BatchAnswer(), RIGHT)
    assert cluster.stats().count("GET", 307, "proxy") == 3
    assert cluster.stats().count("GET", 200, "target") == 3


NOT_AS_ASKED: list[tuple[Action, int]] = [
    (EndBatch(0), 0),
    (EndBatch(5), 5),
    (WholeObject(0), 0),
    (WholeObject(3), 3),
    (EmptyEntry(4), 4),
    (EmptyEntry(-1), 5),
    (SwapEntries(0, 1), 0),
    (SwapEntries(0, 2), 0),  # of one object, of other sizes
    (SwapEntries(3, 5), 3),
]


@pytest.mark.parametrize(("action", "arrive"), NOT_AS_ASKED)
def test_promise_1_what_a_cluster_answers_with_200_is_compared(
    cluster: LocalCluster, faults: Callable[..., int], action: Action, arrive: int
) -> None:
    faults(action)
    got, found = from_cluster(cluster)
    assert found == {number: RIGHT[number] for number in range(arrive)}
    assert got.missing == tuple(range(arrive, 6))
    assert not got.answered_as_asked
    assert got.supported


def test_placeholders_of_a_cluster(cluster: LocalCluster, faults: Callable[..., int]) -> None:
    faults(Placeholder(0))
    faults(Placeholder(4))
    got, found = from_cluster(cluster)
    assert got == BatchAnswer((0, 4), (0, 4))
    assert found == {number: RIGHT[number] for number in (1, 2, 3, 5)}


@pytest.mark.parametrize("at", [0, 1, 511, 512, 513, 1024, 1100, 1535, 1536, 2047, 2048, -1, -512, -1023])
@pytest.mark.parametrize("end", [Cut, Reset])
def test_promise_1_an_archive_cut_in_header_data_padding_or_end(
    cluster: LocalCluster, faults: Callable[..., int], end: Callable[[int], Action], at: int
) -> None:
    fault = faults(end(at), nth=1)
    assert from_cluster(cluster) == (BatchAnswer(), RIGHT)
    assert cluster.faults.fired(fault) == 1
    assert cluster.stats().count("GET", 200, "target") == (1 if -1024 < at < 0 else 2)


def test_promise_6_a_target_that_goes_away_in_the_middle(
    cluster: LocalCluster, faults: Callable[..., int]
) -> None:
    faults(Reset(1600), times=1)
    dead = faults(DeadRedirect(), nth=[2, 3])
    assert from_cluster(cluster, 5) == (BatchAnswer(), RIGHT)
    assert cluster.faults.fired(dead) == 2
    faults(DeadRedirect())
    with pytest.raises(ConnectError, match="the storage target that"):
        from_cluster(cluster)


@pytest.mark.parametrize("action", [Status(429, 0.1), Status(503), Stall(at=800, seconds=0.2)])
@pytest.mark.parametrize("at_proxy", [False, True])
def test_a_busy_cluster(
    cluster: LocalCluster, faults: Callable[..., int], action: Action, at_proxy: bool
) -> None:
    faults(action, nth=[1, 2], at_proxy=at_proxy)
    assert from_cluster(cluster) == (BatchAnswer(), RIGHT)


def test_ranges_that_are_not_there(cluster: LocalCluster) -> None:
    found: Found = {}
    wanted = [WANTED[0], ("ais://b/s-0.tar", 5990, 11), ("ais://b/none", 0, 4)]
    got = read_batch(wanted, StoreOptions(cluster.endpoint), found.__setitem__)
    assert (got.missing, got.supported, got.answered_as_asked) == ((0, 1, 2), True, False)
    assert "not satisfiable range" in got.reason
    got = read_batch([wanted[0], wanted[2], WANTED[1]], StoreOptions(cluster.endpoint), found.__setitem__)
    assert got == BatchAnswer((1,), (1,))
    assert found == {0: RIGHT[0], 2: RIGHT[1]}
    with pytest.raises(NotFoundError, match="nowhere"):
        read_batch([("ais://nowhere/s", 0, 1)], StoreOptions(cluster.endpoint), print)


def test_promise_7_memory_is_one_range(cluster: LocalCluster) -> None:
    options = StoreOptions(cluster.endpoint)
    size = 3 << 20
    put_object("ais://b/large", bytes(size), options)
    sizes: list[int] = []
    tracemalloc.start()
    try:
        read_batch([("ais://b/large", 0, size)] * 20, options, lambda _, data: sizes.append(len(data)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [size] * 20
    assert peak < 1.5 * size


def test_promise_6_who_waits_for_the_end_of_an_archive_keeps_nobody_from_asking() -> None:
    """Targets send the end 100 ms after the last entry."""
    found: Found = {}
    pace, goes_on = ConcurrencyLimit(first=1), threading.Event()

    def slowly(request: Request) -> None:
        asked_in(request)
        end = len(WHOLE) - 100  # within the zeros that end the archive
        request.send(WHOLE[:end])
        assert goes_on.wait(60)
        request.send(WHOLE[end:])

    with RawServer(slowly) as server, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_batch, WANTED, store(server), found.__setitem__, pace=pace)
        try:
            due = time.monotonic() + 60
            while pace.running or len(found) < len(WANTED):
                assert time.monotonic() < due
                time.sleep(0.002)
            assert not reading.done()
        finally:
            goes_on.set()
        assert reading.result(60) == BatchAnswer()
    assert found == RIGHT
