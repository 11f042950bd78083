"""Promises 1 to 3 under random faults: every sample once, or an error that names the cause.

10 schedules in every run, 100 in ``.ci/run``, ``CHAOS_RUNS`` (10,000) with ``-m slow``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from chaos import Chaos

from torchdata_ais.local import LocalCluster

FEW, RUNS = 10, 100
MANY = int(os.environ.get("CHAOS_RUNS", "10000"))
FIRST = int(os.environ.get("CHAOS_FIRST", "100000"))


@pytest.fixture(scope="module")
def chaos() -> Iterator[Chaos]:
    with LocalCluster(targets=2) as cluster:
        yield Chaos(cluster)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runs", [FEW, pytest.param(RUNS, marks=pytest.mark.ci)])
def test_promise_1_every_schedule_of_faults_ends_with_each_sample_once_or_names_the_cause(
    chaos: Chaos, runs: int
) -> None:
    for seed in range(runs):
        chaos.run(seed)
    assert chaos.outcomes["whole"] > runs // 4
    assert sum(chaos.outcomes[o] for o in chaos.outcomes if o.startswith("skipped")) > runs // 10
    assert len(chaos.again) <= max(1, runs // 40), chaos.again
    deadline = time.monotonic() + 60
    while fetching() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not fetching()
    if runs < RUNS:
        return
    # The schedules reach all ways to end: no check above is idle.
    kinds = {kind for outcome in chaos.outcomes for kind in outcome.removeprefix("skipped ").split("+")}
    assert {
        "whole", "ReadError", "StallError", "ConnectError", "NotFoundError", "AuthError", "ObjectChangedError",
        "ChecksumError", "BadHeaderError",
    } <= kinds  # fmt: skip


def fetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torchdata_ais")]


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_promise_3_the_same_under_worker_processes(chaos: Chaos) -> None:
    for seed in range(1000, 1012):
        chaos.run(seed, workers=2)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_thousands_of_schedules(chaos: Chaos) -> None:
    for seed in range(FIRST, FIRST + MANY):
        chaos.run(seed, workers=2 if seed % 100 == 0 else 0)
    print(f"\n{MANY} schedules:")
    for outcome, count in chaos.outcomes.most_common():
        print(f"{count:7d} {outcome}")
    assert len(chaos.again) <= MANY // 200, chaos.again
