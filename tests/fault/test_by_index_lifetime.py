"""Reading by index from its first request to its last: memory, pauses, retries, forks, ends."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from helpers.waiting import until

from torchdata_ais import AISSampleReader, Retry, SampleIndex, StoreOptions, stats
from torchdata_ais.errors import AISError, ReadError, TransportError
from torchdata_ais.index import IndexedSamples
from torchdata_ais.local import Cut, CutSlow, EndBatch, LocalCluster, Stall
from torchdata_ais.reading import by_index
from torchdata_ais.reading.requests import THREADS
from torchdata_ais.store import ConcurrencyLimit, concurrency_limit_of, put_object
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

SHARDS, SAMPLES, SIZE = 8, 50, 20_000
ORDER = random.Random(5).sample(range(SHARDS * SAMPLES), SHARDS * SAMPLES)


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        fill(cluster)
        yield cluster


def fill(cluster: LocalCluster) -> None:
    cluster.client().bucket("b").create()
    for shard in range(SHARDS):
        members = ((f"{shard * SAMPLES + n:04d}.bin", bytes([n]) * SIZE) for n in range(SAMPLES))
        put_object(f"ais://b/s-{shard}.tar", shard_bytes(members), StoreOptions(endpoint=cluster.endpoint))


@pytest.fixture
def cluster(made: LocalCluster) -> LocalCluster:
    made.faults.clear()
    made.reset_stats()
    pace = concurrency_limit_of(made.endpoint)
    pace.batches, pace.inline = True, False
    return made


@pytest.fixture(params=["threads", "consumer"])
def fetched_by(cluster: LocalCluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who fetches batches, however quick this machine is."""
    concurrency_limit_of(cluster.endpoint).inline = request.param == "consumer"
    monkeypatch.setattr(by_index, "_JUDGED", 1 << 30)
    monkeypatch.setattr(by_index, "_PATIENCE", math.inf)
    return str(request.param)


@pytest.fixture(scope="module")
def index(made: LocalCluster) -> IndexedSamples:
    return SampleIndex.build("ais://b/s-", method="read", cluster=made)


def options(cluster: LocalCluster, **more: float) -> StoreOptions:
    return StoreOptions(
        endpoint=cluster.endpoint, retry=Retry(attempts=3, backoff=0.001, deadline=10), **more
    )  # type: ignore[arg-type]


def keys(reader: AISSampleReader) -> list[str]:
    return [sample["__key__"] for sample in reader]


def is_quiet(pace: ConcurrencyLimit) -> bool:
    time.sleep(0.01)
    return pace.running == 0


def fetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torchdata_ais.fetch")]


WANTED = [f"{number:04d}" for number in ORDER]


@pytest.mark.ci
@pytest.mark.usefixtures("fetched_by")
@pytest.mark.parametrize(
    "prefetch", [1, *(pytest.param(size, marks=pytest.mark.ci) for size in (100_000, 1 << 20))]
)
def test_promise_7_memory_is_the_window_and_a_sample(
    cluster: LocalCluster, index: IndexedSamples, prefetch: int
) -> None:
    reader = AISSampleReader(index, positions=ORDER, prefetch_bytes=prefetch)
    assert keys(AISSampleReader(index, positions=ORDER[:20])) == WANTED[:20]  # what stays, stays before
    tracemalloc.start()
    try:
        assert keys(reader) == WANTED
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sample = SIZE + 1024
    assert reader.counts().held_max <= max(prefetch, sample)
    # Besides: what the index keeps, the list of keys, and buffers of sockets, 256 KiB a request.
    assert peak < prefetch + 3 * sample + (1 << 20) + THREADS * (256 << 10)


@pytest.mark.usefixtures("fetched_by")
def test_the_first_sample_waits_for_little(cluster: LocalCluster, index: IndexedSamples) -> None:
    reader = AISSampleReader(index, positions=ORDER, prefetch_bytes=1 << 20)
    iterator = iter(reader)
    next(iterator)
    assert reader.counts().held_max <= (1 << 20) // 4
    assert len(list(iterator)) == len(ORDER) - 1
    assert reader.counts().held_max > (1 << 20) // 2


@pytest.mark.ci
@pytest.mark.usefixtures("fetched_by")
def test_a_consumer_that_pauses_leaves_no_request_open(cluster: LocalCluster, index: IndexedSamples) -> None:
    reader = AISSampleReader(
        index, positions=ORDER, prefetch_bytes=4 << 20, cluster=options(cluster, stall_timeout=1.0)
    )
    pace = concurrency_limit_of(cluster.endpoint)
    iterator = iter(reader)
    got = [next(iterator)["__key__"]]
    until(lambda: all(is_quiet(pace) for _ in range(30)), what="requests wait for the consumer")
    asked = len(cluster.requests())
    time.sleep(1.5)  # longer than any stall that is let pass
    assert len(cluster.requests()) == asked
    got += [sample["__key__"] for sample in iterator]
    assert got == WANTED
    assert reader.counts().retries == 0
    until(lambda: not fetching(), what="threads are left")


def paused(
    cluster: LocalCluster, index: IndexedSamples, cut_after_s: float, pause_s: float, options: StoreOptions
) -> None:
    """Read with a pause, from targets that cut who takes no byte for `cut_after_s`."""
    cluster.faults.add(CutSlow(cut_after_s), verb="BATCH")
    cluster.faults.add(CutSlow(cut_after_s), verb="GET")
    order = [*range(SHARDS * SAMPLES), *ORDER]  # large ranges of neighbours, and batches
    reader = AISSampleReader(index, positions=order, prefetch_bytes=6 << 20, cluster=options)
    iterator = iter(reader)
    got = []
    for stop in (1, len(order) - 250, len(order)):
        got += [next(iterator)["__key__"] for _ in range(stop - len(got))]
        if stop < len(order):
            time.sleep(pause_s)
    assert got == [f"{number:04d}" for number in order]
    assert reader.counts().retries == 0
    assert {one.status for one in cluster.requests()} <= {200, 206, 301, 307}
    assert concurrency_limit_of(cluster.endpoint).wrong == 0


@pytest.mark.ci
@pytest.mark.usefixtures("fetched_by")
def test_a_consumer_that_pauses_costs_no_retry_where_targets_cut_the_slow(
    cluster: LocalCluster, index: IndexedSamples
) -> None:
    paused(cluster, index, cut_after_s=1.0, pause_s=1.5, options=options(cluster))


@pytest.mark.ci
@pytest.mark.usefixtures("fetched_by")
def test_a_consumer_that_pauses_beyond_every_time_limit_costs_no_retry(
    cluster: LocalCluster, index: IndexedSamples
) -> None:
    """The limits have the order of the defaults: 20 s idle or stalled, 60 s to the first byte."""
    limits = StoreOptions(
        endpoint=cluster.endpoint, retry=Retry(attempts=3, backoff=0.001, deadline=4.0),
        stall_timeout=2.0, first_byte_timeout=4.0, idle_timeout=2.0,
    )  # fmt: skip
    paused(cluster, index, cut_after_s=3.0, pause_s=5.0, options=limits)


@pytest.mark.usefixtures("fetched_by")
@pytest.mark.parametrize("fault", [EndBatch(5), Cut(SIZE * 5)], ids=["half an answer", "cut"])
def test_only_what_is_missing_is_asked_for_again(
    cluster: LocalCluster, index: IndexedSamples, fault: EndBatch | Cut
) -> None:
    cluster.faults.add(fault, verb="BATCH", times=1)
    order = ORDER[:40]
    assert keys(AISSampleReader(index, positions=order, prefetch_bytes=16 << 20)) == WANTED[:40]
    assert cluster.faults.fired() == 1
    assert cluster.stats().bytes_sent < 1.3 * len(order) * (SIZE + 2048)


@pytest.mark.parametrize("inline", [False, True])
def test_promise_6_a_cluster_that_goes_in_the_middle_is_an_error_in_seconds(inline: bool) -> None:
    with LocalCluster(targets=2) as cluster:
        fill(cluster)
        concurrency_limit_of(cluster.endpoint).inline = inline
        index = SampleIndex.build("ais://b/s-", method="read", cluster=options(cluster))
        iterator = iter(AISSampleReader(index, positions=ORDER, prefetch_bytes=200_000))
        next(iterator)
        os.kill(cluster.pid, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(TransportError) as raised:
            list(iterator)
        assert time.monotonic() - begin < 20
        assert raised.value.key in WANTED
    until(lambda: not fetching(), what="threads are left")


@pytest.mark.ci
@pytest.mark.parametrize("many", [True, False], ids=["batch", "ranges"])
def test_promise_6_closing_ends_requests_that_wait(
    cluster: LocalCluster, index: IndexedSamples, many: bool
) -> None:
    if many:
        cluster.faults.add(Stall(seconds=40), verb="BATCH")
    else:
        shards = [number // SAMPLES for number in ORDER[:7]]
        cluster.faults.add(Stall(seconds=40), object=f"s-{next(n for n in shards if n != shards[0])}.tar")
    order = ORDER if many else ORDER[:7]
    iterator = iter(AISSampleReader(index, positions=order, prefetch_bytes=1 << 20))
    for _ in range(3 if many else 1):  # the first chunks are too small for a batch
        next(iterator)
    until(lambda: cluster.faults.fired() > 0, what="no request waits")
    begin = time.monotonic()
    iterator.close()  # type: ignore[attr-defined]
    until(lambda: not fetching(), what="threads are left")
    assert time.monotonic() - begin < 20


@pytest.mark.usefixtures("fetched_by")
def test_a_forked_process_reads_by_itself_and_its_parent_goes_on(
    cluster: LocalCluster, index: IndexedSamples
) -> None:
    iterator = iter(AISSampleReader(index, positions=ORDER, prefetch_bytes=1 << 20))
    got = [next(iterator)["__key__"]]
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            ended = 0 if keys(AISSampleReader(index, positions=ORDER[:30])) == WANTED[:30] else 2
            with pytest.raises(ReadError, match="the fetching threads are gone"):
                list(iterator)
        finally:
            os._exit(ended)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert got + [sample["__key__"] for sample in iterator] == WANTED


PROGRAM = """
import sys
from torchdata_ais import AISSampleReader, SampleIndex
from torchdata_ais.store import concurrency_limit_of
index = SampleIndex.open(sys.argv[1], shards_from="ais://b/", cluster=sys.argv[2])
concurrency_limit_of(sys.argv[2]).inline = len(sys.argv) > 3
reader = iter(AISSampleReader(index, positions=range(0, 400, 3)))
print("begun", flush=True)
list(reader)
"""


@pytest.mark.ci
@pytest.mark.parametrize("inline", [[], ["inline"]], ids=["threads", "consumer"])
def test_promise_6_ctrl_c_ends_a_program_that_waits(
    cluster: LocalCluster, index: SampleIndex, tmp_path_factory: pytest.TempPathFactory, inline: list[str]
) -> None:
    place = str(tmp_path_factory.mktemp("index"))
    index.save(place)
    cluster.faults.add(Stall(seconds=30), verb="BATCH")
    if not inline:  # the first chunks are too small for a batch, and threads fetch them
        cluster.faults.add(Stall(seconds=30))
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place, cluster.endpoint, *inline],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        until(lambda: cluster.faults.fired() > 0, what="nothing was asked for")
        program.send_signal(signal.SIGINT)
        _, text = program.communicate(timeout=60)
        assert b"KeyboardInterrupt" in text
        assert program.returncode != 0
    finally:
        program.kill()
        program.communicate()


def test_errors_and_counts_show_in_the_stats(cluster: LocalCluster, index: IndexedSamples) -> None:
    pipe = AISSampleReader(index, positions=ORDER[:50]).batched(10)
    assert len(list(pipe)) == 5
    text = str(stats(pipe))
    assert "read_samples" in text
    with pytest.raises(AISError):
        list(AISSampleReader(index, positions=ORDER, cluster="http://127.0.0.1:9", retry=Retry(attempts=1)))
