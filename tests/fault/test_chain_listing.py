"""Promise 1 between listing and reading: what was listed is what is read, or an error says what has changed."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, Retry, StoreOptions
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import AISError, AuthError, NotFoundError, ObjectChangedError, ReadError
from torchdata_ais.local import Cut, Delay, DropEntry, LocalCluster, Reset, Status
from torchdata_ais.testing import shard_bytes
from torchdata_ais.urls import parse_url

NAMES = [f"s-{number}.tar" for number in range(6)]


@pytest.fixture
def cluster(ais_local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    cluster = ais_local_cluster
    bucket = cluster.client().bucket("listing").create(exist_ok=True)
    for name in NAMES:
        bucket.object(name).get_writer().put_content(shard(name))
    cluster.faults.clear()
    yield cluster
    cluster.faults.clear()
    bucket.delete()


def shard(name: str, version: int = 1) -> bytes:
    return shard_bytes({f"{key}.cls": f"{name} {version}".encode() for key in "abc"})


def store(cluster: LocalCluster, **options: Any) -> StoreOptions:
    return StoreOptions(cluster.endpoint, retry=Retry(3, backoff=0.001, max_backoff=0.002), **options)


def chain(
    cluster: LocalCluster, source: Any = "ais://listing", on_error: Any = "raise", **options: Any
) -> Any:
    options_ = store(cluster, **options)
    return (
        AISSourceLister(source, cluster=options_)
        .load_tar(cluster=options_, on_error=on_error)
        .group_samples()
    )


def counted(samples: Any) -> dict[str, int]:
    return dict(Counter(parse_url(sample["__url__"]).name for sample in samples))


ALL = dict.fromkeys(NAMES, 3)


@pytest.mark.parametrize("action", [Status(503), Status(429, retry_after=0), Cut(20), Reset(0), Delay(0.05)])
def test_a_listing_that_fails_for_a_while_is_asked_again(cluster: LocalCluster, action: Any) -> None:
    cluster.faults.add(action, verb="LIST", times=2)
    assert counted(chain(cluster)) == ALL


@pytest.mark.parametrize(
    ("action", "kind"), [(Status(503), ReadError), (Status(403), AuthError), (Status(404), NotFoundError)]
)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_listing_that_fails_is_an_error_under_every_policy(
    cluster: LocalCluster, action: Any, kind: type[AISError], policy: str
) -> None:
    cluster.faults.add(action, verb="LIST")
    with pytest.raises(kind, match="ais://listing") as caught:
        list(chain(cluster, on_error=policy))
    assert caught.value.url == "ais://listing"


def test_a_shard_replaced_after_the_listing_is_an_error_unless_that_is_allowed(cluster: LocalCluster) -> None:
    for policy, pin in (("raise", True), ("skip", True), ("raise", False)):
        urls = list(AISSourceLister("ais://listing", cluster=store(cluster)))
        newest = cluster.client().bucket("listing").object("s-2.tar").get_writer()
        newest.put_content(shard("s-2.tar", 2))
        pipe = chain(cluster, urls, policy, pin=pin)
        if policy == "raise" and pin:
            with pytest.raises(
                ObjectChangedError, match=r"s-2\.tar: the object changed: version 1 became 2"
            ) as caught:
                list(pipe)
            assert "List again" in str(caught.value)
        else:
            got = list(pipe)
            assert counted(got) == ({**ALL} if not pin else {name: 3 for name in NAMES if name != "s-2.tar"})
            assert all(sample["cls"].endswith(b"2") for sample in got if "s-2.tar" in sample["__url__"])


def test_a_shard_deleted_after_the_listing_is_an_error_that_names_it(cluster: LocalCluster) -> None:
    urls = list(AISSourceLister("ais://listing", cluster=store(cluster)))
    cluster.client().bucket("listing").object("s-4.tar").delete()
    with pytest.raises(NotFoundError, match=r"ais://listing/s-4\.tar"):
        list(chain(cluster, urls))
    assert counted(chain(cluster, urls, "skip")) == {name: 3 for name in NAMES if name != "s-4.tar"}


def test_a_template_needs_no_listing_and_misses_nothing(cluster: LocalCluster) -> None:
    cluster.faults.add(DropEntry("s-1.tar"), verb="LIST")
    assert counted(chain(cluster, "ais://listing/s-{0..5}.tar")) == ALL
    with pytest.raises(NotFoundError, match=r"ais://listing/s-6\.tar"):
        list(chain(cluster, "ais://listing/s-{0..6}.tar"))


def test_promise_3_workers_with_a_template_cannot_differ(cluster: LocalCluster) -> None:
    cluster.faults.add(DropEntry("s-1.tar"), verb="LIST", nth=1)
    pipe = chain(cluster, "ais://listing/s-{0..5}.tar")
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        assert counted(loader) == ALL


def test_a_listing_is_believed(cluster: LocalCluster) -> None:
    """The limit of promise 1: a cluster that leaves an object out of its listing has, for us, no such object.

    Whoever knows the names says so with a template, as the test above does.
    """
    cluster.faults.add(DropEntry("s-1.tar"), verb="LIST")
    assert counted(chain(cluster)) == {name: 3 for name in NAMES if name != "s-1.tar"}


class Rebalancing(BaseHTTPRequestHandler):
    """A proxy whose cluster moves objects: it says so in the flags of a page."""

    def do_GET(self) -> None:
        page = {
            "UUID": "u",
            "ContinuationToken": "",
            "Flags": 1,
            "Entries": [{"n": "s-0.tar", "s": 1, "f": 64}],
        }
        body = msgspec.msgpack.encode(page)
        self.send_response(200)
        self.send_header("Content-Type", "application/msgpack")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_listing_during_a_rebalance_warns_that_it_may_miss_objects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Rebalancing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_port}"
            with caplog.at_level(logging.WARNING, logger="torchdata_ais"):
                assert len(list(AISSourceLister("ais://moving", cluster=endpoint))) == 1
        finally:
            server.shutdown()
            thread.join()
    (record,) = caplog.records
    assert "listing ais://moving" in record.message
    assert "may be incomplete" in record.message


@pytest.mark.parametrize("nth", [1, 2])
def test_promise_3_workers_are_handed_one_listing(cluster: LocalCluster, nth: int) -> None:
    """An object that came or went between two listings would shift the shards of one worker.

    Each of them would then read its part of another whole.
    """
    fault = cluster.faults.add(DropEntry("s-1.tar"), verb="LIST", nth=nth)
    with DataLoader2(chain(cluster), reading_service=MultiProcessingReadingService(2)) as loader:
        got = counted(loader)
    assert got == (ALL if nth == 2 else {name: 3 for name in NAMES if name != "s-1.tar"})
    assert cluster.faults.fired(fault) == (nth == 1)


def test_what_comes_after_the_listing_is_for_the_next_loader(cluster: LocalCluster) -> None:
    bucket = cluster.client().bucket("listing")
    with DataLoader2(chain(cluster), reading_service=MultiProcessingReadingService(2)) as loader:
        assert counted(loader) == ALL
        bucket.object("s-9.tar").get_writer().put_content(shard("s-9.tar"))
        assert counted(loader) == ALL
        bucket.object("s-4.tar").delete()
        with pytest.raises(NotFoundError, match=r"s-4\.tar"):
            counted(loader)
    with DataLoader2(chain(cluster), reading_service=MultiProcessingReadingService(2)) as loader:
        assert counted(loader) == {name: 3 for name in [*NAMES, "s-9.tar"] if name != "s-4.tar"}
