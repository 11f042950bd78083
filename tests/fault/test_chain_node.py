"""Promise 6 and 9: what a user is told, and how soon, when a node dies in the middle of a shard."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, Retry, StoreOptions, stats
from torchdata_ais.errors import AISError, ConnectError, ReadError, StallError
from torchdata_ais.local import Cut, DeadRedirect, LocalCluster, Status
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

COUNT = 120
IMAGE = os.urandom(200_000)


@pytest.fixture(scope="module")
def shard() -> bytes:
    return shard_bytes(
        [
            (f"{number:06d}.{field}", data)
            for number in range(COUNT)
            for field, data in (("jpg", IMAGE), ("cls", b"1"))
        ]
    )


@pytest.fixture
def cluster(shard: bytes) -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        cluster.client().bucket("b").create().object("s.tar").get_writer().put_content(shard)
        yield cluster


def chain(cluster: LocalCluster, attempts: int = 3, **options: Any) -> Any:
    store = StoreOptions(
        cluster.endpoint,
        stall_timeout=0.5,
        prefetch_bytes=1,
        block_bytes=65536,
        retry=Retry(attempts, backoff=0.01, max_backoff=0.02),
    )
    return AISSourceLister("ais://b", cluster=store).load_tar(cluster=store, **options).group_samples()


def read(pipe: Any, then: Any = None) -> tuple[int, AISError]:
    """Read; call `then` after the third sample; return how many samples came and the error that ended it."""
    count = 0
    try:
        for sample in pipe:
            assert (sample["__key__"], sample["jpg"]) == (f"{count:06d}", IMAGE)
            count += 1
            if count == 3 and then is not None:
                then()
    except AISError as error:
        return count, error
    raise AssertionError("no error came")


def test_a_cluster_that_is_killed(cluster: LocalCluster) -> None:
    count, error = read(chain(cluster), lambda: os.kill(cluster.pid, signal.SIGKILL))
    assert type(error) is ConnectError
    text = str(error)
    assert text.startswith("ais://b/s.tar: no connection to 127.0.0.1:")
    assert "Connection refused" in text
    assert f"{count} of its samples had been passed on" in text
    assert "Check that the cluster is up" in text
    assert (error.url, error.attempt) == ("ais://b/s.tar", 3)
    assert 3 * len(IMAGE) < error.offset < COUNT * len(IMAGE)


def test_a_cluster_that_stands_still(cluster: LocalCluster) -> None:
    pid = cluster.pid
    try:
        count, error = read(chain(cluster), lambda: os.kill(pid, signal.SIGSTOP))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert type(error) is StallError
    assert f"{count} of its samples had been passed on" in str(error)
    assert error.attempt == 3
    # The object was there before: to go on, the node gets no longer than in the middle of a body.
    assert "sent no answer for 0.5 s" in str(error)
    assert "bytes had been read" in str(error)


def test_a_target_that_dies_is_told_from_an_endpoint_that_is_wrong(cluster: LocalCluster) -> None:
    cluster.faults.add(Cut(1_000_000), nth=1)
    cluster.faults.add(DeadRedirect(), nth=(2, 3))
    count, error = read(chain(cluster))
    assert type(error) is ConnectError
    assert count == 3
    proxy = cluster.endpoint.removeprefix("http://")
    assert f"(the storage target that {proxy} named) (tried 3 times; 1000000 bytes had been read)" in str(
        error
    )
    assert "Start that node again" in str(error)
    assert "AIS_ENDPOINT" not in str(error)


def test_a_target_that_comes_back_in_time_is_read_on(cluster: LocalCluster) -> None:
    cluster.faults.add(Cut(1_000_000), nth=1)
    cluster.faults.add(DeadRedirect(), nth=(2, 3))
    assert [sample["__key__"] for sample in chain(cluster, attempts=4)] == [
        f"{number:06d}" for number in range(120)
    ]
    ranges = [request.headers.get("range") for request in cluster.requests() if request.role == "target"]
    assert ranges[-1] == "bytes=1000000-"


def test_skipping_loses_the_rest_of_the_shard_and_says_which(cluster: LocalCluster) -> None:
    cluster.faults.add(Cut(1_000_000), nth=1)
    cluster.faults.add(Status(503), nth=range(2, 9))
    pipe = chain(cluster, on_error="skip")
    assert len(list(pipe)) == 3
    (text,) = stats(pipe)["load_tar"].examples
    assert text.startswith("ReadError: ais://b/s.tar: the server answered 503")


def test_a_proxy_without_targets_is_asked_again(cluster: LocalCluster) -> None:
    """A real proxy answers 400 while its targets are down, which is no fault of the request."""
    from torchdata_ais.store.transport.exchange import refusal

    failed = refusal(400, "no storage targets in the cluster", StoreOptions())
    assert failed.kind is ReadError
    assert failed.again
    assert "start the storage targets" in failed.todo
    assert not refusal(400, "bad request", StoreOptions()).again
