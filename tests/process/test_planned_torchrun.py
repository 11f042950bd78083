"""Under torchrun: ranks of a DDP training over an index are killed, begun anew, and go on exactly once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from planned_ddp_program import EVERY, forever

from torchdata_ais import AISSampleReader, Mixture, SampleIndex, ais_loader
from torchdata_ais.testing import write_shard

pytestmark = [pytest.mark.kills, pytest.mark.ci, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("planned_ddp_program.py")


def drawn_job(folder: Path, seed: int, ranks: int) -> dict[str, Any]:
    """Draw data, mixture and kills: some rank in each of the first two attempts."""
    dice = random.Random(seed)
    indexes = []
    for source in range(2):
        size = dice.randint(9, 30)
        members = {f"{source}-{n:03d}.cls": b"%d" % n for n in range(size)}
        index = SampleIndex.build(write_shard(folder / f"{source}.tar", members))
        index.save(str(folder / f"index-{source}"))
        indexes.append(str(folder / f"index-{source}"))
    job: dict[str, Any] = {
        "folder": str(folder),
        "indexes": indexes,
        "weights": [dice.randint(1, 5), dice.randint(1, 5)],
        "seed": dice.randrange(1 << 40),
        "batch": dice.randint(ranks, 9),
        "workers": dice.choice([0, 1]),
        "steps": dice.randint(14, 20),
    }
    first = dice.randint(1, 8)
    second = first // EVERY * EVERY + dice.randint(1, 5)  # of what the first had left
    job["kills"] = [[0, dice.randrange(ranks), first], [1, dice.randrange(ranks), second]]
    return job


def torchrun(ranks: int, *arguments: str, timeout_s: float = 300) -> None:
    """Run a program as ranks that are begun anew when one fails."""
    restarts = ["--standalone", "--max-restarts", "3", "--monitor-interval", "0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *restarts, "--nproc-per-node", str(ranks)]
    # Where the agent's store is shared, ranks begun anew find in it the addresses of those that were killed.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its ranks, which have sessions of their own
        process.communicate(timeout=60)
        raise
    assert process.returncode == 0, f"{out}\n{err}"


@pytest.mark.parametrize(("seed", "ranks"), [(1, 2), pytest.param(3, 4, marks=pytest.mark.slow)])
def test_promise_5_torchrun_begins_killed_ranks_anew_and_each_sample_comes_once(
    tmp_path: Path, seed: int, ranks: int
) -> None:
    job = drawn_job(tmp_path, seed, ranks)
    program = tmp_path / "job.json"
    program.write_text(json.dumps(job))
    torchrun(ranks, str(PROGRAM), str(program))
    check(job, ranks)


def check(job: dict[str, Any], ranks: int) -> None:
    """Assert that all attempts together are the run that nobody disturbed."""
    folder = Path(job["folder"])
    opened = [SampleIndex.open(where, shards_from=Path(where).parent) for where in job["indexes"]]
    mixture = Mixture(dict(zip(opened, job["weights"], strict=True)), stop="all")
    pipe = AISSampleReader(mixture, shuffle="samples").to_tuple("__key__").batched(2)
    with ais_loader(pipe, seed=job["seed"], global_batch=job["batch"], rank=0, world_size=1) as loader:
        expected = [Counter(keys) for (keys,) in islice(forever(loader), job["steps"])]

    kept = [0, *(step // EVERY * EVERY for _, _, step in job["kills"])]  # where each attempt begins
    for attempt, begin in enumerate(kept):
        logs = [folder / f"{attempt}-{rank}.jsonl" for rank in range(ranks)]
        found = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
        together = min(map(len, found))
        end = kept[attempt + 1] if attempt + 1 < len(kept) else job["steps"]
        assert together >= end - begin
        for number in range(together):
            assert {rows[number][0] for rows in found} == {begin + number}
            parts = [Counter(rows[number][1]) for rows in found]
            whole = expected[begin + number]
            assert set().union(*parts) == set(whole), f"attempt {attempt}, step {begin + number}"
            if whole.total() >= ranks:
                assert sum(parts, Counter()) == whole
    assert not (folder / f"{len(kept)}-0.jsonl").exists()  # no restart beyond those
