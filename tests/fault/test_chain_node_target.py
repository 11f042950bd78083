"""Promises 6 and 9: a storage target is killed in the middle of a shard, and its proxy lives; or the other way round.

The target is a process of its own, ended by SIGKILL: its proxy goes on to name it, as a real one does until the
cluster map has changed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.raw_server import RawServer, Request, redirect, whole
from torch.utils.data import DataLoader

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, Retry, StoreOptions, stats
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import AISError, ConnectError
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

COUNT = 150
IMAGE = bytes(range(256)) * 1000
NEXT = shard_bytes([(f"{number:06d}.cls", b"2") for number in range(4)])  # the same keys, in the next shard

TARGET = """
import sys
from helpers.raw_server import RawServer, whole
with open(sys.argv[1], "rb") as file, RawServer(whole(file.read())) as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


class Cluster:
    """A proxy in this process, the target of ``s-0.tar`` in one of its own, that of ``s-1.tar`` in this one."""

    def __init__(self, proxy: RawServer, dying: subprocess.Popen[str], target: str) -> None:
        self.proxy = proxy
        self.endpoint = proxy.endpoint
        self.target = target
        self._dying = dying

    def kill_target(self) -> None:
        self._dying.send_signal(signal.SIGKILL)
        self._dying.wait()

    def kill_proxy(self) -> None:
        self.proxy.__exit__()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = [
        (f"{number:06d}.{field}", data)
        for number in range(COUNT)
        for field, data in (("jpg", IMAGE), ("cls", b"1"))
    ]
    path = tmp_path_factory.mktemp("shard") / "s-0.tar"
    path.write_bytes(shard_bytes(members))
    return path


@pytest.fixture
def cluster(shard: Path) -> Iterator[Cluster]:
    dying = subprocess.Popen(
        [sys.executable, "-c", TARGET, str(shard)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert dying.stdout is not None
        target = dying.stdout.readline().strip()
        with RawServer(whole(NEXT)) as living:

            def send_on(request: Request) -> object:
                node = target if "s-0.tar" in request.target else living.endpoint
                return redirect(node + request.target)(request)

            with RawServer(send_on) as proxy:
                yield Cluster(proxy, dying, target.removeprefix("http://"))
    finally:
        dying.kill()
        dying.communicate()


def chain(cluster: Cluster, **options: Any) -> Any:
    store = StoreOptions(
        cluster.endpoint,
        stall_timeout=2.0,
        prefetch_bytes=1,
        block_bytes=65536,
        retry=Retry(3, backoff=0.01, max_backoff=0.02),
    )
    urls = AISSourceLister("ais://b/s-{0..1}.tar", cluster=store)
    return urls.load_tar(cluster=store, **options).group_samples()


def read(samples: Any, then: Callable[[], None]) -> tuple[list[str], Exception | None]:
    """Read; call `then` after the third sample; return the keys and the error that ended them."""
    keys: list[str] = []
    try:
        for sample in samples:
            assert sample["cls"] == b"2" or sample["jpg"] == IMAGE
            keys.append(sample["__key__"])
            if len(keys) == 3:
                then()
    except AISError as error:
        return keys, error
    return keys, None


def check_told(error: Exception | None, cluster: Cluster, keys: list[str]) -> None:
    """The text names the object, the node and who sent us there, how far it came, and what to do."""
    assert type(error) is ConnectError, repr(error)
    text = str(error)
    proxy = cluster.endpoint.removeprefix("http://")
    # Through worker processes the traceback over there stands before it.
    assert f"ais://b/s-0.tar: no connection to {cluster.target}: " in text
    assert "Connection refused" in text
    assert (
        f"(the storage target that {proxy} named) (tried 3 times; {error.offset} bytes had been read)" in text
    )
    assert "Start that node again, or wait until the cluster does without it" in text
    said = re.search(r"; (\d+) of its samples had been passed on by load_tar", text)
    assert said is not None
    assert int(said[1]) == len(keys)  # group_samples holds none back
    assert (error.url, error.attempt) == ("ais://b/s-0.tar", 3)
    assert 3 * len(IMAGE) < (error.offset or 0) < COUNT * len(IMAGE)
    assert keys == [f"{number:06d}" for number in range(len(keys))]


def test_promise_9_a_target_killed_in_mid_shard(cluster: Cluster) -> None:
    keys, error = read(chain(cluster), cluster.kill_target)
    check_told(error, cluster, keys)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_promise_9_told_through_a_reading_service(cluster: Cluster, context: str) -> None:
    service = MultiProcessingReadingService(1, context, worker_prefetch_cnt=2)
    with DataLoader2(chain(cluster), reading_service=service) as loader:
        keys, error = read(loader, cluster.kill_target)
    check_told(error, cluster, keys)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_promise_9_told_through_a_data_loader(cluster: Cluster, context: str) -> None:
    loader = DataLoader(chain(cluster), batch_size=None, num_workers=1, multiprocessing_context=context)
    keys, error = read(loader, cluster.kill_target)
    check_told(error, cluster, keys)


def test_promise_2_skipping_gives_whole_samples_and_goes_on_with_the_next_shard(cluster: Cluster) -> None:
    pipe = chain(cluster, on_error="skip")
    keys, error = read(pipe, cluster.kill_target)
    assert error is None
    before = len(keys) - 4
    assert 3 <= before < COUNT
    assert keys == [f"{number:06d}" for number in [*range(before), *range(4)]]
    report = stats(pipe)["load_tar"]
    assert report.skipped == {"ConnectError": 1}
    assert f"{before} of its samples had been passed on by load_tar" in report.examples[0]


def test_a_proxy_killed_in_mid_shard_is_missed_at_the_next_shard(cluster: Cluster) -> None:
    """The body under way comes from the target: it is read to its end."""
    keys, error = read(chain(cluster), cluster.kill_proxy)
    assert keys == [f"{number:06d}" for number in range(COUNT)]
    assert type(error) is ConnectError
    proxy = cluster.endpoint.removeprefix("http://")
    assert str(error).startswith(f"ais://b/s-1.tar: no connection to {proxy}: ")
    assert "Check that the cluster is up and that cluster= or AIS_ENDPOINT is right" in str(error)
    assert "had been passed on" not in str(error)
