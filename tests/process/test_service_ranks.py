"""The reading service under torch.distributed: real ranks over gloo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_pipes import EVERY_ITEM
from service_sessions import living_in

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).with_name("service_rank_program.py")


def run_ranks(**job: Any) -> list[dict[str, Any]]:
    """Run the program in two ranks and return what each answers; no process is left behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(2):
            place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), json.dumps(job)],
                    env={**os.environ, **{name: str(value) for name, value in place.items()}},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        answers = []
        for process in ranks:
            out, err = process.communicate(timeout=60)
            if process.returncode == -signal.SIGKILL:
                answers.append({"died": True})
                continue
            lines = [line for line in out.splitlines() if line.startswith("ANSWER ")]
            assert lines, err
            answers.append(json.loads(lines[-1].removeprefix("ANSWER ")))
            assert not living_in(process.pid)
        return answers
    finally:
        for process in ranks:
            for pid in {process.pid, *living_in(process.pid)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def together(answers: list[dict[str, Any]], epoch: int) -> list[tuple[int, ...]]:
    return sorted(tuple(item) for answer in answers for item in answer["epochs"][epoch])


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({}, id="unseeded"),
        pytest.param({"seed": 1, "workers": 0, "only_rank_0": True}, id="in-process", marks=pytest.mark.ci),
    ],
)
def test_promise_3_ranks_share_out_every_item_though_their_own_seeds_differ(job: dict[str, Any]) -> None:
    answers = run_ranks(**job)
    for epoch in range(3):
        assert together(answers, epoch) == EVERY_ITEM
    assert answers[0]["epochs"][0] != answers[0]["epochs"][1] != answers[0]["epochs"][2]


@pytest.mark.ci
def test_after_a_distributed_reading_service_ranks_stay_disjoint_equally_long_and_new_each_epoch() -> None:
    answers = run_ranks(after_distributed=True)
    for epoch in range(3):
        items = together(answers, epoch)
        assert len(set(items)) == len(items)
        assert len(answers[0]["epochs"][epoch]) == len(answers[1]["epochs"][epoch]) > 0
    assert answers[0]["epochs"][0] != answers[0]["epochs"][1]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({"function": "raise", "step_s": 0.1}, id="alone"),
        pytest.param(
            {"function": "kill", "after_distributed": True},
            id="killed-after-distributed",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_promise_6_one_ranks_error_ends_the_other_by_name(job: dict[str, Any]) -> None:
    answers = run_ranks(seed=3, **job)
    own = "WorkerDiedError" if job["function"] == "kill" else "ValueError: "
    failed = next(rank for rank, answer in enumerate(answers) if answer["error"].startswith(own))
    assert answers[1 - failed]["error"].startswith(f"LoaderError: Rank {failed} failed")
    assert "SIGKILL" in answers[1 - failed]["error"] or "three" in answers[1 - failed]["error"]


@pytest.mark.ci
def test_promise_6_a_rank_that_goes_on_alone_is_told_that_rank_0_has_closed() -> None:
    answers = run_ranks(rank_0_stops_at=1)
    assert len(answers[0]["epochs"]) == 1
    assert "Rank 0 has closed its loader" in answers[1]["error"]


@pytest.mark.ci
def test_promise_6_a_rank_waits_for_rank_0_only_so_long() -> None:
    answers = run_ranks(rank_0_sleeps_at=1, timeout_s=3)
    assert "Rank 0 did not begin epoch 1 within 3 s" in answers[1]["error"]


@pytest.mark.parametrize(
    ("dies", "after_distributed", "text"),
    [
        (1, True, "Another rank cannot be reached"),
        pytest.param(0, False, "The store of torch.distributed is gone", marks=pytest.mark.ci),
    ],
)
def test_promise_6_a_rank_that_is_killed_ends_the_other(
    dies: int, after_distributed: bool, text: str
) -> None:
    answers = run_ranks(dies=dies, after_distributed=after_distributed, step_s=0.1, seed=3)
    assert answers[dies] == {"died": True}
    assert answers[1 - dies]["error"].startswith("LoaderError")
    assert text in answers[1 - dies]["error"]
