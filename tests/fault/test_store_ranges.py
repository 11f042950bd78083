"""`read_range`: the bytes asked for, fewer only at the object's end, or an error; never others."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from helpers.leftovers import descriptors
from helpers.raw_server import RawServer, raw, silent, status

from torchdata_ais.errors import (
    NotFoundError,
    ObjectChangedError,
    ReadError,
    StallError,
    TransportError,
    UsageError,
)
from torchdata_ais.store import Retry, Stats, StoreOptions, read_range
from torchdata_ais.store.transport import body as body_module
from torchdata_ais.store.transport.metadata import ObjectMetadata

BODY = random.Random(1).randbytes(1000)


def answer(
    first: int, last: int, data: bytes, *, total: str = "1000", code: str = "206 Partial Content"
) -> bytes:
    lines = [f"HTTP/1.1 {code}", f"Content-Length: {len(data)}", "Ais-Version: 1", "Connection: close"]
    lines += [f"Content-Range: bytes {first}-{last}/{total}"] if code.startswith("206") else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


GOOD = answer(100, 149, BODY[100:150])


def read(*answers: bytes, start: int = 100, length: int = 50, attempts: int = 2) -> bytes:
    with RawServer(*(raw(one) for one in answers)) as server:
        options = StoreOptions(server.endpoint, retry=Retry(attempts, backoff=0.0, deadline=15.0))
        found = read_range("ais://b/s.tar", start, length, options)
        assert server.requests[0].headers["range"] == f"bytes={start}-{start + length - 1}"
        return found


def test_promise_1_a_range_is_what_was_asked_for() -> None:
    assert read(GOOD) == BODY[100:150]
    assert read(answer(100, 149, BODY[100:150], total="*")) == BODY[100:150]
    assert read(answer(980, 999, BODY[980:]), start=980) == BODY[980:]
    assert read(answer(0, 0, BODY, code="200 OK")) == BODY[100:150]  # a server that knows no ranges
    assert read(answer(0, 0, BODY, code="200 OK"), start=980) == BODY[980:]
    assert read(answer(0, 0, b"", code="416 Range Not Satisfiable"), start=2000) == b""
    assert read_range("ais://b/s.tar", 5, 0, StoreOptions("http://127.0.0.1:9")) == b""


@pytest.mark.parametrize(
    "wrong",
    [
        GOOD[:-1],
        GOOD[: GOOD.index(b"\r\n\r\n") + 4],
        GOOD[:30],
        b"",
        answer(99, 148, BODY[99:149]),
        answer(100, 139, BODY[100:140]),
        answer(100, 149, BODY[100:149]),
        answer(100, 199, BODY[100:200]),
        answer(100, 149, BODY[100:150]).replace(b"Content-Range", b"X-Range"),
        answer(0, 0, BODY, code="200 OK")[:-900],
    ],
)
def test_promise_1_what_is_not_as_asked_is_asked_for_again(wrong: bytes) -> None:
    assert read(wrong, GOOD) == BODY[100:150]
    with pytest.raises(TransportError):
        read(wrong)


def parts(*answers: bytes, attempts: int = 2) -> tuple[list[bytes], list[str]]:
    """Return the parts of 30, 1 and 19 bytes that came from byte 100 on, and the requested ranges."""
    found: list[bytes] = []
    with RawServer(*(raw(one) for one in answers)) as server:
        options = StoreOptions(server.endpoint, retry=Retry(attempts, backoff=0.0, deadline=15.0))
        stats = Stats()
        try:
            rest = read_range(
                "ais://b/s.tar", 100, 50, options,
                stats=stats, parts=[30, 1, 19], arrived=lambda part: found.append(bytes(part)),
            )  # fmt: skip
            assert not rest
            assert stats.bytes == sum(map(len, found))
        except ReadError as error:
            assert stats.bytes == sum(map(len, found))
            found.append(error.what.encode())
        return found, [one.headers["range"] for one in server.requests]


PARTS = [BODY[100:130], BODY[130:131], BODY[131:150]]


@pytest.mark.parametrize(("came", "continued"), [(0, 100), (29, 100), (30, 130), (31, 131), (49, 131)])
def test_promise_1_parts_of_a_range_come_once_and_it_is_continued(came: int, continued: int) -> None:
    assert parts(GOOD) == (PARTS, ["bytes=100-149"])
    whole = answer(0, 0, BODY, code="200 OK")
    assert parts(whole) == (PARTS, ["bytes=100-149"])
    cut = GOOD[: len(GOOD) - 50 + came]
    rest = answer(continued, 149, BODY[continued:150])
    assert parts(whole[: len(whole) - 900 + came], rest)[0] == PARTS
    assert parts(cut, whole)[0] == PARTS
    assert parts(cut, rest) == (PARTS, ["bytes=100-149", f"bytes={continued}-149"])
    *found, error = parts(cut, attempts=1)[0]
    assert found == PARTS[: {100: 0, 130: 1, 131: 2}[continued]]
    assert b"broke off" in error
    other = answer(continued + 1, 149, BODY[continued + 1 : 150])
    assert b"another range than was requested" in parts(cut, other, attempts=2)[0][-1]


def test_parts_end_with_the_object() -> None:
    assert parts(answer(0, 0, b"", code="416 Range Not Satisfiable"))[0] == []
    assert parts(answer(100, 129, BODY[100:130], total="130"))[0] == PARTS[:1]
    assert parts(answer(100, 139, BODY[100:140], total="140"))[0] == [*PARTS[:2], BODY[131:140]]
    assert parts(answer(100, 119, BODY[100:120], total="120"))[0] == [BODY[100:120]]
    assert parts(answer(0, 0, BODY[:140], code="200 OK"))[0] == [*PARTS[:2], BODY[131:140]]


LONG = random.Random(2).randbytes(300_000)


@pytest.mark.parametrize("ahead", [8192, 10_000, 1 << 20])
@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 16_384, 131_072, 131_073, 299_900, 300_000])
def test_promise_1_a_long_range_is_received_in_steps(
    monkeypatch: pytest.MonkeyPatch, ahead: int, size: int
) -> None:
    monkeypatch.setattr(body_module, "_AHEAD", ahead)
    start = min(100, len(LONG) - size)
    data = LONG[start : start + size]
    part = answer(start, start + size - 1, data, total=str(len(LONG)))
    whole = answer(0, 0, LONG, code="200 OK")
    unknown = b"HTTP/1.1 200 OK\r\nAis-Version: 1\r\nConnection: close\r\n\r\n" + LONG
    for good in (part, whole, unknown):
        assert read(good, start=start, length=size) == data
    for cut in {1, (size + 1) // 2, size}:
        assert read(part[: len(part) - cut], part, start=start, length=size) == data
        with pytest.raises(ReadError, match="broke off"):
            read(part[: len(part) - cut], start=start, length=size, attempts=1)


@pytest.mark.parametrize("chunked", [False, True])
def test_promise_1_long_parts_are_those_of_the_range(chunked: bool) -> None:
    sizes = [1, 9000, 150_000, 524_288 - 150_000, 524_288, 524_289, 3, 300_000]
    data = random.Random(3).randbytes(sum(sizes))
    part = answer(7, 6 + len(data), data, total="*")
    if chunked:
        head, _, body = part.partition(b"\r\n\r\n")
        lines = [one for one in head.split(b"\r\n") if not one.startswith(b"Content-Length")]
        frames = [b"%x\r\n%b\r\n" % (len(one), one) for one in (body[:5], body[5:70_000], body[70_000:])]
        part = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b"".join(frames) + b"0\r\n\r\n"])
    found: list[bytes] = []
    with RawServer(raw(part)) as server:
        read_range(
            "ais://b/s.tar", 7, len(data), StoreOptions(server.endpoint),
            parts=sizes, arrived=lambda part: found.append(bytes(part)),
        )  # fmt: skip
    assert list(map(len, found)) == sizes
    assert b"".join(found) == data


def test_errors_say_what_they_are() -> None:
    with RawServer(status(404)) as server, pytest.raises(NotFoundError):
        read_range("ais://b/s.tar", 0, 9, StoreOptions(server.endpoint))
    with RawServer(status(503), raw(GOOD)) as server:
        options = StoreOptions(server.endpoint, retry=Retry(2, backoff=0.0))
        assert read_range("ais://b/s.tar", 100, 50, options) == BODY[100:150]
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    with pytest.raises(ReadError, match="not an AIStore"):
        read(page)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_ranges_of_local_files_leave_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(BODY)
    options = StoreOptions()
    for start in range(40):
        assert read_range(str(path), start, 10, options) == BODY[start : start + 10]
        with pytest.raises(ObjectChangedError):
            read_range(str(path), start, 10, options, known=ObjectMetadata(size=1001))
        with pytest.raises(NotFoundError):
            read_range(f"{path}.none", start, 10, options)
        with pytest.raises(UsageError):
            read_range(str(tmp_path), start, 10, options)  # a folder
        assert not read_range(str(path), 2000, 10, options)
    assert descriptors(tmp_path) == 0


@pytest.mark.parametrize(("start", "length"), [(0, 1000), (0, 1001), (999, 1), (999, 2), (1000, 1), (5, 0)])
def test_ranges_at_exactly_the_end_of_a_file(tmp_path: Path, start: int, length: int) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(BODY)
    assert read_range(str(path), start, length, StoreOptions()) == BODY[start : start + length]


def test_promise_6_a_server_that_falls_silent_is_given_up() -> None:
    with RawServer(silent) as server:
        options = StoreOptions(server.endpoint, first_byte_timeout=0.3, retry=Retry(1))
        with pytest.raises(StallError):
            read_range("ais://b/s.tar", 0, 9, options)
