"""``max_errors=`` as a share is one of the job's samples, not of a worker's; and what ranks tell each other for it."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import run_forked

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais._util.world import World
from torchdata_ais.errors import AISError, LoaderError
from torchdata_ais.loaders import loader
from torchdata_ais.loaders.rank_setup import JobErrors
from torchdata_ais.ranks import start_heartbeat
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.job_counts import Counted, JobCounts
from torchdata_ais.ranks.start_heartbeat import interval_of
from torchdata_ais.testing import shard_bytes

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create")]

SHARDS, SAMPLES = 4, 150


def shards_of(folder: Path, each: int) -> list[str]:
    """Return shards, of which in the first one sample in `each` cannot be decoded."""
    paths = []
    for shard in range(SHARDS):
        values = (b"x" if shard == 0 and n % each == 0 else b"1" for n in range(SAMPLES))
        members = {f"{shard}-{n:03}.cls": value for n, value in enumerate(values)}
        (folder / f"s-{shard}.tar").write_bytes(shard_bytes(members))
        paths.append(str(folder / f"s-{shard}.tar"))
    return paths


def pipe_of(shards: list[str], share: float, first: Callable[[Any], Any] | None = None) -> Any:
    pipe: Any = AISSourceLister(shards).load_tar().group_samples()
    if first is not None:
        pipe = pipe.map_sample(first)
    return pipe.decode(on_error="skip", max_errors=share).to_tuple("cls").batched(5)


def test_a_share_is_of_all_workers(tmp_path: Path) -> None:
    """22 of 600 are bad: 3.7 of 100 of the job, 15 of 100 of the worker that meets them."""
    shards = shards_of(tmp_path, 7)
    with ais_loader(pipe_of(shards, 0.08), num_workers=4) as loader:
        assert sum(len(batch) for (batch,) in loader) == 578
    expected = r"decode\(\) met 22 errors in \d+ items of all workers, over max_errors=0.02"
    with ais_loader(pipe_of(shards, 0.02), num_workers=4) as loader:
        with pytest.raises(AISError, match=expected):
            list(loader)


def test_a_share_of_one_process_is_compared_at_once(tmp_path: Path) -> None:
    with ais_loader(pipe_of(shards_of(tmp_path, 7), 0.05)) as loader:
        with pytest.raises(AISError, match=r"met 16 errors in 106 items, over max_errors=0\.05"):
            list(loader)


def test_a_worker_that_meets_nothing_good_ends_the_run(tmp_path: Path) -> None:
    """It makes no batch, and so the loader would never hear of it."""
    members = {f"{n:05}.cls": b"x" for n in range(1200)}
    (tmp_path / "s.tar").write_bytes(shard_bytes(members))
    pipe: Any = AISSourceLister([str(tmp_path / "s.tar")] * 2).load_tar().group_samples()
    pipe = pipe.decode(on_error="skip", max_errors=0.5).to_tuple("cls").batched(5)
    with ais_loader(pipe, num_workers=2) as loader, pytest.raises(AISError, match=r"over max_errors=0\.5"):
        list(loader)


@functools.cache
def meet(folder: Path, workers: int) -> None:
    """Wait until the worker of each rank is here: a busy machine may start one a second after the others."""
    (folder / f"worker-{os.getpid()}").touch()
    deadline = time.monotonic() + 30
    while len(list(folder.glob("worker-*"))) < workers:
        assert time.monotonic() < deadline, "a worker did not begin"
        time.sleep(0.001)


def met(folder: Path, workers: int, sample: Any) -> Any:
    meet(folder, workers)
    return sample


def train(rank: int, job: dict[str, Any]) -> int:
    steps = 0
    pipe = pipe_of(job["shards"], job["share"], partial(met, Path(job["folder"]), job["ranks"]))
    with ais_loader(pipe, num_workers=1, epoch_steps=job["steps"]) as loader:
        for _ in loader:
            steps += 1
            if job["together"]:
                dist.barrier()
            time.sleep(job["pause_s"])
    return steps


@pytest.mark.ci
def test_a_share_is_of_all_ranks_and_steps_stay_equal(tmp_path: Path) -> None:
    """15 of 100 are bad on one rank, none on the other."""
    shards = shards_of(tmp_path, 7)
    answers = run_forked(
        train, 2, tmp_path / "job", shards=shards, share=0.1, steps=50, pause_s=0.05, together=True
    )
    assert [answer.get("value") for answer in answers] == [50, 50], answers


@pytest.mark.ci
def test_a_share_that_the_job_exceeds_ends_all_ranks(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, 2)
    answers = run_forked(
        train, 2, tmp_path / "job", shards=shards, share=0.05, steps=3000, pause_s=0.01, together=False
    )
    texts = [answer.get("error", "") for answer in answers]
    assert all("over max_errors=0.05" in text for text in texts), answers
    assert any("items of all 2 ranks" in text for text in texts)


def pad(rank: int, job: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return steps, samples decoded, skipped and batched since the begin, for each epoch."""
    pipe = pipe_of(job["shards"], job["most"])
    found = []
    with ais_loader(pipe, num_workers=job["workers"], epoch_steps="pad") as loader:
        for _ in range(2):
            steps = sum(1 for _ in loader)
            stages = {stage.name: stage for stage in loader.stats().stages}
            decode = stages["decode"]
            found.append((steps, decode.taken, sum(decode.skipped.values()), stages["batched"].taken))
    if job["workers"] and job["most"] < 1:
        with pytest.raises(AISError, match=r"met 51 errors in 101 items, over max_errors=0\.15"):
            list(pipe)  # without a loader
    return found


@pytest.mark.ci
@pytest.mark.parametrize("most", [0.15, 160])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_rank_repeats_to_pad_is_not_counted_again(tmp_path: Path, workers: int, most: float) -> None:
    """Half of the first shard is bad, 12.5 of 100 of the job's samples; they are repeated."""
    answers = run_forked(pad, 2, tmp_path / "job", shards=shards_of(tmp_path, 2), workers=workers, most=most)
    assert [answer.get("value") for answer in answers] == [
        [(60, 300, 75, 225), (60, 600, 150, 450)],
        [(60, 300, 0, 300), (60, 600, 0, 600)],
    ], answers


@pytest.mark.ci
def test_a_share_that_a_short_job_exceeds_is_noticed_at_its_end(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, 2)
    answers = run_forked(
        train, 2, tmp_path / "job", shards=shards, share=0.05, steps="shortest", pause_s=0.0, together=False
    )
    assert any("errors in" in answer.get("error", "") for answer in answers), answers


def test_what_this_rank_gives_up_is_compared_when_the_others_have_told() -> None:
    store = _Store()
    mine, theirs = [Counted()], [Counted()]
    first = JobCounts(ranks_of(store, 0, 2), lambda: mine)
    second = JobCounts(ranks_of(store, 1, 2), lambda: theirs)
    pipe = pipe_of([], 0.05)
    errors = JobErrors(pipe, list, 2)
    mine[0] = Counted(500, 40)
    first.exchange_next()
    errors.check(first)
    theirs[0] = Counted(500, 0)
    second.exchange_next()
    mine[0] = Counted(600, 40)
    first.exchange_next()
    errors.check(first)  # 40 of 1,100
    mine[0] = Counted(700, 200)
    first.exchange_next()
    errors.check(first)
    first.exchange_next()
    with pytest.raises(AISError, match=r"met 200 errors in 1200 items of all 2 ranks, over max_errors=0\.05"):
        errors.check(first)


class _Store:
    """A store of torch.distributed as far as it is needed here."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.asked = 0

    def add(self, key: str, value: int) -> int:
        self.asked += 1
        self.numbers[key] = self.numbers.get(key, 0) + value
        return self.numbers[key]

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        return False

    def set(self, key: str, value: str) -> None:
        self.asked += 1

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return value.encode()


def ranks_of(store: Any, rank: int, size: int) -> Ranks:
    return Ranks(World(rank, size, store), 1.0)


def test_one_request_tells_and_hears_all() -> None:
    store = _Store()
    parts = [
        JobCounts(ranks_of(store, rank, 3), lambda rank=rank: [Counted(100 + rank, rank)])
        for rank in range(3)
    ]
    store.asked = 0
    for part in parts * 2:
        part.exchange_next()
    assert store.asked == 6
    assert parts[2].job == [Counted(303, 3)]
    parts[0].exchange_next()
    assert parts[0].job == [Counted(303, 3)]


def test_several_things_take_turns() -> None:
    store = _Store()
    parts = [
        JobCounts(ranks_of(store, rank, 2), lambda: [Counted(10, 1), Counted(9, 2)]) for rank in range(2)
    ]
    store.asked = 0
    for part in parts:
        part.exchange_next()
    assert (store.asked, parts[1].job) == (2, [Counted(20, 2), Counted(0, 0)])
    for part in parts:
        part.exchange_next()
    assert (store.asked, parts[1].job) == (4, [Counted(20, 2), Counted(18, 4)])


def test_a_failure_stands_in_the_same_answer() -> None:
    store = _Store()
    first, second = (JobCounts(ranks_of(store, rank, 2), list) for rank in range(2))
    first.tell_failure()
    store.asked = 0
    second.exchange_next()
    assert store.asked == 2  # and looks at what has failed
    assert second.job == []


class _Whole(_Store):
    """Its numbers have 64 bits, as those of torch.distributed."""

    def add(self, key: str, value: int) -> int:
        wrapped = (super().add(key, value) + (1 << 63)) % (1 << 64) - (1 << 63)
        self.numbers[key] = wrapped
        return wrapped


@pytest.mark.parametrize("failed", [1, 2, 3, 4, 5])
def test_however_many_ranks_fail_the_others_look_why(failed: int) -> None:
    store = _Whole()
    parts = [JobCounts(ranks_of(store, rank, 7), lambda: [Counted(100, 1)]) for rank in range(7)]
    for part in parts[:failed]:
        part.tell_failure()
    for part in parts[failed:]:
        store.asked = 0
        part.exchange_next()
        assert store.asked == 2
    assert parts[-1].job == [Counted((7 - failed) * 100, 7 - failed)]


def test_a_rank_that_ends_because_another_one_failed_does_not_tell_it_again() -> None:
    store = _Whole()
    first, second = (JobCounts(ranks_of(store, rank, 2), list) for rank in range(2))
    first.tell_failure()
    second.exchange_next()
    store.asked = 0
    second.tell_failure()
    assert store.asked == 0


def fail_at(ranks: list[int], rank: int, begun: float, sample: Any) -> Any:
    if rank in ranks and time.monotonic() > begun + 1.0:
        raise ValueError(f"bad on {rank}")
    return sample


def train_alone(rank: int, job: dict[str, Any]) -> None:
    """Wait for nobody: only what ranks tell each other ends the loop of one that is sound."""
    pipe: Any = AISSourceLister(job["shards"]).load_tar().group_samples()
    pipe = pipe.map_sample(partial(fail_at, job["failing"], rank, time.monotonic())).batched(5)
    with ais_loader(pipe, epoch_steps=20_000) as loader:
        for _ in loader:
            time.sleep(0.005)


@pytest.mark.ci
@pytest.mark.parametrize("failing", [[2], [1, 3]])
def test_all_of_four_ranks_hear_that_one_or_two_have_failed(tmp_path: Path, failing: list[int]) -> None:
    shards = shards_of(tmp_path, 7)
    answers = run_forked(train_alone, 4, tmp_path / "job", shards=shards, failing=failing)
    texts = [answer.get("error", "") for answer in answers]
    assert all("bad on" in text for text in texts), answers
    assert max(answer["seconds"] for answer in answers) < 60


@pytest.mark.ci
def test_a_store_that_is_gone_is_said_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(_Store):
        def add(self, key: str, value: int) -> int:
            if "loaders" in key:
                return super().add(key, value)
            raise RuntimeError("Connection reset by peer")

    ranks = ranks_of(Gone(), 0, 2)
    counts = JobCounts(ranks, list)
    with counts.running(epoch=0):
        deadline = time.monotonic() + 60
        while "hears of no other rank" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "the training goes on, and hears of no other rank any more" in caplog.text
    ranks.raise_heard()


def test_a_store_that_is_gone_at_the_end_of_an_epoch_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(_Store):
        def add(self, key: str, value: int) -> int:
            if "loaders" in key:
                return super().add(key, value)
            raise RuntimeError("Connection reset by peer")

    counts = JobCounts(ranks_of(Gone(), 0, 2), lambda: [Counted(100, 1)])
    counts.exchange_last()
    counts.exchange_last()
    assert caplog.text.count("hears of no other rank any more") == 1


def test_what_two_threads_tell_at_once_is_counted_once() -> None:
    class Slow(_Store):
        def add(self, key: str, value: int) -> int:
            if "counted" in key:
                asked.set()
                answer.wait(0.2)
            return super().add(key, value)

    asked, answer = threading.Event(), threading.Event()
    counts = JobCounts(ranks_of(Slow(), 0, 2), lambda: [Counted(100, 1)])
    thread = threading.Thread(target=counts.exchange_next)
    thread.start()
    assert asked.wait(60)
    counts.exchange_last()
    answer.set()
    thread.join(60)
    assert counts.job == [Counted(100, 1)]


def test_ranks_ask_at_moments_of_their_own() -> None:
    pauses = [interval_of(rank, 10_000) for rank in range(1000)]
    assert 8 <= min(pauses) < max(pauses) <= 12
    assert len(set(pauses)) > 300
    assert all(pause == interval_of(rank, 10_000) for rank, pause in enumerate(pauses))


def is_chosen(sample: Any, rank: int, folder: Path, none: set[tuple[int, int]]) -> bool:
    """Return False for all samples of the pairs of epoch and rank in `none`."""
    return (len(list(folder.glob(f"epoch-*-{rank}"))), rank) not in none


def epochs_of_a_rank(rank: int, job: dict[str, Any]) -> list[Any]:
    """Return how many batches each of three epochs has, or its error."""
    found: list[Any] = []
    folder = Path(job["folder"])
    choose = partial(is_chosen, rank=rank, folder=folder, none=job["none"])
    pipe = AISSourceLister(job["shards"]).load_tar().group_samples().select(choose).to_tuple("cls").batched(5)
    with ais_loader(pipe, num_workers=job["workers"]) as loader:
        for epoch in range(3):
            try:
                found.append(len(list(loader)))
            except LoaderError as error:
                found.append(str(error))
            (folder / f"epoch-{epoch}-{rank}").touch()
    return found


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*may take different numbers of steps")
@pytest.mark.parametrize("workers", [0, 2])
def test_promise_1_an_epoch_is_empty_if_no_rank_has_a_batch(workers: int, tmp_path: Path) -> None:
    shards, none = shards_of(tmp_path, 1000), {(0, 1), (2, 0), (2, 1)}
    job = {"shards": shards, "none": none, "workers": workers}
    answers = run_forked(epochs_of_a_rank, 2, tmp_path / "job", **job)
    expected = "Epoch 2 has no batch on any of 2 ranks: select(is_chosen) took 600 items and returned none"
    values = [answer["value"] for answer in answers]
    assert [value[:2] for value in values] == [[60, 60], [0, 60]]
    # The slower rank may raise the error of the other, which it contains.
    assert any(error.startswith(expected) for *_, error in values)
    assert all(expected in error for *_, error in values)
    said = "rank 1 of 2 has no batch in epoch 0: select(is_chosen) took 300 items and returned none"
    assert [[line for line in answer["log"] if "no batch" in line] for answer in answers] == [[], [said]]


def is_late(sample: Any, rank: int) -> bool:
    """Return False for all samples of rank 0, and for rank 1 after a second and a half."""
    time.sleep(1.5 * rank / (SHARDS * SAMPLES / 2))
    return rank == 1 and sample["__key__"].startswith(f"{SHARDS - 1}-")


def rank_with_a_late_batch(rank: int, job: dict[str, Any]) -> int:
    start_heartbeat.SILENT_S = 0.3  # after which a rank that begins is taken for dead
    loader._EMPTY_WAIT_S = job["wait_s"]
    choose = partial(is_late, rank=rank)
    pipe = AISSourceLister(job["shards"]).load_tar().group_samples().select(choose).to_tuple("cls").batched(5)
    with ais_loader(pipe) as batches:
        return len(list(batches))


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*may take different numbers of steps")
@pytest.mark.parametrize("wait_s", [60.0, 0.2])
def test_promise_6_a_rank_whose_first_batch_is_late_is_not_taken_for_dead(
    wait_s: float, tmp_path: Path
) -> None:
    shards = shards_of(tmp_path, 1000)
    answers = run_forked(rank_with_a_late_batch, 2, tmp_path / "job", shards=shards, wait_s=wait_s)
    assert [answer["value"] for answer in answers] == [0, 30]
    assert any("rank 0 of 2 has no batch in epoch 0" in line for line in answers[0]["log"])
