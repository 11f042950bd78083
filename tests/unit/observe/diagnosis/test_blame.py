"""Who is blamed, out of what ranks tell: on machines that are busy with other work, too."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from torchdata_ais.observe.diagnosis.batch_records import (
    BatchRecord,
    BatchRecorder,
    Doing,
    Recorded,
    RunDelay,
)
from torchdata_ais.observe.diagnosis.rank_summary import RankSummary, Sketch, WorkerSummary, note_requests
from torchdata_ais.observe.diagnosis.rank_table import readiness_of
from torchdata_ais.observe.diagnosis.readiness import RankRecorder
from torchdata_ais.observe.diagnosis.worker_queries import Answering, Asked, ask_records
from torchdata_ais.store import RequestRecord

STEPS = 40


def sketch_of(seconds: float) -> Sketch:
    sketch = Sketch()
    for _ in range(STEPS):
        sketch.add(seconds)
    return sketch


def told(rank: int, wait_s: float = 0.0003, loop_s: float = 0.08, **own_s: float) -> RankSummary:
    """Return what a rank of two workers tells; ``w1=`` is what a stage takes in worker 1 for a batch, 1 ms else."""
    workers = [
        WorkerSummary(
            number, 1000 + number, STEPS // 2, STEPS / 2 * 0.1, 0.0, STEPS / 2 * own_s.get("delayed", 0.0),
            {"decode()": STEPS / 2 * own_s.get(f"w{number}", 0.001)}, STEPS / 2 * wait_s,
        )
        for number in range(2)
    ]  # fmt: skip
    one = RankSummary(rank, 4, "node", 1, step=STEPS, wait=sketch_of(wait_s), loop=sketch_of(loop_s))
    one.workers = workers
    return one


def asked(one: RankSummary, name: str, seconds: float, worker: int = 0, host: str = "t1:1") -> None:
    note_requests(one, worker, [RequestRecord(name, host, 1.0, first_byte_s=seconds, took_s=seconds)])


def ready() -> list[RankSummary]:
    ranks = [told(rank) for rank in range(4)]
    for one in ranks:
        for shard in range(6):
            asked(one, f"s-{one.rank}{shard}", 0.01 * (1 + shard % 3), host=f"t{shard % 3}:1")
    return ranks


def test_ranks_whose_data_are_ready_are_not_blamed() -> None:
    verdict = readiness_of(ready()).verdict
    assert (verdict.cause, verdict.hidden) == ("none", False)


def test_a_slow_worker_that_hides_behind_what_is_made_ahead_is_named() -> None:
    ranks = ready()
    ranks[2] = told(2, w1=0.04)
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.worker, verdict.place) == ("decode", 2, 1, "decode()")
    assert verdict.hidden
    assert "wait for nothing here; what is made ahead hides a slow decode" in verdict.sentence


def test_so_is_a_slow_shard_with_the_worker_that_read_it() -> None:
    ranks = ready()
    asked(ranks[1], "s-slow", 2.0, worker=1)
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.worker, verdict.place) == ("shard", 1, 1, "s-slow")
    assert verdict.hidden


def test_so_is_a_slow_target() -> None:
    ranks = ready()
    for one in ranks:
        for shard in range(3):
            asked(one, f"slow-{one.rank}{shard}", 2.0, host="slow:1")
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.place, verdict.hidden) == ("target", None, "slow:1", True)


def test_a_rank_that_waits_because_its_machine_is_busy_has_no_slow_stage() -> None:
    ranks = ready()
    ranks[3] = told(3, wait_s=0.05, w0=0.0017, w1=0.0017, delayed=0.09)
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.place) == ("hand-over", 3, "")
    assert "wait 90 ms a batch for a processor: the node is busy" in verdict.sentence


def test_ranks_that_all_wait_for_processors_are_told_so() -> None:
    verdict = readiness_of([told(rank, wait_s=0.05, delayed=0.09) for rank in range(4)]).verdict
    assert verdict.cause == "hand-over"
    assert (
        "all ranks wait for data, 50 ms a step: workers wait 90 ms a batch for a processor"
        in verdict.sentence
    )


def test_a_slow_loop_is_not_hidden_by_a_rank_that_a_busy_machine_holds_up() -> None:
    ranks = ready()
    ranks[2] = told(2, wait_s=0.013, delayed=0.09)
    for one in ranks:
        one.places = {"train.py:7 (backward)": 90}
    ranks[0].places = {"train.py:7 (backward)": 40, "train.py:9 (log)": 50}
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.place) == ("loop", 0, "train.py:9 (log)")


def waiting(ranks: list[RankSummary], rank: int, stage: str = "load_tar()", **request: Any) -> None:
    """Have a rank wait for 30 s, while a worker stands in a stage, with a request under way."""
    one, worker = ranks[rank], ranks[rank].workers[1]
    one.waiting_s = 30.0
    worker.doing = Doing(31.0, stage, stage == "load_tar()")
    worker.request = RequestRecord(
        **{"name": f"s-{rank}", "host": "t1:1", "begun": 1.0, "took_s": 29.0, **request}
    )


def test_a_rank_that_waits_now_holds_the_job_up_whatever_was_before() -> None:
    ranks = ready()
    waiting(ranks, 2)
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.worker, verdict.place) == ("shard", 2, 1, "s-2")
    assert verdict.sentence == (
        "rank 2, worker 1, on node holds the job up: it has waited 30.0 s for the next batch: slow shard: t1:1 has not "
        "answered for 29.0 s, asked for s-2"
    )


def test_so_does_one_whose_function_does_not_return() -> None:
    ranks = ready()
    waiting(ranks, 1, "map_sample(resize)")
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank, verdict.worker, verdict.place) == (
        "decode",
        1,
        1,
        "map_sample(resize)",
    )


def test_a_target_that_answers_several_not_is_the_place() -> None:
    ranks = ready()
    waiting(ranks, 1)
    waiting(ranks, 3)
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.place) == ("target", "t1:1")
    waiting(ranks, 3, host="t2:1")
    assert readiness_of(ranks).verdict.cause == "shard"


def test_bytes_that_are_under_way_are_named() -> None:
    ranks = ready()
    waiting(ranks, 0, first_byte_s=0.1)
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.place) == ("shard", "s-0")
    assert verdict.sentence.endswith("s-0 is under way for 29.0 s from t1:1")


def test_workers_that_do_not_say_what_they_do_are_told_of() -> None:
    ranks = ready()
    ranks[0].waiting_s = 30.0
    verdict = readiness_of(ranks).verdict
    assert (verdict.cause, verdict.rank) == ("unknown", 0)
    assert verdict.sentence.endswith("its workers do not say what they do; kill -USR2 1 puts it on record")


def test_a_job_whose_steps_take_long_does_not_stand_still() -> None:
    ranks = [told(rank, wait_s=4.0, loop_s=3.0) for rank in range(4)]
    ranks[1].waiting_s = 30.0
    assert readiness_of(ranks).verdict.cause != "unknown"
    ranks[1].waiting_s = 36.0
    assert readiness_of(ranks).verdict.cause == "unknown"


def test_a_rank_that_has_ended_waits_for_nothing() -> None:
    ranks = ready()
    waiting(ranks, 1)
    ranks[1].ended = "closed"
    assert readiness_of(ranks).verdict.cause == "none"


def test_what_a_busy_machine_keeps_a_thread_from_is_counted() -> None:
    """Python's lock makes threads wait asleep; here it is only looked at that the number grows and never falls."""
    delay = RunDelay()
    before = delay.seconds()
    deadline = time.monotonic() + 5
    while delay.seconds() == before and time.monotonic() < deadline:
        sum(range(10_000))
    assert delay.seconds() >= before >= 0


class Slow(BatchRecorder):
    """Has a batch more each time, and returns it when the test allows."""

    def __init__(self) -> None:
        self.allowed, self._count_of = threading.Event(), 0

    def take(self) -> Recorded:
        assert self.allowed.wait(60)
        self._count_of += 1
        return Recorded(7, ["load_tar()"], [BatchRecord(1, self._count_of, 1.0, 0.1)], [])


@contextmanager
def answering() -> Iterator[tuple[Asked, Slow]]:
    ours, theirs = socket.socketpair()
    worker, line = Answering(theirs, "worker process 0"), Asked(ours)
    worker.recorder = Slow()
    try:
        yield line, worker.recorder
    finally:
        line.close()
        worker.join(60)
        theirs.close()


def numbers(line: Asked) -> list[int] | None:
    (noted,) = ask_records([("worker process 0", 7, line)])
    return None if noted is None else [batch.number for batch in noted.batches]


def test_what_came_too_late_is_told_again_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata_ais.observe.diagnosis.worker_queries._ANSWER_S", 60.0)
    with answering() as (line, recorder):
        recorder.allowed.set()
        assert numbers(line) == [1]
        recorder.allowed.clear()
        monkeypatch.setattr("torchdata_ais.observe.diagnosis.worker_queries._ANSWER_S", 0.1)
        assert numbers(line) is None
        recorder.allowed.set()
        monkeypatch.setattr("torchdata_ais.observe.diagnosis.worker_queries._ANSWER_S", 60.0)
        assert numbers(line) == [2, 3]
        assert numbers(line) == [4]


class Reading:
    """A worker whose request has not ended."""

    def __init__(self) -> None:
        self.request = RequestRecord("ais://b/slow.tar", "t1:1", 1.0, first_byte_s=0.01, read_s=3.0)

    def records(self) -> list[tuple[int, Any]]:
        return [(1, Recorded(7, [], [], [], [self.request]))]


def test_a_slow_request_is_told_of_before_it_ends_and_counted_once() -> None:
    recorder, worker = RankRecorder(8), Reading()
    for _ in recorder.watch(iter([("batch", 1)]), worker):
        for _ in range(2):
            served = recorder.told().shards["ais://b/slow.tar"]
            assert (served.requests, served.worker) == (1, 1)
            assert served.each_s == pytest.approx(3.01)
    assert not recorder.summary.shards
