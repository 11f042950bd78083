"""Promise 1 at the socket: a body that is cut, damaged, replaced or half-sent is continued or is an error."""

from __future__ import annotations

import dataclasses
import random
from urllib.parse import urlsplit

import pytest
from helpers.raw_server import RawServer, checksum, cut, head_of, raw, redirect, stall, status, whole

from torchdata_ais.errors import (
    AuthError,
    ChecksumError,
    ConnectError,
    NotFoundError,
    ObjectChangedError,
    ReadError,
    StallError,
    TransportError,
)
from torchdata_ais.store import Retry, StoreOptions, open_blocks
from torchdata_ais.store.transport.pools import pool_for
from torchdata_ais.urls import ObjectURL

BODY = random.Random(0).randbytes(300)
QUICK = StoreOptions(retry=Retry(attempts=3, backoff=0.0, deadline=20.0), block_bytes=64)
ONCE = StoreOptions(retry=Retry(attempts=1), block_bytes=64)


def read(url, options=QUICK, **more):
    with open_blocks(url, options, **more) as source:
        return b"".join(source), source


def parts(url, options=QUICK, **more):
    """Return the bytes that came and the error that followed them."""
    got = []
    with open_blocks(url, options, **more) as source, pytest.raises(TransportError) as caught:
        got.extend(source)
    return b"".join(got), caught.value


def test_a_whole_body_is_read_and_verified():
    with RawServer(whole(BODY)) as server:
        data, source = read(server.url())
    assert data == BODY
    assert (source.verified, source.size, source.checksum, source.version) == (True, 300, checksum(BODY), "1")
    assert source.stats.retries == 0
    assert source.stats.bytes == 300


@pytest.mark.parametrize("reset", [False, True])
def test_a_body_cut_at_every_offset_is_continued_by_range(reset):
    body = BODY[:40]
    for at in range(len(body)):
        with RawServer(cut(body, at, reset=reset), whole(body)) as server:
            data, source = read(server.url())
            assert data == body, at
            assert source.verified is True
            assert source.stats.retries == 1
            # After a reset the kernel may drop what had arrived.
            assert server.requests[1].offset == at or reset


def test_a_body_that_is_always_cut_ends_after_the_attempts_without_progress():
    with RawServer(cut(BODY, 100), cut(BODY, 0)) as server:
        data, error = parts(server.url())
        assert len(server.requests) == 3
    assert data == BODY[:100]
    assert isinstance(error, ReadError)
    assert error.offset == 100
    assert error.attempt == 3
    assert "tried 3 times" in str(error)
    assert "ais://b/s.tar" in str(error)


def test_progress_renews_the_attempts():
    with RawServer(cut(BODY, 10)) as server:
        data, source = read(server.url())
    assert data == BODY
    assert source.verified is True
    assert source.stats.retries == 29


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"version": "2"}, "version 1 became 2"),
        ({"cksum": "0" * 16}, "checksum"),
        ({"cksum": "0" * 16, "version": "2"}, "version"),
    ],
)
def test_another_version_in_the_middle_is_an_error(facts, word):
    with RawServer(cut(BODY, 100), whole(BODY, **facts)) as server:
        data, error = parts(server.url())
    assert data == BODY[:100]
    assert isinstance(error, ObjectChangedError)
    assert word in str(error)


def test_another_length_in_the_middle_is_an_error():
    with RawServer(cut(BODY, 100), whole(BODY + b"x", cksum=checksum(BODY))) as server:
        _, error = parts(server.url())
    assert isinstance(error, ObjectChangedError)


def test_an_object_that_became_shorter_than_what_was_read_is_an_error():
    with RawServer(cut(BODY, 100), whole(BODY[:50])) as server:
        _, error = parts(server.url())
    assert isinstance(error, ObjectChangedError)


def test_a_range_with_the_checksum_of_the_range_is_settled_by_the_whole():
    with RawServer(cut(BODY, 100), whole(BODY, cksum=checksum(BODY[100:])), whole(BODY)) as server:
        data, source = read(server.url())
        assert not server.requests[2].ranged
    assert data == BODY
    assert source.verified is True


@pytest.mark.parametrize("at", [1, 64, 100, 299])
def test_a_server_that_ignores_ranges_is_read_over(at):
    with RawServer(cut(BODY, at), whole(BODY, ranges=False)) as server:
        data, source = read(server.url())
    assert data == BODY
    assert source.verified is True


@pytest.mark.parametrize("params", [{}, {"etl_name": "crop"}])
def test_without_version_and_checksum_the_first_part_must_come_again(params):
    unknown = {"version": None, "cksum": None}
    with RawServer(cut(BODY, 100, **unknown), whole(BODY, **unknown)) as server:
        data, source = read(server.url(**params))
        assert not server.requests[1].ranged
    assert data == BODY
    assert source.verified is False
    with RawServer(cut(BODY, 100, **unknown), whole(b"y" + BODY[1:], **unknown)) as server:
        data, error = parts(server.url(**params))
    assert data == BODY[:100]
    assert isinstance(error, ObjectChangedError)


def test_a_rest_that_does_not_say_of_which_object_it_is_is_not_taken():
    unknown = {"version": None, "cksum": None}
    known = {"version": "1", "checksum": checksum(BODY)}
    with RawServer(cut(BODY, 100), whole(BODY, **unknown), whole(BODY, **unknown)) as server:
        data, source = read(ObjectURL(server.url(), **known))
        assert [request.ranged for request in server.requests] == [False, True, False]
        assert data == BODY
        assert source.verified is True
    with RawServer(cut(BODY, 100), whole(BODY, **unknown)) as server:
        data, error = parts(server.url(), dataclasses.replace(QUICK, verify=False))
        assert data == BODY[:100]
        assert isinstance(error, ObjectChangedError)
    with RawServer(cut(BODY, 0, **unknown), whole(BODY, **unknown)) as server:
        assert read(server.url(), start=7)[0] == BODY[7:]


def test_a_range_that_begins_elsewhere_is_not_taken():
    def elsewhere(request):
        request.headers["range"] = "bytes=50-"
        whole(BODY)(request)

    with RawServer(cut(BODY, 100), elsewhere, whole(BODY)) as server:
        data, _ = read(server.url())
    assert data == BODY


def test_a_damaged_body_is_a_checksum_error_where_the_end_would_be():
    damaged = bytes([BODY[0] ^ 1]) + BODY[1:]
    with RawServer(whole(damaged, cksum=checksum(BODY))) as server:
        got = []
        with open_blocks(server.url(), QUICK) as source:
            with pytest.raises(ChecksumError) as caught:
                got.extend(source)
            with pytest.raises(ChecksumError):
                next(source)
        assert source.verified is None
        assert b"".join(got) == damaged
        assert caught.value.offset == 300
        data, source = read(server.url(), StoreOptions(verify=False))
    assert data == damaged
    assert source.verified is False


@pytest.mark.parametrize("known", [{"version": "7"}, {"checksum": "f" * 16}, {"size": 299}])
def test_what_the_listing_knew_is_what_must_come(known):
    with RawServer(whole(BODY)) as server:
        data, error = parts(ObjectURL(server.url(), **known))
        assert data == b""
        assert isinstance(error, ObjectChangedError)
        assert len(server.requests) == 1
        data, _ = read(ObjectURL(server.url(), **known), StoreOptions(pin=False))
    assert data == BODY


def test_what_the_listing_knew_is_of_no_meaning_for_a_transform():
    with RawServer(whole(BODY, version=None, cksum=None)) as server:
        data, source = read(ObjectURL(server.url(etl_name="x"), size=1, checksum="f" * 16, version="7"))
    assert data == BODY
    assert source.verified is False


def test_reading_from_the_middle_asks_for_the_range_of_the_known_version():
    with RawServer(whole(BODY)) as server:
        data, source = read(ObjectURL(server.url(), 300, checksum(BODY), "1"), start=123)
        assert server.requests[0].offset == 123
        assert data == BODY[123:]
        assert source.verified is False
        _, error = parts(ObjectURL(server.url(), version="2"), StoreOptions(pin=False), start=123)
    assert isinstance(error, ObjectChangedError)
    with RawServer(whole(BODY, ranges=False)) as server:
        assert read(server.url(), start=123)[0] == BODY[123:]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, NotFoundError),
        (403, AuthError),
        (401, AuthError),
        (416, ReadError),
        (400, ReadError),
        (501, ReadError),
    ],
)
def test_permanent_statuses_are_asked_once(code, kind):
    message = b'{"tcode":"Err","message":"t[x]: ais://b/s.tar said no","status":1}'
    with RawServer(status(code, body=message)) as server:
        _, error = parts(server.url())
        # After a 400 a HEAD decides whether the object is there.
        assert [one.method for one in server.requests] == ["GET", "HEAD"][: 2 if code == 400 else 1]
    assert type(error) is kind
    assert f"{code} (t[x]: ais://b/s.tar said no)" in str(error)
    assert error.attempt == 1


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 504])
def test_transient_statuses_are_asked_again(code):
    with RawServer(status(code), status(code, "Retry-After: 0"), whole(BODY)) as server:
        assert read(server.url())[0] == BODY
        assert len(server.requests) == 3
    with RawServer(status(code, body=b"too busy")) as server:
        _, error = parts(server.url())
        assert len(server.requests) == 3
    assert type(error) is ReadError
    assert "too busy" in str(error)


def test_a_server_that_asks_to_wait_longer_than_the_deadline_is_not_waited_for():
    with RawServer(status(503, "Retry-After: 3600")) as server:
        _, error = parts(server.url(), StoreOptions(retry=Retry(deadline=5)))
        assert len(server.requests) == 1
    assert "asks to wait 3600 s" in str(error)


@pytest.mark.parametrize("before", [0, 100])
def test_silence_is_a_stall_error(before):
    quick = StoreOptions(
        stall_timeout=0.2, first_byte_timeout=60 if before else 0.2, retry=Retry(attempts=2, backoff=0.0)
    )
    first = stall(BODY, before) if before else lambda request: request.wait()
    with RawServer(first, stall(BODY, 0) if before else first) as server:
        data, error = parts(server.url(), quick)
    assert data == BODY[:before]
    assert isinstance(error, StallError)
    assert isinstance(error, TimeoutError)


def test_a_stalled_body_is_continued():
    quick = StoreOptions(stall_timeout=0.2, retry=Retry(backoff=0.0))
    with RawServer(stall(BODY, 100), whole(BODY)) as server:
        assert read(server.url(), quick)[0] == BODY


@pytest.mark.ci
def test_a_drip_of_bytes_ends_at_the_deadline():
    def drip(request):
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not request.closing.wait(0.02):
            request.send(b"x")

    with RawServer(drip) as server:
        data, error = parts(server.url(), StoreOptions(retry=Retry(deadline=1.5)))
    assert set(data) == {ord("x")}
    assert isinstance(error, StallError)
    assert "deadline of 1.5 s" in str(error)


@pytest.mark.ci
def test_a_drip_of_header_bytes_is_a_stall():
    def drip(request):
        request.send(b"HTTP/1.1 200 OK\r\n")
        while not request.closing.wait(0.05):
            request.send(b"X-A: b\r\n"[:3])

    quick = StoreOptions(connect_timeout=1.0, first_byte_timeout=0.3, retry=Retry(attempts=1))
    with RawServer(drip) as server:
        _, error = parts(server.url(), quick)
    assert isinstance(error, StallError)


def test_a_refused_connection_is_an_error_that_says_where():
    with RawServer(whole(BODY)) as server:
        url = server.url()
    _, error = parts(url)
    assert isinstance(error, ConnectError)
    assert isinstance(error, ConnectionError)
    assert server.endpoint.removeprefix("http://") in str(error)
    assert "AIS_ENDPOINT" in str(error)


def test_a_dead_target_is_routed_around_by_the_proxy():
    with RawServer(whole(BODY)) as gone:
        dead = gone.url()
    with RawServer(whole(BODY)) as target, RawServer(redirect(dead), redirect(target.url())) as proxy:
        assert read(proxy.url())[0] == BODY
        assert len(proxy.requests) == 2


def test_after_a_break_in_the_middle_the_proxy_is_asked_again():
    with RawServer(cut(BODY, 77)) as first, RawServer(whole(BODY)) as second:
        with RawServer(redirect(first.url()), redirect(second.url())) as proxy:
            assert read(proxy.url())[0] == BODY
        assert second.requests[0].offset == 77


@pytest.mark.parametrize("form", ["{}", "\f{}", "{}#part", "//{host}/x"])
def test_a_redirect_to_another_node_is_followed(form):
    with RawServer(whole(BODY)) as target:
        host = urlsplit(target.url()).netloc
        with RawServer(redirect(form.format(target.url(), host=host))) as proxy:
            assert read(proxy.url())[0] == BODY


@pytest.mark.parametrize("location", ["/x", "http:/x", "ht\ttp:/x"])
def test_a_redirect_within_a_node_is_followed(location):
    with RawServer(redirect(location), whole(BODY)) as server:
        assert read(server.url())[0] == BODY
        assert server.requests[1].target == "/x"


@pytest.mark.parametrize(
    "location", ["/v1/objects/b/s.tar?provider=ais", "file:///etc/passwd", "gopher://x/"]
)
def test_redirects_that_lead_nowhere_are_an_error(location):
    with RawServer(redirect(location)) as server:
        _, error = parts(server.url())
        assert len(server.requests) <= 8
    assert isinstance(error, ReadError)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_chunked_body_is_whole_or_an_error_at_every_offset():
    sent = b"5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\n\r\n"
    with RawServer(raw(CHUNKED + sent, close=False)) as server:
        data, source = read(server.url(etl_name="x"))
    assert data == b"hello world"
    assert source.verified is False
    end = sent.rindex(b"0")
    for at in range(end):
        with RawServer(raw(CHUNKED + sent[:at])) as server:
            data, error = parts(server.url(etl_name="x"), ONCE)
        assert b"hello world".startswith(data)
        assert isinstance(error, ReadError), at


@pytest.mark.parametrize(
    "sent",
    [
        b"zz\r\nhello\r\n",
        b"\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX5\r\nworld\r\n0\r\n\r\n",
        b"\xff\r\n",
    ],
)
def test_chunks_that_are_none_are_an_error(sent):
    with RawServer(raw(CHUNKED + sent)) as server:
        assert isinstance(parts(server.url(), ONCE)[1], ReadError)


def test_a_body_without_length_ends_with_the_connection_and_is_unverified():
    with RawServer(raw(b"HTTP/1.0 200 OK\r\n\r\n" + BODY)) as server:
        data, source = read(server.url(etl_name="x"))
        assert data == BODY
        assert source.verified is False
        assert read(ObjectURL(server.url(), size=300))[0] == BODY
        data, error = parts(ObjectURL(server.url(), size=301), ONCE)
        assert isinstance(error, ReadError)
        # With a checksum it is as good as any other body.
        assert read(ObjectURL(server.url(), checksum=checksum(BODY)))[1].verified is True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nDate: x\r\n",
        b"\x16\x03\x01\x00garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 30x\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\nContent-Length: 200\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 301\r\n\r\n" + BODY,
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 300\r\n\r\n" + BODY,
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_an_error(sent):
    with RawServer(raw(sent)) as server:
        data, error = parts(server.url(), ONCE)
    assert BODY.startswith(data)
    assert isinstance(error, ReadError)


def test_bytes_behind_the_body_do_not_reach_the_next_object():
    def more(request):
        head, body = head_of(BODY, request)
        request.send(head + body + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    with RawServer(more, whole(BODY)) as server:
        for _ in range(2):
            assert read(server.url())[0] == BODY


def test_connections_are_kept_for_the_next_object():
    with RawServer(whole(BODY)) as server:
        for _ in range(3):
            read(server.url())
        assert len({id(request.sock) for request in server.requests}) == 1


@pytest.mark.parametrize("breaks", [[cut(BODY, 100)], [cut(BODY, 0), cut(BODY, 200, reset=True)]])
def test_a_connection_that_broke_off_leaves_its_place_in_the_pool(breaks):
    """A place that is lost lets the next request take another connection, idle for who knows how long."""
    with RawServer(*breaks, whole(BODY)) as server:
        assert read(server.url())[0] == BODY
        assert len(server.requests) == len(breaks) + 1
        places = pool_for(server.url(), QUICK).connection_from_url(server.url()).pool
        assert places.qsize() == QUICK.pool_size


def test_blocks_have_at_most_the_size_asked_for():
    body = BODY * 1000
    with (
        RawServer(whole(body)) as server,
        open_blocks(server.url(), StoreOptions(block_bytes=4096)) as source,
    ):
        sizes = [len(block) for block in source]
    assert sum(sizes) == len(body)
    assert min(sizes) > 0
    assert max(sizes) <= 4096


def test_a_rest_of_unknown_size_that_breaks_off_is_continued():
    """Only its length in the answer says that bytes are missing."""

    def rest(begin, data):
        head = (
            f"HTTP/1.1 206 Partial\r\nContent-Length: {300 - begin}\r\nContent-Range: bytes {begin}-299/*\r\n"
        )
        return raw(head.encode() + b"Ais-Version: 1\r\n\r\n" + data)

    with RawServer(rest(100, BODY[100:150]), rest(150, BODY[150:])) as server:
        data, source = read(server.url(), start=100)
    assert data == BODY[100:]
    assert source.stats.retries == 1


def test_web_files_are_continued_by_their_etag():
    head = "HTTP/1.1 200 OK\r\nContent-Length: 300\r\nETag: {}\r\n\r\n"

    def rest(request):
        assert request.headers["if-range"] == '"a"'
        request.send(
            b'HTTP/1.1 206 Partial\r\nContent-Length: 200\r\nContent-Range: bytes 100-299/300\r\nETag: "a"\r\n\r\n'
            + BODY[100:]
        )

    first = raw(head.format('"a"').encode() + BODY[:100])
    with RawServer(first, rest) as server:
        data, source = read(f"{server.endpoint}/s.tar")
    assert data == BODY
    assert source.version == '"a"'
    with RawServer(first, raw(head.format('"b"').encode() + BODY)) as server:
        assert isinstance(parts(f"{server.endpoint}/s.tar")[1], ObjectChangedError)


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("no_proxy", "NO_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with RawServer(whole(BODY)) as server:
        monkeypatch.setenv("http_proxy", server.endpoint.replace("//", "//me:word@"))
        url = "http://far.example:51080/v1/objects/b/s.tar?provider=ais"
        assert read(url)[0] == BODY
        assert server.requests[0].target == url
        assert server.requests[0].headers["proxy-authorization"] == "Basic bWU6d29yZA=="
