"""Random ends, many times over: no item lost or doubled, no hang, nothing left behind.

5 rounds of each kind in every run, 100 in ``.ci/run``; ``-m slow`` runs 1,000 of each kind.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.leftovers import SHARED, names, shared_memory_left
from helpers.waiting import is_living
from service_pipes import expand
from service_sessions import becomes_true, living_in, load, session, worker_pids
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchdata_ais.errors import LoaderError, WorkerDiedError

pytestmark = [pytest.mark.kills, pytest.mark.timeout(3600)]

GONE_WITHIN_S = 10.0


ROUNDS = pytest.mark.parametrize(
    "rounds", [3, pytest.param(100, marks=pytest.mark.ci), pytest.param(1000, marks=pytest.mark.slow)]
)


def slow_tensor(item: tuple[int, int]) -> tuple[tuple[int, int], torch.Tensor]:
    """A tensor each, so that shared memory is under way, and a random time."""
    time.sleep(random.choice((0, 0, 0.0003, 0.003)))
    return item, torch.full((50,), item[1])


class Ledger:
    """A random pipe and loader, and an account of what came of it."""

    def __init__(self, dice: random.Random) -> None:
        counts = [dice.choice((0, 1, 5, 20, 40)) for _ in range(dice.randint(1, 8))]
        self.expected = Counter((count, number) for count in set(counts) for number in range(count))
        for item in self.expected:
            self.expected[item] = counts.count(item[0])
        shards = IterableWrapper(counts).shuffle()
        self.dispatching = dice.random() < 0.2
        if self.dispatching:
            items = (
                shards.map(expand)
                .unbatch()
                .sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
            )
        else:
            items = shards.sharding_filter().map(expand).unbatch()
        prefetch = dice.choice((0, 1, 10))
        self.loader = load(items.map(slow_tensor), dice.randint(1, 3), None, prefetch, prefetch)
        self.seen: Counter[Any] = Counter()

    def read(self, count: int | None = None) -> None:
        """Begin an epoch and read `count` items of it, or all; nothing may come more often than it exists."""
        self.seen.clear()
        for item, tensor in itertools.islice(self.loader, count):
            assert tensor.tolist() == [item[1]] * 50
            self.seen[item] += 1
            assert self.seen[item] <= self.expected[item]

    def read_all(self) -> None:
        self.read()
        assert self.seen == self.expected

    def read_for_ever(self) -> None:
        """Read whole epochs until something raises."""
        while True:
            self.read_all()


def left_behind() -> tuple[int, int, int]:
    """Count this process's descriptors, threads and children."""
    gc.collect()
    files = len(list(Path("/proc/self/fd").iterdir()))
    return files, threading.active_count(), len(multiprocessing.active_children())


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before, shared = left_behind(), set(names(SHARED))
    yield
    assert left_behind() == before
    # Other processes of this machine make some, too, and remove them at once.
    new = set(shared_memory_left(shared))
    assert becomes_true(lambda: new.isdisjoint(shared_memory_left(shared)), GONE_WITHIN_S)


@ROUNDS
def test_early_exits(rounds: int) -> None:
    dice = random.Random(1)
    done = 0
    while done < rounds:
        ledger = Ledger(dice)
        for _ in range(dice.randint(1, 4)):
            ledger.read(dice.randint(0, 12))
            done += 1
        if dice.random() < 0.3:
            ledger.read_all()
        if dice.random() < 0.5:
            ledger.loader.shutdown()


@ROUNDS
def test_killed_workers(rounds: int) -> None:
    dice = random.Random(2)
    for _ in range(rounds):
        ledger = Ledger(dice)
        iter(ledger.loader)
        pids = worker_pids(ledger.loader)
        killer = threading.Timer(dice.random() * 0.05, os.kill, (dice.choice(pids), signal.SIGKILL))
        killer.start()
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            ledger.read_for_ever()
        killer.join()
        assert not any(is_living(pid) for pid in pids)


def read_epochs(answers: Any, seed: int) -> None:
    ledger = Ledger(random.Random(seed))
    answers.put("go")
    try:
        ledger.read_for_ever()
    finally:
        ledger.loader.shutdown()


@ROUNDS
def test_ctrl_c_to_the_group(rounds: int) -> None:
    dice = random.Random(3)
    for index in range(rounds):
        with session(read_epochs, index) as process:
            assert process.answers.get() == "go"
            time.sleep(dice.random() * 0.1)
            os.killpg(process.pid, signal.SIGINT)
            assert becomes_true(lambda pid=process.pid: not living_in(pid), GONE_WITHIN_S)
            process.join(60)
            assert process.exitcode == 0


@ROUNDS
def test_shutdowns_at_random_moments(rounds: int) -> None:
    dice = random.Random(4)
    for _ in range(rounds):
        ledger = Ledger(dice)
        iter(ledger.loader)
        pids = worker_pids(ledger.loader)
        closer = threading.Timer(dice.random() * 0.05, ledger.loader.shutdown)
        closer.start()
        with pytest.raises((LoaderError, RuntimeError), match="shut down"):
            ledger.read_for_ever()
        closer.join()
        assert not any(is_living(pid) for pid in pids)
