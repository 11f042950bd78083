"""A PUT of bytes that are stored already: AIStore answers 200 without a header of its own, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import xxhash
from helpers.raw_server import RawServer, Request

from torchdata_ais.errors import ReadError
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import Retry, StoreOptions, head_object, put_object
from torchdata_ais.writing import ShardWriter

BODY = b"same" * 50


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster) -> LocalCluster:
    made.reset()
    made.client().bucket("b").create()
    return made


def options(endpoint: str, **more: Any) -> StoreOptions:
    return StoreOptions(endpoint=endpoint, retry=Retry(3, backoff=0.0, deadline=15.0), **more)


def test_the_same_bytes_are_stored_once(cluster: LocalCluster) -> None:
    store = options(cluster.endpoint)
    for _ in range(2):
        put = put_object("ais://b/o", BODY, store)
        assert (put.size, put.checksum) == (len(BODY), head_object("ais://b/o", store).checksum)
        assert head_object("ais://b/o", store).version == "1"
    assert put_object("ais://b/o", BODY + b"1", store).version == "2"


def body_of(request: Request) -> bytes:
    left, data = int(request.headers.get("content-length", 0)), b""
    while len(data) < left and (more := request.sock.recv(left - len(data))):
        data += more
    return data


def test_a_put_whose_answer_was_lost_succeeds(cluster: LocalCluster) -> None:
    def loses_the_answer(request: Request) -> bool:
        put_object("ais://b/o", body_of(request), options(cluster.endpoint))
        return False

    def moves(request: Request) -> bool:
        status = 301 if request.method == "GET" else 307
        head = f"Location: {cluster.endpoint}{request.target}\r\nContent-Length: 0\r\nConnection: close"
        request.send(f"HTTP/1.1 {status} Moved\r\n{head}\r\n\r\n".encode())
        body_of(request)
        return False

    with RawServer(loses_the_answer, moves) as raw:
        assert put_object("ais://b/o", BODY, options(raw.endpoint)).size == len(BODY)
        assert [one.method for one in raw.requests][:2] == ["PUT", "PUT"]
    assert head_object("ais://b/o", options(cluster.endpoint)).version == "1"


def test_a_series_is_written_again(cluster: LocalCluster) -> None:
    for _ in range(2):
        with ShardWriter("ais://b/s-%d.tar", maxcount=2, cluster=cluster.endpoint, overwrite=True) as writer:
            for number in range(3):
                writer.write({"__key__": str(number), "cls": number})
    assert head_object("ais://b/s-1.tar", options(cluster.endpoint)).version == "1"


def server(head: str) -> RawServer:
    """Answer PUT with a bare 200, and HEAD with these header lines."""

    def script(request: Request) -> bool:
        body_of(request)
        more = head if request.method == "HEAD" else ""
        request.send(f"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n{more}\r\n".encode())
        return False

    return RawServer(script)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("", "is not an AIStore: its answer 200 to PUT has no header"),
        ("Ais-Checksum-Value: 0123456789abcdef\r\n", "has the checksum 0123456789abcdef now"),
    ],
    ids=["no AIStore", "other bytes"],
)
def test_a_bare_answer_of_a_host_that_no_map_names_is_looked_into(head: str, says: str) -> None:
    with server(head) as raw, pytest.raises(ReadError, match=says):
        put_object("ais://b/o", BODY, options(raw.endpoint))


@pytest.mark.parametrize(
    "checksum", [xxhash.xxh64_hexdigest(BODY), "ab" * 32], ids=["the same", "another kind"]
)
def test_a_bare_answer_is_believed_if_the_object_is_there(checksum: str) -> None:
    with server(f"Ais-Checksum-Value: {checksum}\r\nAis-Present: true\r\n") as raw:
        assert put_object("ais://b/o", BODY, options(raw.endpoint)).size == len(BODY)
