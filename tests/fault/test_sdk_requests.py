"""What goes through the SDK ends: in time, in bounded memory, with an error of ours, whatever answers there."""

from __future__ import annotations

import itertools
import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import aistore
import aistore.sdk  # it takes two seconds, which no deadline here should pay for
import msgspec
import pytest
from helpers.raw_server import RawServer, Request, Script, raw, redirect, silent, status

from torchdata_ais.errors import AISError, ReadError, StallError, TransportError
from torchdata_ais.jobs.dsort import DsortSpec, run_dsort
from torchdata_ais.jobs.etl import delete_etl, ensure_etl, etl_logs, list_etls, shard_etl
from torchdata_ais.jobs.etl.cluster import _create
from torchdata_ais.store import (
    Retry,
    StoreOptions,
    delete_object,
    head_object,
    list_buckets,
    list_each,
    list_objects,
    put_object,
)
from torchdata_ais.store.jobs import JobState, Progress, wait_for_job
from torchdata_ais.store.objects.sdk import call, sdk_client
from torchdata_ais.store.transport import attempts
from torchdata_ais.urls import parse_url

GRACE_S = 25.0
MSGPACK = "Content-Type: application/msgpack"


@pytest.fixture(autouse=True)
def a_quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink what is waited beyond the deadline: the watch looks once a second, two seconds after the time is up."""
    monkeypatch.setattr(attempts, "_SLACK_S", 0.2)
    monkeypatch.setattr(attempts, "_WATCH_S", 0.1)


def store(server: RawServer, deadline: float | None = 0.5, attempts: int = 3, **more: Any) -> StoreOptions:
    retry = Retry(attempts, backoff=0.0, deadline=deadline)
    return StoreOptions(server.endpoint, retry=retry, first_byte_timeout=30.0, stall_timeout=30.0, **more)


def entry(name: Any, size: Any = 3, **more: Any) -> dict[str, Any]:
    return {"n": name, "s": size, "cs": "0" * 16, "v": "1", "f": 64, **more}


def page(*names: Any, token: str = "", uuid: str = "u", **more: Any) -> bytes:
    entries = [name if isinstance(name, dict) else entry(name) for name in names]
    listing = {"UUID": uuid, "ContinuationToken": token, "Flags": 0, "Entries": entries, **more}
    return msgspec.msgpack.encode(listing)


def listing(*pages: bytes) -> list[Script]:
    return [status(200, MSGPACK, body=one) for one in pages]


def body_of(request: Request) -> Any:
    """Return the JSON that a request carries."""
    length = int(request.headers.get("content-length", "0"))
    data = b""
    while len(data) < length:
        data += request.sock.recv(length - len(data))
    return json.loads(data) if data else None


def endless(make: Callable[[int], bytes]) -> Script:
    """Answer the n-th request of a listing by the n-th page."""
    numbers = itertools.count()

    def script(request: Request) -> None:
        body_of(request)
        status(200, MSGPACK, body=make(next(numbers)))(request)

    return script


def drip(head: bytes, step_s: float = 0.1) -> Script:
    """Send byte after byte, for as long as somebody listens."""

    def script(request: Request) -> bool:
        for byte in itertools.chain(head, itertools.repeat(120)):
            request.send(bytes([byte]))
            if request.closing.wait(step_s):
                break
        return False

    return script


def error_of(run: Callable[[], object]) -> TransportError | None:
    """Return the error of ours that `run` ends with, if it does."""
    try:
        run()
    except TransportError as error:
        return error
    return None


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status line": drip(b"HTTP/1.1 200 "),
    "headers": drip(OK + b"X-Y: "),
    "body": drip(OK + MSGPACK.encode() + b"\r\nContent-Length: 100000\r\n\r\n"),
    "chunks": drip(OK + MSGPACK.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n1;"),
    "body without length": drip(OK + MSGPACK.encode() + b"\r\n\r\n"),
    "error": drip(b"HTTP/1.1 400 Bad\r\nContent-Length: 100000\r\n\r\n"),
    "interim answers": raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20, close=False),
    "silence": silent,
}


def at_once(test: Callable[..., None], cases: dict[str, tuple[Any, ...]]) -> None:
    """Run the cases in threads: each of them waits, most of the time."""
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {name: pool.submit(test, *case) for name, case in cases.items()}
    failed = {name: error for name, future in running.items() if (error := future.exception())}
    assert not failed


def a_listing_ends(script: Script) -> None:
    with RawServer(script) as server, ends_within(0.5 + GRACE_S):
        with pytest.raises(StallError, match="Listing ais://b/p") as caught:
            list_objects("ais://b/p", options=store(server))
    assert caught.value.url == "ais://b/p"


def test_promise_6_a_listing_that_drips_ends_at_the_deadline() -> None:
    at_once(a_listing_ends, {name: (script,) for name, script in DRIPS.items()})


def a_list_of_buckets_ends(script: Script) -> None:
    with RawServer(script) as server, ends_within(0.5 + GRACE_S):
        with pytest.raises(StallError, match="List of buckets"):
            list_buckets(store(server))


def test_promise_6_a_list_of_buckets_that_drips_ends_at_the_deadline() -> None:
    at_once(a_list_of_buckets_ends, {name: (script,) for name, script in DRIPS.items()})


def control(server: RawServer, run: Callable[[Any], Any], **more: Any) -> Any:
    options = store(server, **more)
    with sdk_client(options) as client:
        return call(lambda: run(client), options, "a request", "ais://b")


SDK_CALLS: dict[str, Callable[[Any], Any]] = {
    "create": lambda client: client.bucket("b").create(exist_ok=True),
    "map": lambda client: client.cluster().get_info(),
    "buckets": lambda client: list(client.cluster().list_buckets()),
    "transforms": lambda client: client.cluster().list_etls(),
    "view": lambda client: client.etl("my-etl").view(),
    "logs": lambda client: client.etl("my-etl").logs(),
    "status": lambda client: client.job(job_id="j").status(),
    "details": lambda client: client.job(job_id="j").get_details(),
    "dsort": lambda client: client.dsort("d").get_job_info(),
    "pages": lambda client: client.bucket("b").list_objects(),
}


def a_request_of_the_sdk_ends(run: Callable[[Any], Any]) -> None:
    dripping = drip(OK + b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    with RawServer(dripping) as server, ends_within(0.5 + GRACE_S):
        with pytest.raises(StallError, match="a byte now and then"):
            control(server, run)


def test_promise_6_every_request_through_the_sdk_ends_at_the_deadline() -> None:
    at_once(a_request_of_the_sdk_ends, {name: (run,) for name, run in SDK_CALLS.items()})


OBJECT_CALLS: dict[str, Callable[[str, StoreOptions], Any]] = {
    "head": head_object,
    "put": lambda url, options: put_object(url, b"data", options),
    "delete": delete_object,
}


def a_request_ends(request_: Any, part: str) -> None:
    with RawServer(DRIPS[part]) as server, ends_within(0.5 + GRACE_S):
        with pytest.raises(StallError, match="ais://b/s"):
            request_("ais://b/s", store(server))


def test_promise_6_requests_for_one_object_end_at_the_deadline() -> None:
    cases = itertools.product(OBJECT_CALLS, ("status line", "headers", "silence"))
    at_once(a_request_ends, {f"{name}, {part}": (OBJECT_CALLS[name], part) for name, part in cases})


def test_one_deadline_is_that_of_all_pages_together() -> None:
    """Each page is quick and has news: a listing that never ends is none, however it goes on."""

    def script(request: Request) -> None:
        body_of(request)
        request.closing.wait(0.01)
        number = next(numbers)
        status(200, MSGPACK, body=page(f"p{number:09}", token=f"t{number}"))(request)

    numbers = itertools.count()
    with RawServer(script) as server, ends_within(1.5 + GRACE_S):
        with pytest.raises(StallError, match=r"deadline of 1.5 s .*ask for less") as caught:
            list_objects("ais://b/p", options=store(server, deadline=1.5))
        assert len(server.requests) > 2
    assert caught.value.url == "ais://b/p"


def test_without_a_deadline_the_timeouts_still_end_a_drip() -> None:
    with RawServer(DRIPS["body"]) as server, ends_within(1.5 + GRACE_S):
        options = store(server, deadline=None, attempts=1, connect_timeout=0.5)
        with pytest.raises(StallError):
            list_objects(
                "ais://b/p",
                options=StoreOptions(
                    server.endpoint, retry=options.retry,
                    connect_timeout=0.5, first_byte_timeout=0.5, stall_timeout=0.5,
                ),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda n: page(f"p{n}", token="AB"[n % 2]), "same continuation token"),
        (lambda n: page(f"p{n}", token="A"), "same continuation token"),
        (lambda n: page(f"p{n}", token=str(n % 50)), "same continuation token"),
        (lambda n: page("p1", "p2", token=str(n)), "nothing new"),
        (lambda n: page(token=str(n)), "nothing new"),
        (lambda n: page("p/", token=str(n), Entries=[entry("p/", 0)]), "nothing new"),
        (lambda n: page(f"p{n}", token="x" * 20_000 + str(n)), "continuation token of 2000"),
        (lambda n: page(f"p{n}", token="t", uuid="u" * 5000), "continuation token"),
    ],
)
def test_a_listing_that_goes_round_is_an_error(make: Callable[[int], bytes], says: str) -> None:
    with RawServer(endless(make)) as server, ends_within(25):
        with pytest.raises(ReadError, match=f"Listing ais://b/p: .*{says}") as caught:
            list_objects("ais://b/p", options=store(server, deadline=30.0))
        assert len(server.requests) <= 120
    assert "template" in str(caught.value)


def test_pages_without_news_are_passed_over_when_they_end() -> None:
    pages = [*(page("p1", token=str(n)) for n in range(60)), page("p2", "p1")]
    with RawServer(*listing(*pages)) as server:
        urls = list_objects("ais://b/p", options=store(server, deadline=30.0))
    assert [parse_url(url).name for url in urls] == ["p1", "p2"]


def test_a_wrong_entry_that_no_source_names_does_not_matter() -> None:
    """Where many names are listed together, too."""
    prefixes: list[str] = []

    def script(request: Request) -> None:
        prefix = body_of(request)["value"]["prefix"]
        prefixes.append(prefix)
        names = [prefix] if prefix.endswith(".tar") else ["p-0.tar", "p-0/../x.tar"]
        status(200, MSGPACK, body=page(*names))(request)

    with RawServer(script) as server:
        sources = [f"ais://b/p-{n}.tar" for n in range(9)]
        found = list(list_each(sources, options=store(server, deadline=20.0)))
    assert [[parse_url(url).name for url in urls] for urls in found] == [[f"p-{n}.tar"] for n in range(9)]
    assert prefixes == ["p-", *(f"p-{n}.tar" for n in range(9))]


@pytest.mark.skipif(aistore.__version__ < "2", reason="SDK 1 lists the buckets of one provider only")
def test_listings_ask_as_the_sdk_does() -> None:
    """Of whatever version is installed: what is recorded of real clusters is what they answer to that."""
    asked: list[tuple[Any, ...]] = []

    def script(request: Request) -> None:
        kind = request.headers.get("accept")
        asked.append(
            (request.method, request.target, kind, request.headers["content-type"], body_of(request))
        )
        if "/v1/buckets/" in request.target:
            token = "t" if len(asked) % 2 else ""
            status(200, MSGPACK, body=page(f"p/\u00fc{token}", token=token))(request)
        else:
            status(200, "Content-Type: application/json", body=b"[]")(request)

    with RawServer(script) as server:
        client = aistore.sdk.Client(server.endpoint)
        space = aistore.sdk.types.Namespace(uuid="u1", name="n 1")
        bucket = client.bucket("b", provider="aws", namespace=space)
        bucket.list_all_objects(prefix="p/\u00fc", props="name,size,checksum,version,flags")
        client.cluster().list_buckets(provider="")
        client.cluster().list_buckets(provider="gcp")
        theirs, asked = asked, []
        list_objects("s3://@u1#n 1/b/p/\u00fc", options=store(server, deadline=20.0))
        list_buckets(store(server))
        list_buckets(store(server), "gcp")
    assert [one[:2] + one[3:] for one in asked] == [one[:2] + one[3:] for one in theirs]
    assert [one[2] for one in asked[:2]] == [one[2] for one in theirs[:2]]


def test_buckets_are_listed_with_their_provider_and_namespace() -> None:
    listed: list[dict[str, Any]] = [
        {"name": "b", "provider": "ais", "namespace": {"uuid": "", "name": ""}},
        {"name": "b", "provider": "ais", "namespace": {"uuid": "", "name": "team"}, "more": 1},
        {"name": "c", "provider": "gcp"},
    ]
    with RawServer(status(200, "Content-Type: application/json", body=json.dumps(listed).encode())) as server:
        found = list_buckets(store(server))
        assert [place.uri for place in found] == ["ais://b", "ais://@#team/b", "gs://c"]
        assert list_buckets(store(server), "gcp") == found[2:]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"null", "cannot be decoded"),
        (b'{"name": "b"}', "cannot be decoded"),
        (b'[{"name": 3}]', "cannot be decoded"),
        (b'[{"name": "b", "namespace": {"uuid": []}}]', "cannot be decoded"),
        (b'[{"name": "\xd9"}]', "cannot be decoded"),
        (b"[" * 100_000, "cannot be decoded"),
        (b"", "cannot be decoded"),
        (b"<html><body>Welcome</body></html>", "web page"),
        (b" " * (17 << 20), "more than 16 MiB"),
    ],
)
def test_what_is_no_list_of_buckets_is_refused(body: bytes, says: str) -> None:
    with RawServer(status(200, "Content-Type: application/json", body=body)) as server:
        with pytest.raises(ReadError, match=f"List of buckets: .*is not an AIStore: .*{says}"):
            list_buckets(store(server, deadline=20.0))
        assert len(server.requests) == 1


def test_promise_3_an_entry_on_two_pages_is_one_object_and_the_listing_keeps_its_uuid() -> None:
    asked = []

    def script(request: Request) -> None:
        value = body_of(request)["value"]
        asked.append((value["uuid"], value["continuation_token"]))
        body = {
            "": page("p1", "p2", token="p2", uuid="lst-7"),
            "p2": page("p2", "p3", token="p3", uuid="lst-7"),
            "p3": page("p4", "p1", uuid="lst-7"),
        }[value["continuation_token"]]
        status(200, MSGPACK, body=body)(request)

    with RawServer(script) as server:
        urls = list_objects("ais://b/p", options=store(server, deadline=30.0))
    assert [parse_url(url).name for url in urls] == ["p1", "p2", "p3", "p4"]
    assert asked == [("", ""), ("lst-7", "p2"), ("lst-7", "p3")]


@pytest.mark.ci
def test_the_start_of_a_transform_may_take_as_long_as_its_pods_may() -> None:
    """The deadline of other requests is shorter than what pods need."""

    def starts_slowly(request: Request) -> None:
        body_of(request)
        request.wait(1.5)
        status(200, "Content-Type: text/plain", body=b"xaction-1")(request)

    with RawServer(starts_slowly) as server:
        options = store(server, deadline=0.5)
        with sdk_client(options) as client:
            _create(
                client.etl("as-it-is"), shard_etl(lambda sample: sample), options,
                comm_type="hpush", init_timeout="9s", obj_timeout="9s", dependencies=[],
            )  # fmt: skip
        assert [request.method for request in server.requests] == ["PUT"]


def test_pages_without_news_count_only_in_a_row() -> None:
    """A cluster that removes many objects may send many of them, here and there."""
    pages = [page(token=f"t{number}") for number in range(180)]
    pages[90] = page("p1", token="t90")
    with RawServer(*listing(*pages, page("p2"))) as server:
        urls = list_objects("ais://b/p", options=store(server, deadline=30.0))
    assert [parse_url(url).name for url in urls] == ["p1", "p2"]


def test_a_directory_is_no_object_and_an_object_that_is_called_like_one_is() -> None:
    entries = page(entry("p/", 0), entry("p/full/", 5), entry("p/q", 0), entry("p/r", 3, f=256))
    with RawServer(*listing(entries)) as server:
        urls = list_objects("ais://b/p", options=store(server))
    assert [parse_url(url).name for url in urls] == ["p/full/", "p/q"]


def test_promise_7_huge_answers_take_bounded_memory() -> None:
    def pouring(head: bytes) -> Script:
        def script(request: Request) -> bool:
            request.send(head)
            for _ in range(4096):
                request.send(b"x" * (1 << 20))
            return False

        return script

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for head in (
        OK + MSGPACK.encode() + b"\r\nContent-Length: 4294967296\r\n\r\n",
        OK + MSGPACK.encode() + b"\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4294967296\r\n\r\n",
    ):
        with RawServer(pouring(head)) as server, pytest.raises(TransportError):
            list_objects("ais://b/p", options=store(server, deadline=20.0))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10


def html(body: bytes = b"<html>Sign in</html>") -> Script:
    return status(200, "Content-Type: text/html", body=body)


FOREIGN: dict[str, Script] = {
    "a web page": html(),
    "a web page of no type": status(200, body=b"<!DOCTYPE html><html></html>"),
    "nothing": status(200),
    "204": status(204),
    "other JSON": status(200, "Content-Type: application/json", body=b'{"status": "ok"}'),
    "a JSON list": status(200, "Content-Type: application/json", body=b"[1, [2]]"),
    "a JSON string": status(200, "Content-Type: application/json", body=b'"ok"'),
    "nested JSON": status(200, "Content-Type: application/json", body=b"[" * 50_000),
    "no JSON": status(200, "Content-Type: application/json", body=b"{"),
    "text": status(200, "Content-Type: text/plain", body=b"Hello, who are you?"),
    "other msgpack": status(200, MSGPACK, body=msgspec.msgpack.encode([1, 2])),
    "cut msgpack": status(200, MSGPACK, body=page("p1", "p2")[:-9]),
    "deep msgpack": status(200, MSGPACK, body=b"\x91" * 100_000),
    "no msgpack": status(200, MSGPACK, body=b"\xc1\xff"),
    "empty msgpack": status(200, MSGPACK),
    "bytes": status(200, "Content-Type: application/octet-stream", body=bytes(range(256)) * 400),
    "an unknown charset": status(200, "Content-Type: application/json; charset=nonsense", body=b'{"a": 1}'),
    "no gzip": status(200, MSGPACK, "Content-Encoding: gzip", body=b"no gzip"),
}


@pytest.mark.parametrize("operation", SDK_CALLS)
def test_somebody_else_at_the_endpoint_is_told_in_one_clear_error(operation: str) -> None:
    with RawServer(lambda request: FOREIGN[name](request)) as server:
        for name in FOREIGN:
            error = error_of(lambda: control(server, SDK_CALLS[operation], deadline=20.0, attempts=1))
            if (
                error is None
            ):  # a node says nothing about a bucket made, and every word about a job is optional
                assert "web page" not in name
                assert (
                    operation == "create" or (operation == "status" and "JSON" in name) or "charset" in name
                )
            else:
                assert "is not an AIStore: " in str(error), str(error)
                assert server.endpoint in str(error)
                assert "AIS_ENDPOINT" in str(error)
                assert error.attempt == 1


def test_a_page_to_log_in_is_not_an_aistore() -> None:
    with RawServer(html()) as login:
        for code in (301, 302, 307):
            with RawServer(redirect(f"{login.endpoint}/login?from=x", code)) as server:
                with pytest.raises(
                    ReadError, match=f"{server.endpoint} is not an AIStore: .*web page"
                ) as caught:
                    list_objects("ais://b/p", options=store(server, deadline=20.0))
                assert "Sign in" in str(caught.value)
                for request_ in (
                    head_object,
                    lambda url, options: put_object(url, b"x", options),
                    delete_object,
                ):
                    with pytest.raises(ReadError, match="is not an AIStore"):
                        request_("ais://b/s", store(server, deadline=20.0))


@pytest.mark.parametrize("answer", [html(), status(200, body=b"fine"), status(204), status(201)])
def test_an_object_is_not_believed_to_be_somewhere_else(answer: Script) -> None:
    with RawServer(answer) as server:
        for request_ in (head_object, lambda url, options: put_object(url, b"x", options)):
            with pytest.raises(ReadError, match="is not an AIStore"):
                request_("ais://b/s", store(server, deadline=20.0))


def test_jobs_need_an_id_and_transforms_an_answer() -> None:
    spec = DsortSpec("ais://b/s-{0..1}.tar", "ais://c/n-%d.tar", shard_size=8)
    with RawServer(html()) as server:
        for run in (
            lambda: run_dsort(server.endpoint, spec),
            lambda: list_etls(server.endpoint),
            lambda: etl_logs(server.endpoint, "my-etl"),
            lambda: delete_etl(server.endpoint, "my-etl"),
            lambda: ensure_etl(server.endpoint, "my-etl", shard_etl(lambda sample: sample)),
        ):
            with pytest.raises(AISError, match="is not an AIStore"):
                run()


BAD_ENTRIES: list[tuple[Any, str]] = [
    (entry("q/1.tar"), "'q/1.tar' cannot be right: .*does not begin with 'p'"),
    (entry(""), "no name"),
    (entry("p/../../x"), r"p/\.\./\.\./x.*another object"),
    (entry("p/./x"), "another object"),
    (entry("p\0"), "control character.*narrower prefix.*remove it"),
    (entry("p\nx"), "control character"),
    (entry("p\x7f"), "control character"),
    (entry("p" * 5000), "more than 4096 characters"),
    (entry("p1", -1), "'p1'.*-1 bytes"),
    (entry("p1", 1 << 62), f"{1 << 62} bytes"),
    (entry("p1", (1 << 64) - 1), "bytes"),
    (entry("p1", "3"), r"is not an AIStore: .*int.*\$\.Entries\[1\]\.s"),
    (entry("p1", 3.5), "is not an AIStore"),
    (entry("p1", None), "is not an AIStore"),
    (entry(7), "is not an AIStore"),
    (entry(None), "is not an AIStore"),
    (entry(b"p1"), "is not an AIStore"),
    (entry("p1", cs=5), "is not an AIStore"),
    (entry("p1", v=[1]), "is not an AIStore"),
    (entry("p1", f=-1 << 63), None),
    ({"s": 3}, "is not an AIStore"),
    ([1], "is not an AIStore"),
]


@pytest.mark.parametrize(("bad", "says"), [one for one in BAD_ENTRIES if one[1]])
def test_an_entry_that_cannot_be_is_an_error_that_names_it(bad: Any, says: str) -> None:
    body = msgspec.msgpack.encode(
        {"UUID": "u", "ContinuationToken": "", "Flags": 0, "Entries": [entry("p0"), bad]}
    )
    with RawServer(*listing(body)) as server:
        with pytest.raises(ReadError, match=f"Listing ais://b/p: .*{says}") as caught:
            list_objects("ais://b/p", options=store(server, deadline=20.0))
    assert len(str(caught.value)) < 700


def test_what_a_cluster_lists_is_all_taken_and_directories_are_no_objects() -> None:
    names = [
        "dir/sub dir/ü ö.bin",
        "q?a=1&b#c%d+e.bin",
        "p.tar",
        "a//b",
        "...",
        "x..y/..z",
        "~",
        "e\u0301",
        "🙂",
    ]
    body = page(*names, entry("dir/", 0), entry("pseudo", 0, f=64 | 1 << 8))
    with RawServer(*listing(body)) as server:
        urls = list_objects("ais://b", options=store(server, deadline=20.0))
    assert [parse_url(url).name for url in urls] == sorted(names)
    assert {(url.size, url.checksum, url.version) for url in urls} == {(3, "0" * 16, "1")}


@pytest.mark.parametrize("seed", range(8))
def test_damaged_listings_are_errors_of_ours_or_listings(seed: int) -> None:
    numbers = random.Random(seed)
    sound = page(*(f"p{number}" for number in range(20)), token="t")
    with RawServer(endless(lambda n: damaged.pop() if damaged else page())) as server:
        for _ in range(25):
            data = bytearray(sound)
            for _ in range(numbers.randint(1, 4)):
                data[numbers.randrange(len(data))] = numbers.randrange(256)
            damaged = [bytes(data[: numbers.choice([len(data), numbers.randrange(len(data))])])]
            options = store(server, deadline=20.0, attempts=1)
            error = error_of(
                lambda options=options: list_objects("ais://b/p", options=options, allow_empty=True)
            )
            assert error is None or "ais://b/p" in str(error)


def test_a_job_that_goes_back_and_forth_makes_no_progress() -> None:
    states = itertools.cycle([JobState(Progress("read", n, 9), False) for n in (1, 2)])
    with pytest.raises(StallError, match="no progress"):
        wait_for_job(lambda: next(states), "job x", stall_timeout=0.5)


def test_a_cluster_that_gives_no_answer_is_named_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempts, "_SILENT_S", 0.2)
    attempts._said.clear()
    with RawServer(silent) as server:
        with caplog.at_level("WARNING", "torchdata_ais"), pytest.raises(StallError):
            list_objects("ais://b/s-", options=store(server, deadline=1.0, attempts=1))
        (line,) = [text for text in caplog.messages if "no answer" in text]
        assert line.startswith(f"listing ais://b/s-: no answer from {server.endpoint} for ")
