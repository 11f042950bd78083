"""A worker that is stopped, or runs nothing but one call, is an error in the process that waits for it; in seconds."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import service_pipes as pipes
from helpers.waiting import is_living
from service_pipes import numbers
from service_sessions import becomes_true, load, session, worker_pids
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchdata_ais import ais_loader
from torchdata_ais.errors import StallError
from torchdata_ais.workers import heartbeat

pytestmark = pytest.mark.kills

STALL_S = 1.0
SOON_S = STALL_S + 30
"""The machine may be busy; for ever is what it must not take."""

WAYS = ["ais_loader", "DataLoader2"]


def make(way: str, pipe: Any, method: str | None = None, stall_after: float | None = STALL_S) -> Any:
    if way == "DataLoader2":
        return load(pipe, 2, method, 2, 2, stall_after=stall_after)
    return ais_loader(pipe, num_workers=2, multiprocessing_context=method, stall_after=stall_after)


@pytest.fixture(autouse=True)
def nobody_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also: less patience than users need, so that the tests are short."""
    monkeypatch.setattr(heartbeat, "GRACE_S", 0.5)
    before = set(multiprocessing.active_children())
    yield
    if not becomes_true(lambda: before.issuperset(multiprocessing.active_children()), 60.0):
        left = [process for process in multiprocessing.active_children() if process not in before]
        for process in left:
            process.kill()
        pytest.fail(f"processes are left: {left}")


def stop(pid: int) -> None:
    assert pid > 1
    os.kill(pid, signal.SIGSTOP)


def workers() -> list[int]:
    return sorted(process.pid or 0 for process in multiprocessing.active_children())


def begin(loader: Any) -> tuple[Iterator[Any], list[int]]:
    """Return the running items, the first of them taken, and the pids of the two workers in order."""
    before = set(workers())
    items = iter(loader)
    next(items)
    found = (
        worker_pids(loader)
        if hasattr(loader, "reading_service")
        else [p for p in workers() if p not in before]
    )
    assert len(found) == 2
    return items, found


def close(loader: Any) -> None:
    (loader.shutdown if hasattr(loader, "shutdown") else loader.close)()


def check_stall(loader: Any, items: Iterator[Any], pids: list[int], stopped: set[int]) -> StallError:
    begun = time.monotonic()
    with pytest.raises(StallError, match=r"Worker process \d \(pid \d+\) gave no sign of life") as caught:
        for _ in items:
            pass
    assert time.monotonic() - begun < SOON_S
    close(loader)
    assert time.monotonic() - begun < SOON_S + 20
    assert becomes_true(lambda: not any(map(is_living, pids)), 60.0)
    place = caught.value.place
    assert place["pid"] in stopped
    assert place["worker"] in (0, 1)
    return caught.value


@pytest.mark.ci
@pytest.mark.parametrize(
    "way", ["ais_loader", *(pytest.param(way, marks=pytest.mark.ci) for way in WAYS if way != "ais_loader")]
)
def test_promise_6_a_stopped_worker_is_named(way: str) -> None:
    loader = make(way, numbers(100_000).map(pipes.short_sleep))
    items, pids = begin(loader)
    stop(pids[1])
    error = check_stall(loader, items, pids, {pids[1]})
    assert error.place["state"] == "T"
    assert "it is stopped (SIGSTOP)" in str(error)
    assert f"kill -CONT {pids[1]}" in str(error)


@pytest.mark.ci
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("way", WAYS)
def test_promise_6_under_every_start_method(way: str, method: str) -> None:
    loader = make(way, numbers(100_000).map(pipes.short_sleep), method)
    items, pids = begin(loader)  # starting takes longer than an item may: that is no stall
    for pid in pids:
        stop(pid)
    assert check_stall(loader, items, pids, set(pids)).place["state"] == "T"


def backtrack(number: int) -> int:
    """Stay in one call that lets no other thread run."""
    if number == 7:
        re.match(r"(a|a)+$", "a" * 60 + "b")
    return number


@pytest.mark.ci
def test_promise_6_a_worker_in_one_endless_call_is_named() -> None:
    loader = make("ais_loader", numbers(100).map(backtrack))
    items, pids = begin(loader)
    error = check_stall(loader, items, pids, {pids[1]})
    assert error.place["state"] in ("R", "S")
    assert "py-spy" in str(error)


@pytest.mark.ci
def test_promise_6_a_stopped_worker_is_named_while_it_is_to_pause() -> None:
    loader = make("DataLoader2", numbers(100_000).map(pipes.short_sleep))
    _, pids = begin(loader)
    stop(pids[0])
    with pytest.raises(StallError, match="Worker process 0"):
        loader._pause()
    loader.shutdown()
    assert not any(map(is_living, pids))


@pytest.mark.ci
def test_promise_6_a_stopped_dispatching_process_is_named() -> None:
    pipe = numbers(100_000).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    loader = load(pipe.map(pipes.short_sleep), 2, None, 2, 2, stall_after=STALL_S)
    items = iter(loader)
    next(items)
    pids = worker_pids(loader)
    dispatching = loader.reading_service._pool._dispatcher.pid
    stop(dispatching)
    with pytest.raises(StallError, match=r"Dispatching process .* gave no sign of life"):
        list(items)
    loader.shutdown()
    assert not any(map(is_living, pids))


@pytest.mark.ci
@pytest.mark.parametrize("way", WAYS)
def test_promise_6_without_stall_after_a_stopped_worker_is_told_then_an_error(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "_TELL_S", 0.5)
    monkeypatch.setattr(heartbeat, "_STOPPED_S", 1.5)
    loader = make(way, numbers(100_000).map(pipes.short_sleep), stall_after=None)
    items, pids = begin(loader)
    stop(pids[0])
    with caplog.at_level(logging.WARNING, logger="torchdata_ais"):
        check_stall(loader, items, pids, {pids[0]})
    assert [record for record in caplog.records if f"(pid {pids[0]}) is stopped" in record.getMessage()]


def slow(number: int) -> int:
    if number in (3, 6):
        time.sleep(1.5)
    return number


@pytest.mark.ci
@pytest.mark.parametrize("stall_after", [None, 5.0])
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_worker_is_no_error(
    way: str, stall_after: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_STOPPED_S", 0.5)
    loader = make(way, numbers(8).map(slow), stall_after=stall_after)
    assert sorted(loader) == list(range(8))
    close(loader)


def read_all(answers: Any, way: str) -> None:
    heartbeat.GRACE_S = 0.5
    loader = make(way, numbers(20).map(short_nap))
    items = iter(loader)
    first = next(items)
    answers.put("ready")
    answers.put(sorted([first, *items]))
    close(loader)


def short_nap(number: int) -> int:
    time.sleep(0.2)
    return number


@pytest.mark.ci
@pytest.mark.parametrize("whole_group", [False, True], ids=["main", "all"])
@pytest.mark.parametrize("way", WAYS)
def test_a_paused_main_process_is_no_stall(way: str, whole_group: bool) -> None:
    """Ctrl-Z, a debugger, a laptop that slept: what is past the limit then is not the workers' doing."""
    with session(read_all, way) as process:
        assert process.answers.get() == "ready"
        signal_to = os.killpg if whole_group else os.kill
        signal_to(process.pid, signal.SIGSTOP)
        time.sleep(STALL_S + 1.5)  # longer than the limit, which is what this test is about
        signal_to(process.pid, signal.SIGCONT)
        assert process.answers.get() == list(range(20))
