"""Promise 6: what keeps a rank from beginning its loader ends the others in seconds, with its name and the reason."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import run_forked

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.errors import StateError
from torchdata_ais.ranks import group, start_heartbeat
from torchdata_ais.testing import write_shard

pytestmark = [
    pytest.mark.kills,
    pytest.mark.filterwarnings("ignore:the 2 ranks may take different numbers of steps"),
]

KEYS = [f"{n:03d}" for n in range(24)]
WITHIN_S = 60  # and not half an hour


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less, also in processes that are forked."""
    monkeypatch.setattr(start_heartbeat, "GRACE_S", 0.5)
    monkeypatch.setattr(start_heartbeat, "UNHEARD_S", 3.0)
    monkeypatch.setattr(group, "_BEAT_S", 0.2)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("meeting") / "s.tar"
    return str(write_shard(path, {f"{key}.cls": b"1" for key in KEYS}))


def make(job: dict[str, Any], seed: int = 0, **how: Any) -> Any:
    how |= job.get("ranks_by_hand", {})
    pipe: Any
    if job.get("kind") == "stream":
        pipe = AISSourceLister(job["shard"]).load_tar().group_samples().to_tuple("__key__").batched(4)
    else:
        index = SampleIndex.build(job["shard"])
        pipe = AISSampleReader(index, shuffle="samples").to_tuple("__key__").batched(4)
    return ais_loader(pipe, seed=seed, **how)


def keys(loader: Any) -> list[str]:
    return [key for (batch,) in loader for key in batch]


def read(rank: int, job: dict[str, Any]) -> list[str]:
    """Read an epoch; the bad rank does before what the job says."""
    if job["bad"] in (rank, "both"):
        found: list[str] = job["does"](job)
        return found
    with make(job) as loader:
        return keys(loader)


def loads_another_seed(job: dict[str, Any]) -> list[str]:
    with make(job, seed=7) as other, make(job) as loader:
        loader.load_state_dict(other.state_dict())
        return keys(loader)


def loads_half_a_state(job: dict[str, Any]) -> list[str]:
    with make(job) as loader:
        state = loader.state_dict()
        del state["checksum"]
        loader.load_state_dict(state)
        return keys(loader)


def loads_it_without_with(job: dict[str, Any]) -> list[str]:
    loader = make(job)
    loader.load_state_dict({"format": "of something else"})
    return keys(loader)


def allows_what_there_is_not(job: dict[str, Any]) -> list[str]:
    with make(job) as loader:
        loader.load_state_dict(loader.state_dict(), allow={"seed"})
        return keys(loader)


def has_an_error_of_its_own(job: dict[str, Any]) -> list[str]:
    with make(job):
        raise ZeroDivisionError("of the program")


def gives_a_wrong_argument(job: dict[str, Any]) -> list[str]:
    return keys(make(job, prefetch=-1))


def names_an_epoch_there_is_not(job: dict[str, Any]) -> list[str]:
    with make(job) as loader:
        loader.set_epoch(-1)
        return keys(loader)


BAD: list[tuple[Callable[..., Any], str]] = [
    (loads_another_seed, "The seed was 7"),
    (loads_half_a_state, "The state is damaged"),
    (loads_it_without_with, "This is no state of a torchdata_ais loader"),
    (allows_what_there_is_not, "allow={'seed'}"),
    (has_an_error_of_its_own, "of the program"),
    (gives_a_wrong_argument, "prefetch=-1"),
    (names_an_epoch_there_is_not, "epoch=-1 is no whole number"),
]


def by_threads(ranks: int, **job: Any) -> list[dict[str, Any]]:
    """Run `read` as ranks that are threads of this process."""
    store = dist.HashStore()
    answers: list[dict[str, Any]] = [{} for _ in range(ranks)]

    def be_rank(rank: int) -> None:
        mine = {**job, "ranks_by_hand": {"rank": rank, "world_size": ranks, "store": store}}
        begin = time.monotonic()
        try:
            answers[rank]["value"] = read(rank, mine)
        except Exception as error:
            answers[rank]["error"] = f"{type(error).__name__}: {error}"
        answers[rank]["seconds"] = time.monotonic() - begin

    threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


@pytest.mark.ci
@pytest.mark.parametrize("bad", [0, pytest.param(1, marks=pytest.mark.ci)])
@pytest.mark.parametrize(
    ("does", "says"),
    [
        pytest.param(*one, id=one[0].__name__, marks=[pytest.mark.ci] * (number > 1))
        for number, one in enumerate(BAD)
    ],
)
def test_promise_6_an_error_before_the_ranks_meet_ends_all_of_them(
    shard: str, does: Callable[..., Any], says: str, bad: int
) -> None:
    for rank, answer in enumerate(by_threads(3, shard=shard, bad=bad, does=does)):
        assert says in answer["error"], answer
        assert rank == bad or f"Rank {bad} failed" in answer["error"]
        assert answer["seconds"] < WITHIN_S


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["index", "stream"])
def test_promise_6_so_it_does_where_ranks_are_processes_of_a_group(
    shard: str, tmp_path: Path, kind: str
) -> None:
    job: dict[str, Any] = {"shard": shard, "bad": 1, "does": loads_it_without_with, "kind": kind}
    for answer in run_forked(read, 3, tmp_path, **job):
        assert "This is no state of a torchdata_ais loader" in answer["error"], answer


def is_killed(job: dict[str, Any]) -> list[str]:
    with make(job):
        time.sleep(1.5)  # long enough that the others wait for it
        os.kill(os.getpid(), signal.SIGKILL)
    return []


@pytest.mark.ci
@pytest.mark.parametrize("bad", [0, 1])
def test_promise_6_a_rank_killed_before_they_meet_is_named(shard: str, tmp_path: Path, bad: int) -> None:
    answers = run_forked(read, 3, tmp_path, shard=shard, bad=bad, does=is_killed)
    for rank, answer in enumerate(answers):
        if rank == bad:
            assert answer["died"] == -signal.SIGKILL
        else:
            assert f"Rank {bad} (pid " in answer["error"], answer
            assert "it had made its loader and not started it" in answer["error"]
            assert answer["seconds"] < WITHIN_S


def leaves_at_once(job: dict[str, Any]) -> list[str]:
    job["kept"] = make(job)  # so that it is there when the process ends
    return []


@pytest.mark.ci
def test_promise_6_a_program_that_ends_before_it_begins_is_named(shard: str, tmp_path: Path) -> None:
    first, other = run_forked(read, 2, tmp_path, shard=shard, bad=1, does=leaves_at_once)
    assert "Rank 1 ended before it began this loader" in first["error"], first
    assert other["value"] == []


def is_refused_and_begins_anew(job: dict[str, Any]) -> list[str]:
    with make(job) as loader:
        with pytest.raises(StateError):
            loader.load_state_dict({})
        time.sleep(0.5)
        loader.load_state_dict(loader.state_dict())
        time.sleep(1.5)
        return keys(loader)


def makes_another_instead(job: dict[str, Any]) -> list[str]:
    with pytest.raises(StateError), make(job) as loader:
        loader.load_state_dict({})
    time.sleep(0.4)
    with make(job) as loader:
        return keys(loader)


@pytest.mark.ci
@pytest.mark.parametrize("does", [makes_another_instead, is_refused_and_begins_anew])
def test_a_rank_that_goes_on_after_an_error_is_waited_for(
    shard: str, does: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_heartbeat, "GRACE_S", 1.2)
    answers = by_threads(2, shard=shard, bad=1, does=does)
    assert Counter(key for answer in answers for key in answer["value"]) == Counter(KEYS), answers


def sets_another_epoch(job: dict[str, Any]) -> list[str]:
    with make(job) as loader:
        loader.set_epoch(1)
        return keys(loader)


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_promise_3_ranks_that_begin_with_other_epochs_are_told(shard: str, kind: str) -> None:
    for answer in by_threads(2, shard=shard, bad=1, does=sets_another_epoch, kind=kind):
        assert "epoch=0" in answer["error"], answer
        assert "epoch=1" in answer["error"]


def sets_another_epoch_later(job: dict[str, Any]) -> list[str]:
    with make(job) as loader:
        first = keys(loader)
        loader.set_epoch(1 + job["ranks_by_hand"]["rank"])
        batches = iter(loader)
        next(batches)
        deadline = time.monotonic() + WITHIN_S
        while "come twice" not in job["log"].text and time.monotonic() < deadline:
            time.sleep(0.02)
        return first + [key for (batch,) in batches for key in batch]


def test_promise_3_epochs_that_differ_later_are_named(shard: str, caplog: pytest.LogCaptureFixture) -> None:
    by_threads(2, shard=shard, bad="both", does=sets_another_epoch_later, log=caplog)
    (text,) = [text for text in caplog.messages if "come twice" in text]
    assert text.startswith("iteration 2 of the loader gives epoch ")
    assert {"epoch 1 on rank 0", "epoch 2 on rank 1"} <= set(re.findall(r"epoch \d+ on rank \d", text))


@pytest.mark.ci
def test_who_is_waited_for_is_in_the_log(
    shard: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_heartbeat, "_NAMED_S", 0.3)
    job = {"shard": shard}
    with (
        pytest.raises(Exception, match="Ranks 1, 2 did not begin this loader within 1 s"),
        make(job, rank=0, world_size=3, store=dist.HashStore(), rank_timeout_s=1) as loader,
    ):
        keys(loader)
    assert [text for text in caplog.messages if "waits for" in text] == [
        "rank 0 waits for ranks 1, 2 to begin this loader"
    ]


def test_a_loader_that_begins_is_closed_or_forgotten_leaves_no_thread(shard: str) -> None:
    job, store = {"shard": shard}, dist.HashStore()
    given: dict[str, Any] = {"rank": 0, "world_size": 2, "store": store}

    def threads() -> int:
        return sum(thread.name == "rank-here" for thread in threading.enumerate())

    before = threads()
    with make(job, **given):
        assert threads() == before + 1
    loader = make(job, **given)
    del loader
    deadline = time.monotonic() + 60
    while threads() > before:
        assert time.monotonic() < deadline, "a thread lives on"
        time.sleep(0.01)
