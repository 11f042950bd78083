"""A body in chunks: each byte once and in its place, however it is cut; what is not framed rightly is an error."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse, IncompleteRead

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_ais.store.transport.body import ChunkedBody

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DATA = random.Random(5).randbytes(1 << 20)


def framed(sizes: Sequence[int], extension: bytes = b"", end: bytes = b"0\r\n\r\n") -> tuple[bytes, bytes]:
    """Return a body of chunks of these sizes, and the bytes in it."""
    framed, at = [], 0
    for size in sizes:
        framed.append(b"%x%s\r\n%s\r\n" % (size, extension, DATA[at : at + size]))
        at += size
    return b"".join(framed) + end, DATA[:at]


def read(sent: bytes, takes: Sequence[int], cuts: Sequence[int] = ()) -> tuple[list[bytes], HTTPResponse]:
    """Send bytes in the pieces that `cuts` make; return what each take brings, until nothing more comes."""
    here, there = socket.socketpair()
    places = [0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]

    def send() -> None:
        with there, contextlib.suppress(ConnectionError):  # who has read what he wanted closes his side
            for begin, end in itertools.pairwise(places):
                there.sendall(sent[begin:end])

    thread = threading.Thread(target=send)
    with here:
        here.settimeout(20)
        thread.start()
        try:
            response = HTTPResponse(here)
            response.begin()
            body = ChunkedBody(response)
            found = []
            for number in range(10_000):
                size = takes[number % len(takes)]
                found.append(body.take(size))
                if len(found[-1]) < size:
                    return found, response
            raise AssertionError("the body does not end")
        finally:
            here.close()
            thread.join(60)


@given(
    sizes=st.lists(st.one_of(st.integers(1, 40), st.integers(1, 300_000)), max_size=6),
    takes=st.lists(st.one_of(st.integers(1, 5000), st.integers(1, 400_000)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=5),
    extension=st.sampled_from([b"", b" ", b";a=1", b"\t;x"]),
    end=st.sampled_from([b"0\r\n\r\n", b"000\r\n\r\n", b"0;x=y\r\nA: b\r\nC: d\r\n\r\n"]),
)
def test_promise_1_every_byte_comes_once(
    sizes: list[int], takes: list[int], cuts: list[int], extension: bytes, end: bytes
) -> None:
    takes = [max(one, sum(sizes) // 500) for one in takes]
    body, data = framed(sizes, extension, end)
    found, response = read(HEAD + body, takes, cuts)
    assert b"".join(found) == data
    assert all(len(one) == takes[number % len(takes)] for number, one in enumerate(found[:-1]))
    assert response.isclosed()  # so its connection can be used again


@pytest.mark.parametrize("size", [1, 3, 700, 2000, 70_000])
def test_promise_1_a_large_piece_of_many_chunks_is_put_together(size: int) -> None:
    body, data = framed([size] * min(4000, len(DATA) // size))
    found, _ = read(HEAD + body, [5, 3 << 20], [7, 100_000, 400_000])
    assert b"".join(found) == data


@pytest.mark.parametrize(
    "at", [0, 1, 2, 3, 4, 250_000, 300_003, 300_004, 300_005, 300_006, -6, -5, -4, -2, -1]
)
def test_promise_1_a_body_that_breaks_off_is_an_error(at: int) -> None:
    body, _ = framed([300_000, 17])
    with pytest.raises((HTTPException, ConnectionError)):
        read(HEAD + body[:at], [400_000])


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n5\r\nabcde\r\n0\r\n\r\n",
        b"5\r\nabcdeXX0\r\n\r\n",
        b"5\r\nabcdefg\r\n0\r\n\r\n",
        b"+5\r\nabcde\r\n0\r\n\r\n",
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"1_0\r\nabcde\r\n0\r\n\r\n",
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b"\r\n\r\n",
        b"five\r\nabcde\r\n0\r\n\r\n",
        b"5\nabcde\r\n0\r\n\r\n",
        b"f" * 17 + b"\r\nabcde",
        b"5" * 100_000,
        b"5;" + b"x" * 100_000,
        b"0\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"0\r\n" + b"A" * 100_000,
    ],
)  # fmt: skip
def test_promise_1_a_body_that_is_framed_otherwise_is_an_error(body: bytes) -> None:
    with pytest.raises(HTTPException):
        read(HEAD + body, [9])


def test_a_thread_reads_two_bodies_at_once() -> None:
    (one, first), (two, second) = framed([70_000, 5]), framed([90_000, 9])
    sockets = [socket.socketpair() for _ in range(2)]
    bodies = []
    for (here, there), body in zip(sockets, (one, two), strict=True):
        threading.Thread(target=there.sendall, args=(HEAD + body,), daemon=True).start()
        here.settimeout(20)
        response = HTTPResponse(here)
        response.begin()
        bodies.append(ChunkedBody(response))
    found = [bytearray(), bytearray()]
    for _ in range(10):
        for body, into in zip(bodies, found, strict=True):
            into += body.take(10_000)
    for pair in sockets:
        for one_socket in pair:
            one_socket.close()
    assert bytes(found[0]) == first
    assert bytes(found[1]) == second


def test_promise_1_what_is_cut_in_a_chunk_is_not_what_is_asked_for() -> None:
    with pytest.raises((IncompleteRead, ConnectionError, HTTPException)):
        read(HEAD + b"ff\r\nabc", [3, 3])


def test_an_extension_of_a_chunk_that_does_not_end_is_refused() -> None:
    with pytest.raises(HTTPException, match="the length of a chunk"):
        read(HEAD + b"5;x=" + b"a" * 100_000, [1])
