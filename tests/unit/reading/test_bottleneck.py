"""Who fetches batches by index: threads, or the consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from torchdata_ais import AISSampleReader, SampleIndex, StoreOptions
from torchdata_ais.local import Delay, EndBatch, LocalCluster
from torchdata_ais.reading import by_index
from torchdata_ais.reading.by_index import Bottleneck, IndexedReader
from torchdata_ais.store import ConcurrencyLimit, concurrency_limit_of, put_object, read_batch
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


def batch(bottleneck: Bottleneck, clock: Clock, took_s: float) -> bool:
    """Let the consumer fetch a batch, for which it computes 0.01 s."""
    with bottleneck.own_batch():
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


def read(cluster: LocalCluster) -> Sequence[tuple[str, bytes]]:
    index = SampleIndex.build("ais://b/s.tar", method="read", cluster=cluster)
    reader = AISSampleReader(index, shuffle="samples", prefetch_bytes=1 << 19, seed=1)
    found = sorted((sample["__key__"], sample["bin"]) for sample in reader)
    assert found == [(f"{number:03d}", bytes([number % 251]) * 5000) for number in range(COUNT)]
    return found


def test_the_consumer_fetches_batches_and_the_next_epoch_begins_so(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_index, "_PATIENCE", 1000)  # however slow this machine is
    monkeypatch.setattr(Bottleneck, "is_consumer_busy", lambda self: False)
    for _ in range(2):
        read(cluster)
        assert pace.inline
    assert len(by) > 10
    assert all(by)


def test_ranges_that_are_missing_from_a_batch_of_the_consumer_come_by_threads(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_index, "_PATIENCE", 1000)
    monkeypatch.setattr(Bottleneck, "is_consumer_busy", lambda self: False)
    alone = []
    monkeypatch.setattr(
        by_index.Fetching,
        "_range",
        lambda *args: alone.append(threading.current_thread().name) or range_(*args),
    )
    cluster.faults.add(EndBatch(3), verb="BATCH", times=1)
    read(cluster)
    assert cluster.faults.fired() == 1
    assert by[0]
    assert len(alone) > 3
    assert set(alone) == {"torchdata_ais.fetch"}


range_ = by_index.Fetching._range


def test_a_cluster_that_is_slow_is_read_by_threads_after_one_batch(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool]
) -> None:
    cluster.faults.add(Delay(0.05), verb="BATCH")
    read(cluster)
    assert by.count(True) == 1
    assert by.count(False) > 5
    assert not pace.inline


@pytest.mark.timeout(30)
def test_the_consumer_fetches_as_soon_as_the_last_thread_has_ended(
    cluster: LocalCluster, pace: ConcurrencyLimit, by: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target may end its answer long after the last entry."""
    pace.inline = False
    monkeypatch.setattr(by_index, "_LIVENESS_S", 100.0)
    monkeypatch.setattr(by_index, "_PATIENCE", 1000)
    monkeypatch.setattr(Bottleneck, "judge", lambda self: not self.inline)
    monkeypatch.setattr(Bottleneck, "is_consumer_busy", lambda self: False)
    fetch = by_index.Fetching._fetch

    def ended_late(*args: Any) -> None:
        fetch(*args)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)

    monkeypatch.setattr(by_index.Fetching, "_fetch", ended_late)
    read(cluster)
    assert by[-1]
