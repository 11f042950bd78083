"""`StrictResponse` understands a head as http.client does, and refuses one that is cut."""

import socket
from http.client import HTTPException, HTTPResponse, RemoteDisconnected

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchdata_ais.store.transport.framing import StrictResponse

KNOWN = [
    b"Content-Length: 5\r\n",
    b"content-length:\t7 \r\n",
    b"Content-Length: x\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 0\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: Chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: Keep-Alive\r\n",
    b"Proxy-Connection: keep-alive\r\n",
    b"Keep-Alive: timeout=5\r\n",
    b"Ais-Version: 1\r\n",
    b"Ais-Name: \xe9\xff\r\n",
    b" folded\r\n",
    b"no colon\r\n",
    b"Blank : before\r\n",
    b": no name\r\n",
    b"Bare: a\rb\r\n",
]
LONG = [b"X: " + b"a" * count + b"\r\n" for count in (65_531, 65_532)]
LINES = st.one_of(
    st.sampled_from(KNOWN),
    st.text("aZ-:; \t\r\v\x1c\x85\xff\0", max_size=8).map(lambda text: text.encode("latin-1") + b"\r\n"),
)


def understood(kind, head, method):
    """Return what a response of `kind` makes of a head, or the kind of its error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(head + b"body")
        theirs.shutdown(socket.SHUT_WR)
        with kind(ours, method=method) as response:
            try:
                response.begin()
            except HTTPException as error:
                return type(error)
            framing = response.length, response.chunked, response.will_close
            return (
                (response.version, response.status, response.reason),
                framing,
                response.headers.items(),
                response.fp.read(),
            )


@pytest.mark.parametrize("line", [*KNOWN, *LONG])
def test_a_line_means_what_it_means_to_http_client(line):
    head = b"HTTP/1.1 200 OK\r\n" + line + b"\r\n"
    assert understood(StrictResponse, head, "GET") == understood(HTTPResponse, head, "GET")


@given(
    status=st.sampled_from(
        [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 206  \r\n", b"HTTP/1.1 204\r\n", b"HTTP/2 200 x\r\n"]
    ),
    lines=st.lists(LINES, max_size=4),
    method=st.sampled_from(["GET", "HEAD"]),
)
@example(b"HTTP/1.1 304 Not Modified\r\n", [b"Content-Length: 9\r\n"], "GET")
@example(b"HTTP/1.1 101 Other\r\n", [], "GET")
@example(b"HTTP/1.1 200 OK\r\n", [b"A: b\r\n"] * 99, "GET")
@example(b"HTTP/1.1 200 OK\r\n", [b"A: b\r\n"] * 100, "GET")
def test_a_head_means_what_it_means_to_http_client(status, lines, method):
    head = status + b"".join(lines) + b"\r\n"
    assert understood(StrictResponse, head, method) == understood(HTTPResponse, head, method)


@pytest.mark.parametrize("cut", [9, 20, 30, -1])
def test_a_cut_head_is_an_error(cut):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(head[:cut])
        theirs.close()
        with StrictResponse(ours) as response, pytest.raises(RemoteDisconnected, match="within the head"):
            response.begin()
