"""Who fetches batches by index: threads, or the consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchdata_ais import AISSampleReader, SampleIndex, StoreOptions
from torchdata_ais.errors import ReadError
from torchdata_ais.local import Cut, Delay, EndBatch, LocalCluster
from torchdata_ais.reading import by_index, requests
from torchdata_ais.reading.by_index import Bottleneck, IndexedReader
from torchdata_ais.reading.runs import Run
from torchdata_ais.store import (
    ConcurrencyLimit,
    ObjectCache,
    Retry,
    Stats,
    concurrency_limit_of,
    put_object,
    read_batch,
    read_range,
)
from torchdata_ais.testing import shard_bytes

COUNT = 300


class Clock:
    """Seconds that passed, and seconds that this thread computed."""

    now = computed = 0.0

    def go(self, now: float, computed: float = 0.0) -> None:
        self.now += now
        self.computed += computed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    times = SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: clock.computed)
    monkeypatch.setattr(by_index, "time", times)
    return clock


@pytest.mark.parametrize(
    ("own_s", "in_threads_s", "too_many"),
    [
        (0.015, 0.05, True),  # 0.65 of 0.1 s: exactly
        (0.014, 0.05, False),  # the threads wait for the network
        (0.05, 0.05, True),
        (0.051, 0.049, False),  # the consumer computes, and is not kept from it
    ],
)
def test_threads_are_too_many_where_reading_computes_all_the_time(
    clock: Clock, own_s: float, in_threads_s: float, too_many: bool
) -> None:
    bottleneck = Bottleneck()
    clock.go(0.1, own_s)
    for _ in range(3):
        bottleneck.add(in_threads_s / 4)
        assert not bottleneck.judge(), "of fewer than four requests"
    bottleneck.add(in_threads_s / 4)
    assert bottleneck.judge() == too_many
    assert bottleneck.computing == (own_s + in_threads_s >= 0.065)
    assert not bottleneck.judge(), "again, of none"
    assert not bottleneck.inline


def batch(bottleneck: Bottleneck, clock: Clock, took_s: float, part: float = 1.0) -> bool:
    """Let the consumer fetch a batch, for which it computes 0.01 s."""
    with bottleneck.own_request(part):
        clock.go(took_s, 0.01)
    return bottleneck.inline


@pytest.mark.parametrize(
    ("times_s", "inline"),
    [
        ([0.03], [True]),
        ([0.031], [False]),  # the first decides alone
        ([0.01, 0.9, 0.01, 0.9], [True] * 4),
        ([0.01, 0.031, 0.031], [True, True, False]),
    ],
)
def test_the_consumer_fetches_until_two_batches_in_turn_wait(
    clock: Clock, times_s: list[float], inline: list[bool]
) -> None:
    bottleneck = Bottleneck()
    bottleneck.try_inline()
    assert [batch(bottleneck, clock, took_s) for took_s in times_s] == inline


def test_small_requests_of_the_consumer_are_judged_together(clock: Clock) -> None:
    bottleneck = Bottleneck()
    for took_s, inline in ((0.09, True), (0.091, False)):  # three times what it computed, for three requests
        bottleneck.try_inline()
        assert batch(bottleneck, clock, took_s - 0.02, 0.3)
        assert batch(bottleneck, clock, 0.01, 0.19)
        assert batch(bottleneck, clock, 0.01, 0.01) == inline
    bottleneck.try_inline()
    assert batch(bottleneck, clock, 0.9, 0.49)
    bottleneck.leave_to_threads()
    bottleneck.try_inline()
    assert batch(bottleneck, clock, 0.01, 0.5), "what was measured before does not count"


def requests_before(bottleneck: Bottleneck, clock: Clock) -> int:
    """Return how many requests of busy threads end before they are judged."""
    count = 0
    while not bottleneck.judge():
        clock.go(0.01, 0.001)
        bottleneck.add(0.009)
        count += 1
        assert count < 1000
    return count


def test_each_trial_in_vain_doubles_the_pause_before_the_next(clock: Clock) -> None:
    bottleneck = Bottleneck()
    assert requests_before(bottleneck, clock) == 4
    for pause in (16, 32, 64):
        bottleneck.try_inline()
        assert not batch(bottleneck, clock, 1.0)
        assert not bottleneck.computing, "or threads would stay few"
        assert requests_before(bottleneck, clock) == pause


def test_a_consumer_that_is_busy_between_batches_needs_threads(clock: Clock) -> None:
    bottleneck = Bottleneck()
    bottleneck.try_inline()
    clock.go(1.0)
    assert not bottleneck.is_consumer_busy(), "before its first batch"
    assert batch(bottleneck, clock, 0.02)
    clock.go(1.0)
    assert bottleneck.end_wait() == clock.now
    clock.go(0.01)
    assert not bottleneck.is_consumer_busy()
    clock.go(0.001)
    assert bottleneck.is_consumer_busy()


@pytest.mark.parametrize(("worked_s", "busy"), [(0.005, False), (0.0051, True)])
def test_work_between_small_requests_counts_together(clock: Clock, worked_s: float, busy: bool) -> None:
    bottleneck = Bottleneck()
    bottleneck.end_wait()
    bottleneck.try_inline()
    for _ in range(7):  # the first four are judged together: 0.04 s
        assert batch(bottleneck, clock, 0.01, 0.125)
        clock.go(worked_s)
    assert bottleneck.is_consumer_busy() == busy
    assert batch(bottleneck, clock, 0.01, 0.125), "without a wait between two requests"
    assert batch(bottleneck, clock, 0.01, 0.5)
    assert not bottleneck.is_consumer_busy()


def test_fewer_threads_come_before_none(clock: Clock) -> None:
    fetching = IndexedReader([StoreOptions()], 1 << 20)._fetching
    fetching._most = 16
    counts = []
    while not fetching._bottleneck.inline:
        requests_before(fetching._bottleneck, clock)
        fetching._bottleneck._left = 0
        fetching._judge()
        counts.append(fetching._most)
    assert counts == [11, 8, 6, 4, 3, 2, 2]


def test_threads_do_not_become_more_where_reading_computes(clock: Clock) -> None:
    fetching = IndexedReader([StoreOptions()], 1 << 20)._fetching
    requests_before(fetching._bottleneck, clock)
    fetching._late = True
    fetching._weigh(1 << 20, 0.1)
    assert fetching._most == 2
    fetching._bottleneck.computing, fetching._late = False, True
    fetching._weigh(1 << 20, 0.1)
    assert fetching._most == 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        cluster.client().bucket("b").create()
        members = ((f"{number:03d}.bin", bytes([number % 251]) * 5000) for number in range(COUNT))
        put_object("ais://b/s.tar", shard_bytes(members), StoreOptions(endpoint=cluster.endpoint))
        yield cluster


@pytest.fixture
def pace(cluster: LocalCluster) -> ConcurrencyLimit:
    cluster.faults.clear()
    pace = concurrency_limit_of(cluster.endpoint)
    pace.batches, pace.inline = True, True
    return pace


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch, whether this thread requested it."""
    found: list[bool] = []

    def noted(*args: Any, **named: Any) -> Any:
        found.append(threading.current_thread() is threading.main_thread())
        return read_batch(*args, **named)

    monkeypatch.setattr(by_index, "read_batch", noted)
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that fetches does so to the end, however slow this machine is."""
    monkeypatch.setattr(by_index, "_PATIENCE", 1000)
    monkeypatch.setattr(Bottleneck, "is_consumer_busy", lambda self: False)


def read(cluster: LocalCluster) -> Sequence[tuple[str, bytes]]:
    index = SampleIndex.build("ais://b/s.tar", method="read", cluster=cluster)
    reader = AISSampleReader(index, shuffle="samples", prefetch_bytes=1 << 19, seed=1)
    found = sorted((sample["__key__"], sample["bin"]) for sample in reader)
    assert found == [(f"{number:03d}", bytes([number % 251]) * 5000) for number in range(COUNT)]
    return found


@pytest.mark.usefixtures("patient")
def test_the_consumer_fetches_batches_and_the_next_epoch_begins_so(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool]
) -> None:
    for _ in range(2):
        read(cluster)
        assert pace.inline
    assert len(by) > 10
    assert all(by)


@pytest.mark.usefixtures("patient")
def test_ranges_that_are_missing_from_a_batch_of_the_consumer_come_by_threads(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = []

    def noted(fetching: by_index.Fetching, request: by_index.Request, *args: Any) -> bytes:
        if len(request.wanted) == 1:
            alone.append(threading.current_thread().name)
        return range_(fetching, request, *args)

    range_ = by_index.Fetching._range
    monkeypatch.setattr(by_index.Fetching, "_range", noted)
    cluster.faults.add(EndBatch(3), verb="BATCH", times=1)
    read(cluster)
    assert cluster.faults.fired() == 1
    assert by[0]
    assert len(alone) > 3
    assert set(alone) == {"torchdata_ais.fetch"}


def test_a_cluster_that_is_slow_is_read_by_threads_after_one_batch(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool]
) -> None:
    cluster.faults.add(Delay(0.05), verb="BATCH")
    read(cluster)
    assert by.count(True) == 1
    assert by.count(False) > 5
    assert not pace.inline


@pytest.mark.timeout(30)
@pytest.mark.usefixtures("patient")
def test_the_consumer_fetches_as_soon_as_the_last_thread_has_ended(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target may end its answer long after the last entry."""
    pace.inline = False
    monkeypatch.setattr(by_index, "_LIVENESS_S", 100.0)
    monkeypatch.setattr(Bottleneck, "judge", lambda self: not self.inline)
    fetch = by_index.Fetching._fetch

    def ended_late(*args: Any, **named: Any) -> None:
        fetch(*args, **named)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)

    monkeypatch.setattr(by_index.Fetching, "_fetch", ended_late)
    read(cluster)
    assert by[-1]


@pytest.mark.usefixtures("patient")
def test_runs_of_samples_come_part_by_part_where_the_consumer_fetches(
    cluster: LocalCluster, pace: ConcurrencyLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks within a run costs the part in which it broke."""
    index = SampleIndex.build("ais://b/s.tar", method="read", cluster=cluster)
    size = index[0].size
    monkeypatch.setattr(requests, "_PART", 3 * size)
    cluster.reset_stats()
    cluster.faults.add(Cut(7 * size + 100), verb="GET", nth=4)
    order = [*range(200), 250, 251, 251, 260, 262]  # with a gap, and a sample twice
    reader = AISSampleReader(index, positions=order, prefetch_bytes=40 * size)
    assert [sample["__key__"] for sample in reader] == [f"{number:03d}" for number in order]
    assert cluster.faults.fired() == 1
    assert reader.counts().retries == 1
    assert cluster.stats().bytes_sent < (len(order) + 4) * size
    assert pace.inline


def test_bytes_of_a_buffer_are_copied_if_they_are_no_sample(cluster: LocalCluster) -> None:
    """The buffer has other bytes when the consumer raises the error."""
    index = SampleIndex.build("ais://b/s.tar", method="read", cluster=cluster)
    chunk = by_index.Chunk([by_index.Wanted(one) for one in index.take([0, 1])])
    fetching = by_index.Fetching([StoreOptions(cluster.endpoint)], None, Stats(), None)
    (request,) = chunk.requests
    buffer = bytearray(read_range("ais://b/s.tar", 0, request.length, StoreOptions(cluster.endpoint)))
    first, second = bytes(buffer[: index[0].size]), bytearray(buffer[index[0].size :])
    second[700] ^= 1
    buffer[index[0].size :] = second
    chunk.fill(request, memoryview(buffer))
    fetching._look_at(chunk, request)
    buffer[:] = bytes(len(buffer))
    found, wrong = chunk.pieces
    assert isinstance(found, Run)
    assert [one.data for one in found.members] == [first[512:5512]]
    assert wrong == bytes(second)


def test_threads_read_no_parts_whoever_is_to_fetch_meanwhile(
    cluster: LocalCluster, pace: ConcurrencyLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer could take a sample that is still in the buffer of a part."""
    pace.inline = False
    fetch, calls = by_index.Fetching._fetch, []

    def changed_meanwhile(fetching: by_index.Fetching, *args: Any, **named: Any) -> None:
        fetching._bottleneck.inline = True
        fetch(fetching, *args, **named)

    def noted(*args: Any, **named: Any) -> bytes:
        calls.append((threading.current_thread() is threading.main_thread(), named["arrived"] is not None))
        return read_range(*args, **named)

    monkeypatch.setattr(by_index.Fetching, "_fetch", changed_meanwhile)
    monkeypatch.setattr(by_index, "read_range", noted)
    index = SampleIndex.build("ais://b/s.tar", method="read", cluster=cluster)
    reader = AISSampleReader(index, positions=range(COUNT), prefetch_bytes=1 << 18)
    assert [sample["__key__"] for sample in reader] == [f"{number:03d}" for number in range(COUNT)]
    assert (False, False) in calls
    assert (False, True) not in calls


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("patient")
def test_an_error_within_a_run_is_that_of_the_missing_samples(
    cluster: LocalCluster, pace: ConcurrencyLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_run(cluster, monkeypatch, Cut(5 * 5632))
    assert cluster.faults.fired() == 1
    assert [one.key for one in found if isinstance(one, Run)] == ["000", "001", "002", "003"]
    assert [one.key for one in found if isinstance(one, ReadError)] == ["004", "005", "006", "007"]


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("patient")
def test_a_run_of_a_cached_shard_comes_whole(
    cluster: LocalCluster, pace: ConcurrencyLimit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = read_run(cluster, monkeypatch, cache=ObjectCache(tmp_path, 1 << 30))
    assert [one.members[0].data for one in found if isinstance(one, Run)] == [
        bytes([n]) * 5000 for n in range(8)
    ]


def read_run(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, *faults: Cut, cache: ObjectCache | None = None
) -> list[Any]:
    """Return the first eight samples, of which the consumer reads two at a time."""
    options = StoreOptions(cluster.endpoint, retry=Retry(1))
    index = SampleIndex.build("ais://b/s.tar", method="read", cluster=options)
    monkeypatch.setattr(requests, "_PART", 2 * index[0].size)
    for fault in faults:
        cluster.faults.add(fault, object="s.tar", verb="GET", times=1)
    wanted = [[by_index.Wanted(one) for one in index.take(range(8))]]
    found = list(IndexedReader([options], 1 << 30, cache=cache).read(wanted))
    assert [one.reference.key for one, _ in found] == [f"{number:03d}" for number in range(8)]
    return [one for _, one in found]
