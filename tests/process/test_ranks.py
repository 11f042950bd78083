"""ais_loader under torch.distributed: gloo, two ranks, uneven shards.

Ranks are forked, which spares them the import of torch; ``.ci/run`` starts them as programs as well, as launchers do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rank_program
from forked_ranks import free_port, run_forked

from torchdata_ais.testing import example_shards

pytestmark = [pytest.mark.kills, pytest.mark.timeout(180)]

COUNTS = (1, 9, 0, 12, 3, 6, 8)
TOTAL = sum(COUNTS)
PROGRAM = Path(__file__).with_name("rank_program.py")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("ranks"), COUNTS)


Run = Callable[..., list[dict[str, Any]]]


def forked(folder: Path, ranks: int, **job: Any) -> list[dict[str, Any]]:
    """Run `rank_program.main` in forks of this process and return their answers by rank."""
    answers = run_forked(lambda _rank, job: rank_program.main(job), ranks, folder, **job)
    return [answer["value"] for answer in answers]


def programs(tmp_path: Path, ranks: int, timeout_s: float = 90, **job: Any) -> list[dict[str, Any]]:
    """Run `rank_program.py` in `ranks` interpreters and return their answers by rank; nothing is left behind."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "job.json").write_text(json.dumps(job))
    port = free_port()
    processes = []
    try:
        for rank in range(ranks):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), str(tmp_path / "job.json")],
                    env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                )
            )  # fmt: skip
        answers = []
        for process in processes:
            out, err = process.communicate(timeout=timeout_s)
            lines = [line for line in out.splitlines() if line.startswith("ANSWER ")]
            assert lines, f"a rank gave no answer:\n{out}\n{err}"
            answers.append(json.loads(lines[-1].removeprefix("ANSWER ")))
        return answers
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def flat(answers: list[dict[str, Any]], epoch: int) -> list[int]:
    return sorted(number for answer in answers for batch in answer["epochs"][epoch] for number in batch)


BOTH = pytest.mark.parametrize("run", [forked, pytest.param(programs, marks=pytest.mark.ci)])
FORKED = pytest.mark.parametrize("run", [forked, pytest.param(programs, marks=pytest.mark.slow)])
"""What a rank does at the end of an epoch is the same however it was started: ``.ci/stress`` starts programs, too."""


@pytest.mark.quick(1)
@BOTH
@pytest.mark.parametrize("workers", [2, 0])
def test_promise_3_ranks_and_workers_give_every_sample_once(
    urls: list[str], tmp_path: Path, run: Run, workers: int
) -> None:
    answers = run(tmp_path, 2, urls=urls, workers=workers, epochs=2)
    assert flat(answers, 0) == flat(answers, 1) == list(range(TOTAL))
    assert answers[0]["epochs"][0] != answers[0]["epochs"][1]


@FORKED
def test_fewer_shards_than_ranks_and_workers(urls: list[str], tmp_path: Path, run: Run) -> None:
    answers = run(tmp_path, 2, urls=urls[1:2], workers=2)
    assert flat(answers, 0) == list(range(1, 10))


@FORKED
def test_shortest_stops_all_ranks_together(urls: list[str], tmp_path: Path, run: Run) -> None:
    answers = run(tmp_path, 2, urls=urls, workers=1, steps="shortest")
    lengths = [len(answer["epochs"][0]) for answer in answers]
    assert lengths[0] == lengths[1] > 0
    assert len(set(flat(answers, 0))) == len(flat(answers, 0))


@FORKED
def test_pad_repeats_until_the_longest_rank_has_ended(urls: list[str], tmp_path: Path, run: Run) -> None:
    answers = run(tmp_path, 2, urls=urls, workers=1, steps="pad")
    lengths = [len(answer["epochs"][0]) for answer in answers]
    assert lengths[0] == lengths[1]
    assert set(flat(answers, 0)) == set(range(TOTAL))
    assert sum(answer["repeated"][0] for answer in answers) > 0


@FORKED
def test_a_number_of_steps_goes_on_where_the_last_epoch_stopped(
    urls: list[str], tmp_path: Path, run: Run
) -> None:
    answers = run(tmp_path, 2, urls=urls, workers=1, steps=2, epochs=2)
    assert [len(epoch) for answer in answers for epoch in answer["epochs"]] == [2] * 4
    seen = [number for epoch in range(2) for number in flat(answers, epoch)]
    assert len(set(seen)) == len(seen)  # still in the first pass over the data


@BOTH
@pytest.mark.ci
def test_an_error_on_one_rank_ends_all_with_that_error(urls: list[str], tmp_path: Path, run: Run) -> None:
    answers = run(tmp_path, 2, urls=urls * 60, workers=1, fail=True, steps="shortest")
    assert all("row 7 is bad" in answer["error"] for answer in answers)


@pytest.mark.parametrize(
    ("run", "before", "after"),
    [
        (forked, (2, 1), (1, 2)),
        pytest.param(forked, (1, 2), (2, 1), marks=pytest.mark.ci),
        pytest.param(forked, (2, 2), (2, 2), marks=pytest.mark.ci),
        pytest.param(programs, (2, 1), (1, 2), marks=pytest.mark.ci),
        pytest.param(programs, (1, 2), (2, 1), marks=pytest.mark.slow),
        pytest.param(programs, (2, 2), (2, 2), marks=pytest.mark.slow),
    ],
)
def test_promise_5_resume_on_other_ranks_and_workers(
    urls: list[str], tmp_path: Path, run: Run, before: tuple[int, int], after: tuple[int, int]
) -> None:
    first = run(tmp_path / "first", before[0], urls=urls, workers=before[1], take=3)
    rest = run(tmp_path / "rest", after[0], urls=urls, workers=after[1], states=first[0]["states"])
    assert sorted(flat(first, 0) + flat(rest, 0)) == list(range(TOTAL))
    if before == after:
        whole = run(tmp_path / "whole", before[0], urls=urls, workers=before[1])
        for rank in range(before[0]):
            assert first[rank]["epochs"][0] + rest[rank]["epochs"][0] == whole[rank]["epochs"][0]
