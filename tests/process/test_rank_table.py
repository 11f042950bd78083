"""Four gloo ranks with one seeded fault: the report names cause and place."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import torch.distributed as dist
from forked_ranks import run_forked

from torchdata_ais import AISSourceLister, StoreOptions, ais_loader
from torchdata_ais.local import LocalCluster
from torchdata_ais.local.server.faults import Delay, Fault
from torchdata_ais.observe.diagnosis.rank_table import Readiness
from torchdata_ais.testing import shard_bytes

RANKS, SHARDS, SAMPLES, BATCH = 4, 24, 12, 2
CAUSES = ("decode", "loop", "shard", "target", "none")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=3) as running:
        bucket = running.client().bucket("b").create()
        for shard in range(SHARDS):
            members = {f"{shard:02}-{n:03}.cls": b"1" for n in range(SAMPLES)}
            bucket.object(f"s-{shard:02}.tar").get_writer().put_content(shard_bytes(members))
        yield running


def target_of(cluster: LocalCluster, shard: int) -> str:
    url = f"{cluster.endpoint}/v1/objects/b/s-{shard:02}.tar?provider=ais"
    answer = requests.get(url, allow_redirects=False, timeout=60)
    return answer.headers["Location"].split("/")[2]


def slow_sample(workers: int, slow: tuple[int, int] | None, sample: Any) -> Any:
    """Take 20 ms at the rank and worker that is `slow`, which is told by the shards that it reads; else half of one."""
    turn, rank = divmod(int(sample["__key__"][:2]), RANKS)
    time.sleep(0.02 if (rank, turn % workers) == slow else 0.0005)
    return sample


def train(rank: int, job: dict[str, Any]) -> Readiness:
    """Train together: every step ends when the last rank has come."""
    here = rank == job["at"]
    pipe: Any = (
        AISSourceLister(job["shards"], cluster=StoreOptions(job["endpoint"])).load_tar().group_samples()
    )
    slow = (job["at"], job["worker"]) if job["cause"] == "decode" else None
    pipe = pipe.map_sample(partial(slow_sample, job["workers"], slow))
    pipe = pipe.decode().to_tuple("cls").batched(BATCH)
    with ais_loader(pipe, num_workers=job["workers"], trace=True, epoch_steps=job["steps"], seed=1) as loader:
        for (batch,) in loader:
            if here and job["cause"] == "loop":
                time.sleep(0.05)
            time.sleep(0.003)
            dist.all_reduce(batch.float().sum())
        return loader.report(dist.group.WORLD)


def one_run(cluster: LocalCluster, folder: Path, seed: int, workers: int = 1) -> tuple[bool, str, list[Any]]:
    """Return whether the report named the fault that was put in, what it said, and what the ranks told."""
    draw = random.Random(seed)
    cause, at, worker = CAUSES[seed % len(CAUSES)], draw.randrange(RANKS), draw.randrange(workers)
    place = ""
    cluster.faults.clear()
    if cause == "shard":  # not the first of a worker, while which it is started
        shard = RANKS * (workers * draw.randrange(1, SHARDS // RANKS // workers) + worker) + at
        place = f"ais://b/s-{shard:02}.tar"
        cluster.faults.add(Fault(Delay(2.0), object=f"s-{shard:02}.tar", at_proxy=False))
    elif cause == "target":
        place = target_of(cluster, draw.randrange(SHARDS))
        for shard in range(SHARDS):
            if target_of(cluster, shard) == place:
                cluster.faults.add(Fault(Delay(2.0), object=f"s-{shard:02}.tar", at_proxy=False))
    shards = [f"ais://b/s-{shard:02}.tar" for shard in range(SHARDS)]
    answers = run_forked(
        train, RANKS, folder, cause=cause, at=at, worker=worker, shards=shards, endpoint=cluster.endpoint,
        workers=workers, steps=SHARDS * SAMPLES // RANKS // BATCH,
    )  # fmt: skip
    reports = [answer.get("value") for answer in answers]
    if reports[0] is None or any(report.verdict != reports[0].verdict for report in reports):
        return False, f"not all ranks say the same: {answers}", []
    verdict = reports[0].verdict
    right = verdict.cause == cause and (verdict.place == place or not place)
    if cause == "none":  # other work on the machine is no fault of the job, and may be told
        right = verdict.cause in ("none", "hand-over")
    elif cause != "target":
        right = right and verdict.rank == at
    if cause == "decode":
        right = right and verdict.place.startswith("map_sample")
    if cause in ("decode", "shard") and workers > 1:
        right = right and verdict.worker == worker
    return right, f"{cause} at rank {at}, worker {worker} {place}: {verdict}", reports[0].ranks


@pytest.mark.ci
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.ci)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.ci) for seed in (1, 2, 3, 4))])
def test_one_slow_thing_among_four_ranks_is_named(
    cluster: LocalCluster, tmp_path: Path, seed: int, workers: int
) -> None:
    right, said, _ = one_run(cluster, tmp_path / "job", seed, workers)
    assert right, said


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_hundred_seeded_faults_are_named_in_95(cluster: LocalCluster, tmp_path: Path, workers: int) -> None:
    """``CHAOS_FIRST`` and ``CHAOS_RUNS`` choose other seeds."""
    first, runs = int(os.environ.get("CHAOS_FIRST", "0")), int(os.environ.get("CHAOS_RUNS", "100"))
    wrong = []
    for seed in range(first, first + runs):
        right, said, _ = one_run(cluster, tmp_path / str(seed), seed, workers)
        if not right:
            wrong.append(f"{seed} {said}")
    print(f"{runs - len(wrong)} of {runs} named")
    assert len(wrong) <= runs // 20, "\n".join(wrong)
