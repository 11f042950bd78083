"""Signs of life of ranks: how long a silent rank is waited for, and by whose process numbers it is judged."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
import torch.distributed as dist

from torchdata_ais._util.world import World
from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks import heartbeat, start_heartbeat
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.heartbeat import Beat, LifeSigns
from torchdata_ais.ranks.start_heartbeat import WaitedFor
from torchdata_ais.ranks.steps import StepVotes


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(heartbeat, "time", made)
    monkeypatch.setattr(start_heartbeat, "time", made)
    return made


def rank_0(store: Any, timeout_s: float = 1800.0) -> tuple[LifeSigns, Callable[[Beat], None]]:
    """Return the life signs of rank 0 of 2, and a function that gives one of rank 1."""
    ranks = Ranks(World(0, 2, store), timeout_s)
    signs = LifeSigns(ranks, "steps")
    return signs, lambda beat: ranks.tell("steps/alive/1", msgspec.json.encode(beat))


def beat_of(count: int, **given: Any) -> Beat:
    """Return a sign of life of a living process, or of one that `given` describes."""
    return msgspec.structs.replace(Beat.now(count, 0), **given)


@pytest.mark.parametrize(
    ("count", "timeout_s", "patience_s"),
    [(0, 1800.0, 1800.0), (0, 100.0, 100.0), (3, 1800.0, 300.0), (3, 100.0, 100.0), (3, 2.0, 10.0)],
)
def test_promise_6_a_silent_rank_is_waited_for_exactly_so_long(
    clock: Clock, count: int, timeout_s: float, patience_s: float
) -> None:
    """A rank that has not started the epoch may take as long as the loader waits for ranks; it gives no signs."""
    signs, give = rank_0(dist.HashStore(), timeout_s)
    signs.look_after_next(1, 0.0)  # rank 1 has not given any sign
    give(beat_of(count))
    signs.look_after_next(1, 0.0)
    clock.now += patience_s
    signs.look_after_next(1, 0.0)
    clock.now += 0.5
    with pytest.raises(
        LoaderError, match=f"has given no sign of life for {patience_s + 0.5:.0f} s"
    ) as caught:
        signs.look_after_next(1, 0.0)
    assert (caught.value.place["failed_rank"], caught.value.place["rank"]) == (1, 0)


def test_each_new_sign_of_life_starts_the_wait_again(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    signs, give = rank_0(dist.HashStore())
    for count in range(1, 4):
        give(beat_of(count))
        signs.look_after_next(1, 0.0)
        clock.now += 290.0
        signs.look_after_next(1, 0.0)
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    silent, again = "has given no sign of life for 290 s", "gives signs of life again"
    assert [silent in text for text in texts] == [True, False, True, False, True]
    assert [again in text for text in texts] == [False, True, False, True, False]


def test_a_rank_that_has_not_started_is_not_called_silent(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    signs, give = rank_0(dist.HashStore())
    give(beat_of(0))
    signs.look_after_next(1, 0.0)
    clock.now += 1000.0
    signs.look_after_next(1, 60.0)
    assert not caplog.records
    signs.look_after_next(1, 60.5)
    assert "has not come to step 1" in caplog.text


def ended() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait(60)
    return process.pid


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_process_is_judged_by_the_numbers_of_its_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a process of another machine, or of another container, is one of something else here."""
    assert not beat_of(1).is_dead()
    gone = ended()
    assert beat_of(1, pid=gone).is_dead()
    assert beat_of(1, started="1").is_dead()  # a later process has that number
    for machine in ("another", ""):
        assert not beat_of(1, pid=gone, machine=machine).is_dead()
        assert not beat_of(1, started="1", machine=machine).is_dead()
        assert not beat_of(1, pid=gone, started="", machine=machine).is_dead()
    monkeypatch.setattr(
        heartbeat, "this_machine", lambda: ""
    )  # a system that does not say which machine it is
    assert not beat_of(1, pid=gone, started="1").is_dead()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_promise_6_only_a_rank_of_this_machine_is_found_dead_at_once(clock: Clock) -> None:
    signs, give = rank_0(dist.HashStore())
    give(beat_of(1, pid=ended(), machine="another"))
    signs.look_after_next(1, 0.0)
    give(beat_of(2, pid=ended()))
    with pytest.raises(LoaderError, match="has ended while the others waited"):
        signs.look_after_next(1, 0.0)


def waiting(told: dict[str, str]) -> WaitedFor:
    """Return rank 0 as it waits, with a store that has `told`."""

    def known(names: Mapping[int, str]) -> dict[int, bytes]:
        return {rank: told[name].encode() for rank, name in names.items() if name in told}

    return WaitedFor(0, "p", known)


@pytest.mark.parametrize(
    ("name", "value", "patience_s", "says"),
    [
        ("p/alive/1", "1 pid 9 on h", start_heartbeat.SILENT_S, "while the ranks began"),
        ("torchdata_ais/here/1", "1 t pid 9 on h", start_heartbeat.UNHEARD_S, "it had made its loader"),
        (
            "torchdata_ais/trouble/1",
            '{"text": "ValueError: x", "over": false}',
            start_heartbeat.GRACE_S,
            "failed before it began",
        ),
    ],
)
def test_promise_6_a_rank_that_has_not_started_its_loader_is_waited_for_exactly_so_long(
    clock: Clock, name: str, value: str, patience_s: float, says: str
) -> None:
    waited = waiting({name: value})
    waited.look_after([1])
    clock.now += patience_s
    waited.look_after([1])
    clock.now += 0.5
    with pytest.raises(LoaderError, match=says):
        waited.look_after([1])


def test_a_rank_that_ended_before_its_loader_started_is_named_at_once(clock: Clock) -> None:
    with pytest.raises(LoaderError, match=r"ended before it began this loader.*\n*.*ValueError: x"):
        waiting({"torchdata_ais/trouble/1": '{"text": "ValueError: x", "over": true}'}).look_after([1])
    waiting({"torchdata_ais/trouble/1": ""}).look_after([1])  # it was taken back


def test_an_epoch_leaves_few_keys_in_the_store_however_many_steps_it_has() -> None:
    """The last rank to hear of a step forgets the one before."""

    def keys_after(steps: int) -> int:
        store = dist.HashStore()
        votes = [StepVotes(Ranks(World(rank, 2, store), 30.0), 0) for rank in range(2)]
        for one in votes:
            one.__enter__()
        for step in range(steps):
            for one in votes:
                one.ask(step < steps - 1)
            counts = [one.count() for one in votes]
            assert counts == [2 if step < steps - 1 else 0] * 2
        for one in votes:
            one.__exit__(None, None, None)
        return int(store.num_keys())

    assert keys_after(40) == keys_after(3)
