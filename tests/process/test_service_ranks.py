"""The reading service under torch.distributed: real ranks over gloo.

Ranks are forked, which spares them the import of torch; ``.ci/run`` starts them as programs as well, as launchers do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import service_rank_program
from forked_ranks import free_port, run_forked
from service_pipes import EVERY_ITEM
from service_sessions import living_in

pytestmark = pytest.mark.kills

PROGRAM = Path(__file__).with_name("service_rank_program.py")


Run = Callable[..., list[dict[str, Any]]]


def forked(folder: Path, **job: Any) -> list[dict[str, Any]]:
    """Run `service_rank_program.main` in two forks of this process and return what each answers."""
    answers = run_forked(lambda _rank, job: service_rank_program.main(job), 2, folder, **job)
    return [answer.get("value", answer) for answer in answers]


def programs(_folder: Path, **job: Any) -> list[dict[str, Any]]:
    """Run the program in two ranks and return what each answers; no process is left behind."""
    port = free_port()
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
                answers.append({"died": process.returncode})
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


BOTH = pytest.mark.parametrize("run", [forked, pytest.param(programs, marks=pytest.mark.ci)])


def together(answers: list[dict[str, Any]], epoch: int) -> list[tuple[int, ...]]:
    return sorted(tuple(item) for answer in answers for item in answer["epochs"][epoch])


@BOTH
@pytest.mark.parametrize(
    "job",
    [
        pytest.param({}, id="unseeded"),
        pytest.param({"seed": 1, "workers": 0, "only_rank_0": True}, id="in-process"),
    ],
)
def test_promise_3_ranks_share_out_every_item_though_their_own_seeds_differ(
    tmp_path: Path, run: Run, job: dict[str, Any]
) -> None:
    answers = run(tmp_path, **job)
    for epoch in range(3):
        assert together(answers, epoch) == EVERY_ITEM
    assert answers[0]["epochs"][0] != answers[0]["epochs"][1] != answers[0]["epochs"][2]


@BOTH
def test_after_a_distributed_reading_service_ranks_stay_disjoint_equally_long_and_new_each_epoch(
    tmp_path: Path, run: Run
) -> None:
    answers = run(tmp_path, after_distributed=True)
    for epoch in range(3):
        items = together(answers, epoch)
        assert len(set(items)) == len(items)
        assert len(answers[0]["epochs"][epoch]) == len(answers[1]["epochs"][epoch]) > 0
    assert answers[0]["epochs"][0] != answers[0]["epochs"][1]


@pytest.mark.ci
@BOTH
@pytest.mark.parametrize(
    "job",
    [
        pytest.param({"function": "raise", "step_s": 0.1}, id="alone"),
        pytest.param({"function": "kill", "after_distributed": True}, id="killed-after-distributed"),
    ],
)
def test_promise_6_one_ranks_error_ends_the_other_by_name(
    tmp_path: Path, run: Run, job: dict[str, Any]
) -> None:
    answers = run(tmp_path, seed=3, **job)
    own = "WorkerDiedError" if job["function"] == "kill" else "ValueError: "
    failed = next(rank for rank, answer in enumerate(answers) if answer["error"].startswith(own))
    assert answers[1 - failed]["error"].startswith(f"LoaderError: Rank {failed} failed")
    assert "SIGKILL" in answers[1 - failed]["error"] or "three" in answers[1 - failed]["error"]


@pytest.mark.ci
@BOTH
def test_promise_6_a_rank_that_goes_on_alone_is_told_that_rank_0_has_closed(tmp_path: Path, run: Run) -> None:
    answers = run(tmp_path, rank_0_stops_at=1)
    assert len(answers[0]["epochs"]) == 1
    assert "Rank 0 has closed its loader" in answers[1]["error"]


@BOTH
@pytest.mark.ci
def test_promise_6_a_rank_waits_for_rank_0_only_so_long(tmp_path: Path, run: Run) -> None:
    answers = run(tmp_path, rank_0_sleeps_at=1, rank_timeout_s=3)
    assert "Rank 0 did not begin epoch 1 within 3 s" in answers[1]["error"]


@pytest.mark.parametrize(
    ("run", "dies", "after_distributed", "text"),
    [
        (forked, 1, True, "Another rank cannot be reached"),
        pytest.param(programs, 1, True, "Another rank cannot be reached", marks=pytest.mark.ci),
        pytest.param(programs, 0, False, "The store of torch.distributed is gone", marks=pytest.mark.ci),
    ],
)
def test_promise_6_a_rank_that_is_killed_ends_the_other(
    tmp_path: Path, run: Run, dies: int, after_distributed: bool, text: str
) -> None:
    answers = run(tmp_path, dies=dies, after_distributed=after_distributed, step_s=0.1, seed=3)
    assert answers[dies] == {"died": -signal.SIGKILL}
    assert answers[1 - dies]["error"].startswith("LoaderError")
    assert text in answers[1 - dies]["error"]
