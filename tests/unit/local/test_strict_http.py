"""What is not exactly HTTP/1.1 is refused by the embedded cluster with 400, and nothing of it is stored."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from torchdata_ais.local import LocalCluster

PUT = b"PUT /v1/objects/b/o HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as running:
        running.client().bucket("b").create()
        yield running


def answers(url: str, data: bytes) -> list[bytes]:
    """Send bytes and return the status lines of all that comes back until the connection is closed."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=60) as sock:
        sock.sendall(data)
        got = b""
        while more := sock.recv(65536):
            got += more
    return [line for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


@pytest.mark.parametrize(
    "request_",
    [
        PUT + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        PUT + b"Content-Length: 3, 3\r\n\r\nabc",
        PUT + b"Content-Length: +3\r\n\r\nabc",
        PUT + b"Content-Length: -3\r\n\r\nabc",
        PUT + b"Content-Length: 1_0\r\n\r\n0123456789",
        PUT + b"Content-Length: 0x3\r\n\r\nabc",
        PUT + b"Content-Length: \r\n\r\n",
        PUT + b"Content-Length: \xb2\r\n\r\nab",
        PUT + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
        PUT + b"Content-Length : 3\r\n\r\nabc",
        PUT + b"Content-Length\t: 3\r\n\r\nabc",
        PUT + b" Content-Length: 3\r\n\r\nabc",
        PUT + b"X: 1\r\n folded: 2\r\nContent-Length: 3\r\n\r\nabc",
        PUT + b": 1\r\nContent-Length: 3\r\n\r\nabc",
        PUT + b"no colon\r\nContent-Length: 3\r\n\r\nabc",
        PUT + b"X: a\nContent-Length: 3\r\n\r\nabc",
        PUT + b"X: a\rb\r\nContent-Length: 3\r\n\r\nabc",
        PUT + b"X: \x00\r\nContent-Length: 3\r\n\r\nabc",
        PUT + b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc",
        PUT + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        PUT.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\nabc\r\n0\r\n\r\n",
        PUT.replace(b"HTTP/1.1", b"HTTP/9.9") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"HTTP/1.1", b"HTTP/2.0") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"HTTP/1.1", b"http/1.1") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b" HTTP/1.1", b"") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"PUT ", b"PUT  ") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"PUT ", b"P\xfcT ") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"/v1/objects/b/o", b"v1/objects/b/o") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"/b/o", b"/b/o\x01") + b"Content-Length: 3\r\n\r\nabc",
        PUT.replace(b"/b/o", b"/b/\xff") + b"Content-Length: 3\r\n\r\nabc",
        GET + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_it_is_400_and_the_end_and_nothing_is_stored(cluster: LocalCluster, request_: bytes) -> None:
    # A second request behind it, as a smuggler would send: it must never be answered.
    lines = answers(cluster.target_urls[0], request_ + GET + b"\r\n")
    assert lines == [b"HTTP/1.1 400 Bad Request"]
    assert cluster.client().bucket("b").list_all_objects() == []
    assert not list((cluster.root / "data").glob("*/*"))


@pytest.mark.parametrize(
    "head_and_body",
    [
        b"Content-Length: 3\r\n\r\nabc",
        b"content-length:3\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
        b"Transfer-Encoding: Chunked\r\n\r\n03\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2;name=value\r\nab\r\n1\r\nc\r\n0\r\nTrailer: x\r\n\r\n",
    ],
)
def test_what_is_http_is_stored(cluster: LocalCluster, head_and_body: bytes) -> None:
    lines = answers(cluster.target_urls[0], PUT + b"Connection: close\r\n" + head_and_body)
    assert lines == [b"HTTP/1.1 200 OK"]
    thing = cluster.client().bucket("b").object("o")
    assert thing.get_reader().read_all() == b"abc"
    thing.delete()


def test_a_name_as_bare_utf8_is_that_name(cluster: LocalCluster) -> None:
    put = PUT.replace(b"/b/o", "/b/ü".encode()) + b"Connection: close\r\nContent-Length: 1\r\n\r\nx"
    assert answers(cluster.target_urls[0], put) == [b"HTTP/1.1 200 OK"]
    thing = cluster.client().bucket("b").object("ü")
    assert thing.get_reader().read_all() == b"x"
    thing.delete()


def test_a_line_break_in_a_name_makes_no_header(cluster: LocalCluster) -> None:
    thing = cluster.client().bucket("b").object("a\r\nX-Evil: 1")
    thing.get_writer().put_content(b"x")
    head = b"HEAD /v1/objects/b/a%0d%0aX-Evil:%201 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    parts = urlsplit(cluster.target_urls[0])
    with socket.create_connection((str(parts.hostname), parts.port or 80), timeout=60) as sock:
        sock.sendall(head)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nX-Evil" not in answer
    thing.delete()
