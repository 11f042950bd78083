"""`ConcurrencyLimit`: one request more while the cluster keeps up, half as many when it is busy."""

from __future__ import annotations

import os
import threading
import time

import pytest

from torchdata_ais.errors import ReadError, StallError
from torchdata_ais.store import Cancel, Cancelled, ConcurrencyLimit, concurrency_limit_of
from torchdata_ais.store.transport.attempts import Failed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refuse(pace: ConcurrencyLimit, status: int = 429, after_s: float | None = None) -> None:
    with pytest.raises(Failed), pace.turn():
        raise Failed(ReadError, "busy", status=status, after_s=after_s)


def test_it_grows_by_one_a_round_and_not_above_the_most() -> None:
    pace = ConcurrencyLimit(first=2, most=4)
    for _ in range(2):
        with pace.turn():
            pass
    assert pace.limit == 3.0
    for _ in range(100):
        with pace.turn():
            pass
    assert pace.limit == 4.0
    assert pace.running == 0


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_cluster_gets_half_as_many(status: int) -> None:
    clock = Clock()
    pace = ConcurrencyLimit(first=8, clock=clock)
    for expected in (4.0, 2.0, 1.0, 1.0):
        clock.now += 1
        refuse(pace, status)
        assert pace.limit == expected


def test_other_failures_change_nothing() -> None:
    pace = ConcurrencyLimit(first=8)
    refuse(pace, 500)
    with pytest.raises(ZeroDivisionError), pace.turn():
        raise ZeroDivisionError
    assert (pace.limit, pace.running) == (8.0, 0)


def test_the_refusals_of_one_round_count_once() -> None:
    clock = Clock()
    pace = ConcurrencyLimit(first=8, clock=clock)
    turns = [pace.turn() for _ in range(8)]
    for turn in turns:
        turn.__enter__()
    clock.now += 1
    for turn in turns:
        assert not turn.__exit__(Failed, Failed(ReadError, "busy", status=429), None)
    assert pace.limit == 4.0
    clock.now += 1
    refuse(pace)
    assert pace.limit == 2.0


def test_nothing_is_sent_before_the_cluster_allows_it() -> None:
    clock = Clock()
    pace = ConcurrencyLimit(first=8, clock=clock)
    refuse(pace, after_s=30.0)
    refused_at = clock.now
    began: list[float] = []

    def ask() -> None:
        with pace.turn():
            began.append(clock.now)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    clock.now += 29.9
    time.sleep(0.5)  # longer than who waits sleeps
    assert began == []
    clock.now += 0.2
    for thread in threads:
        thread.join(60)
    assert len(began) == 3
    assert min(began) >= refused_at + 30.0


def test_promise_6_who_waits_can_be_cancelled_and_waits_no_longer_than_allowed() -> None:
    pace = ConcurrencyLimit(first=1)
    with pace.turn():
        with pytest.raises(Failed, match="no request could be sent") as caught, pace.turn(timeout=0.05):
            pass
        assert caught.value.kind is StallError
        cancel = Cancel()
        ended: list[type[BaseException]] = []

        def wait() -> None:
            try:
                with pace.turn(cancel):
                    pass
            except Cancelled:
                ended.append(Cancelled)

        thread = threading.Thread(target=wait)
        thread.start()
        cancel.cancel()
        thread.join(60)
        assert ended == [Cancelled]
    assert pace.running == 0


def test_never_more_run_than_may() -> None:
    pace = ConcurrencyLimit(first=3, most=3)
    most = 0
    lock = threading.Lock()

    def ask() -> None:
        nonlocal most
        for _ in range(20):
            with pace.turn(), lock:
                most = max(most, pace.running)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 1 <= most <= 3


def test_a_cluster_has_one_and_a_forked_process_begins_anew() -> None:
    pace = concurrency_limit_of("http://h:1")
    assert concurrency_limit_of("http://h:1") is pace
    assert concurrency_limit_of("http://h:2") is not pace
    with pace.turn():
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            try:
                with pace.turn(timeout=5.0):
                    os._exit(0 if pace.running == 1 and concurrency_limit_of("http://h:1") is pace else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pace.running == 1


def test_a_wrong_answer_to_a_batch_counts_for_a_while_the_next_for_twice_as_long() -> None:
    now = [0.0]
    pace = ConcurrencyLimit(clock=lambda: now[0])
    assert pace.batches
    assert pace.pause_batches() == 5
    assert not pace.batches
    assert pace.pause_batches() == 0  # it was under way at the same time
    now[0] = 5.0
    assert pace.batches
    assert pace.pause_batches() == 10
    now[0] = 14.9
    assert not pace.batches
    pace.batches = True
    assert pace.batches
    pace.batches = False
    now[0] = 1e9
    assert not pace.batches
