"""Answers nobody should send: interim ones, odd error bodies, waits and redirects. Survived or explained."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.raw_server import RawServer, Script, raw, redirect, status, whole

from torchdata_ais.errors import ReadError, TransportError
from torchdata_ais.store import (
    Retry,
    StoreOptions,
    delete_object,
    head_object,
    list_objects,
    open_blocks,
    put_object,
)
from torchdata_ais.store.transport.exchange import message_in
from torchdata_ais.urls import ObjectURL

BODY = random.Random(1).randbytes(300)
DEEP = b"[" * 60_000


def store(server: RawServer, attempts: int = 2, **more: Any) -> StoreOptions:
    return StoreOptions(server.endpoint, retry=Retry(attempts, backoff=0.0, deadline=15.0), **more)


def read(server: RawServer, attempts: int = 2) -> bytes:
    with open_blocks("ais://b/s.tar", store(server, attempts)) as source:
        return b"".join(source)


def after(first: bytes, then: Script) -> Script:
    def script(request: Any) -> Any:
        request.send(first)
        return then(request)

    return script


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
INTERIM = [
    HINTS,
    HINTS * 3,
    b"HTTP/1.1 100 Continue\r\n\r\n" + HINTS,
    b"HTTP/1.1 102 Processing\r\n\r\n" * 5,
    b"HTTP/1.1 199 Whatever\r\nContent-Length: 5\r\n\r\n",
]


@pytest.mark.parametrize("interim", INTERIM)
def test_interim_answers_are_passed_over(interim: bytes) -> None:
    with RawServer(after(interim, whole(BODY))) as server:
        assert read(server, attempts=1) == BODY
        assert read(server, attempts=1) == BODY  # and the connection is sound
        assert head_object("ais://b/s.tar", store(server, 1)).size is not None
    import msgspec

    page = msgspec.msgpack.encode({"UUID": "u", "ContinuationToken": "", "Flags": 0, "Entries": [{"n": "a"}]})
    with RawServer(after(interim, status(200, "Content-Type: application/msgpack", body=page))) as server:
        assert len(list_objects("ais://b", options=store(server, 1))) == 1


@pytest.mark.parametrize("interim", [HINTS, b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_interim_answers_have_a_limit(interim: bytes) -> None:
    with RawServer(after(interim * 200, whole(BODY))) as server:
        with pytest.raises(ReadError, match="more than 32 interim answers"):
            read(server)
        assert len(server.requests) == 2


def test_other_protocols_are_not_switched_to() -> None:
    with RawServer(raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n")) as server:
        with pytest.raises(ReadError, match="answered 101"):
            read(server)


ERRORS: dict[str, Script] = {
    "nested": status(500, body=DEEP),
    "nested objects": status(503, body=b'{"message":' * 20_000),
    "a number": status(500, body=b'{"message": ' + b"9" * 6000 + b"}"),
    "another type": status(500, body=b'{"message": [{"a": null}]}'),
    "no object": status(500, body=b'[1, "x"]'),
    "huge": status(500, body=b"x" * (3 << 20)),
    "no text": status(502, body=bytes(range(256)) * 4),
    "cut UTF-8": status(
        500, "Content-Type: application/json; charset=utf-16", body=b'{"message": "\xf0\x9f\x99'
    ),
    "no gzip": status(500, "Content-Encoding: gzip", body=b"\x1f\x8bno"),
    "shorter than said": raw(b"HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\nbroken"),
    "bad chunks": raw(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nbroken"),
    # Whole, so its connection is used again: it must stay open, or the next try may meet its end.
    "odd reason": raw(b"HTTP/1.1 500 \xff\xfe\x00\r\nContent-Length: 0\r\n\r\n", close=False),
    "wait 400 digits": status(503, "Retry-After: " + "9" * 400),
    "wait 5000 digits": status(503, "Retry-After: " + "9" * 5000),
    "wait for a year": status(503, "Retry-After: 31536000"),
    "wait a negative time": status(503, "Retry-After: -5"),
    "wait a part of a second": status(503, "Retry-After: 0.01"),
    "wait nan": status(429, "Retry-After: nan"),
    "wait inf": status(429, "Retry-After: -inf"),
    "wait till 9999": status(503, "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"),
    "wait till 99999": status(503, "Retry-After: Fri, 31 Dec 99999 23:59:59 GMT"),
    "wait till then": status(503, "Retry-After: Thu, 01 Jan 1970 00:00:00 GMT"),
    "wait till month 13": status(503, "Retry-After: Fri, 31 Foo 2026 23:59:59 GMT"),
    "wait till hour 99": status(503, "Retry-After: Fri, 31 Dec 2026 99:99:99 -9999999999"),
    "wait till nonsense": status(503, "Retry-After: \x01\x7f,,,"),
}


@pytest.mark.quick(10)
@pytest.mark.parametrize("script", ERRORS.values(), ids=ERRORS)
def test_an_odd_error_is_tried_again_and_told(script: Script) -> None:
    with RawServer(script, whole(BODY)) as server:
        assert read(server) == BODY
    for request in (
        lambda options: head_object("ais://b/s.tar", options),
        lambda options: put_object("ais://b/s.tar", b"data", options),
        lambda options: delete_object("ais://b/s.tar", options),
        lambda options: list_objects("ais://b", options=options),
    ):
        with RawServer(script) as server:
            with pytest.raises(TransportError, match="tried 2 times") as caught:
                request(store(server))
        assert caught.value.attempt == 2
        assert len(str(caught.value)) < 900


@pytest.mark.parametrize("name", ["nested", "wait 400 digits", "bad chunks"])
def test_an_odd_error_in_the_middle_names_offset_and_attempt(name: str) -> None:
    def cut_at_100(request: Any) -> bool:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\nAis-Version: 1\r\n\r\n"
        request.send(head + BODY[:100])
        return False

    with RawServer(cut_at_100, ERRORS[name]) as server, pytest.raises(ReadError) as caught:
        read(server, attempts=3)
    assert (caught.value.offset, caught.value.attempt) == (100, 3)


LOCATIONS = [
    "http://[",
    "http://[::1",
    "http://h:99999999/x",
    "http://h:-1/x",
    "http://h:x/",
    "http://" + "a" * 70 + ".example/x",
    "http://.a..b/",
    "http:///no-host",
    "//",
    "http://h\x7f/",
    "http://%zz/",
    "http://a b/",
    "http://\xe4\xf6\xff.example/",
    "mailto:x@y",
    "javascript:alert(1)",
    "x" * 5_000,
    "http://u:p@[/",
]


@pytest.mark.parametrize("location", LOCATIONS, ids=range(len(LOCATIONS)))
def test_a_redirect_to_nowhere_is_survived_or_told(location: str) -> None:
    answer = (
        b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: " + location.encode("latin-1") + b"\r\n\r\n"
    )
    gone = raw(answer, close=False)
    with RawServer(gone, whole(BODY)) as server:
        assert read(server) == BODY
    for request in (
        lambda options: head_object("ais://b/s.tar", options),
        lambda options: put_object("ais://b/s.tar", b"data", options),
        lambda options: list_objects("ais://b", options=options),
    ):
        with RawServer(gone) as server:
            with pytest.raises(TransportError) as caught:
                request(store(server, connect_timeout=1.0))
        assert caught.value.attempt is not None
        assert "u:p" not in str(caught.value)
        assert len(str(caught.value)) < 1500


def test_a_redirect_through_many_addresses_ends() -> None:
    with RawServer(redirect("/v1/objects/b/x?provider=ais", 307)) as server:
        for request in (
            lambda options: head_object("ais://b/s.tar", options),
            lambda options: list_objects("ais://b", options=options),
        ):
            with pytest.raises(TransportError, match="redirect"):
                request(store(server))


@pytest.mark.parametrize("deep", [DEEP, b'{"a":' * 50_000, b"[]", b"null", b"1", b'"x"', b"{"])
def test_every_error_body_has_a_message(deep: bytes) -> None:
    assert 0 < len(message_in(deep.decode())) <= 303


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nAis-Version: 1\r\n\r\n"


@pytest.mark.parametrize("more", [1, 300, 5000])
def test_promise_1_more_bytes_than_the_object_has_are_an_error(more: int) -> None:
    """In chunks nothing else says where the body ends: the size that was listed does."""
    data = BODY + b"x" * more
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:200], data[200:]))
    with RawServer(raw(CHUNKED + chunks + b"0\r\n\r\n")) as server:
        got = []
        with open_blocks(ObjectURL("ais://b/s.tar", size=300), store(server)) as source:
            with pytest.raises(ReadError, match="more bytes than the 300 of the object"):
                got.extend(source)
        assert BODY.startswith(b"".join(got))
        with open_blocks("ais://b/s.tar", store(server)) as source:
            assert b"".join(source) == data  # of unknown size: that is the body
