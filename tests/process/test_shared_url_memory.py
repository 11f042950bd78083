"""Ranks of one machine, and their workers, read the names of shards from one memory, whoever made it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import run_forked

from torchdata_ais import AISSourceLister
from torchdata_ais.loaders import ais_loader
from torchdata_ais.ranks import heartbeat
from torchdata_ais.store.objects import packed_urls
from torchdata_ais.testing import write_shard

pytestmark = pytest.mark.kills


def mapped(_: Any = None) -> set[str]:
    """Return which files without a name hold packed URLs that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "torchdata_ais.urls" in line}


def seen(sample: dict[str, Any]) -> tuple[str, int, set[str]]:
    return sample["__key__"], os.getpid(), mapped()


def program(rank: int, job: dict[str, Any]) -> Any:
    if rank in job.get("elsewhere", ()):
        heartbeat.this_machine = lambda: f"machine {rank}"
    pipe: Any = AISSourceLister(job["template"]).load_tar().group_samples().map_sample(seen)
    with ais_loader(
        pipe.listed(1),
        num_workers=1,
        multiprocessing_context=job.get("method", "fork"),
        prefetch=1,
        epoch_steps=job.get("steps"),
    ) as loader:
        batches = iter(loader)
        found = [*next(batches)]
        ours = mapped()
        if "killed" in job:
            dist.barrier()  # all are past their start
            if rank == job["killed"]:
                os.kill(os.getpid(), signal.SIGKILL)
        found += [sample for batch in batches for sample in batch]
    return ours, [key for key, _, _ in found], [one for _, _, one in found]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(packed_urls, "_SHARED_BYTES", 1)  # few names as if they were many
    (tmp_path / "shards").mkdir()
    for number in range(8):
        write_shard(tmp_path / "shards" / f"{number}.tar", {f"{number}.cls": b"1"})
    return str(tmp_path / "shards" / "{0..7}.tar")


def test_one_memory_for_all_ranks_and_forked_workers(tmp_path: Path, shards: str) -> None:
    answers = run_forked(program, 3, tmp_path / "ranks", template=shards)
    assert [answer.get("error") for answer in answers] == [None] * 3
    values = [answer["value"] for answer in answers]
    assert sorted(key for _, keys, _ in values for key in keys) == [str(n) for n in range(8)]
    one = values[0][0]
    assert len(one) == 1
    assert all(ours == one and all(worker == one for worker in workers) for ours, _, workers in values)


@pytest.mark.ci
def test_one_memory_for_all_ranks_and_spawned_workers(tmp_path: Path) -> None:
    # What is few names to a rank is few to a worker that was spawned: here they are really many.
    write_shard(tmp_path / "s.tar", {"s.cls": b"1"})
    for digit in range(10):
        (tmp_path / f"d{digit}").symlink_to(tmp_path)  # 100,000 names of one shard
    template = "/".join([str(tmp_path), *["d{0..9}"] * 5, "s.tar"])
    answers = run_forked(program, 2, tmp_path / "ranks", template=template, method="spawn", steps=3)
    assert [answer.get("error") for answer in answers] == [None] * 2
    one = answers[0]["value"][0]
    assert len(one) == 1
    for ours, keys, workers in (answer["value"] for answer in answers):
        assert ours == one
        assert keys == ["s"] * 3
        assert workers == [one] * 3


def test_ranks_of_other_machines_have_their_own(tmp_path: Path, shards: str) -> None:
    answers = run_forked(program, 3, tmp_path / "ranks", template=shards, elsewhere=[2])
    assert [answer.get("error") for answer in answers] == [None] * 3
    first, second, third = (answer["value"][0] for answer in answers)
    assert first == second != third


def test_the_names_outlive_the_rank_that_made_them(tmp_path: Path, shards: str) -> None:
    # Which rank is first is a matter of time: each is killed once, so once it is the one that made them.
    for killed in (0, 1):
        answers = run_forked(program, 2, tmp_path / f"{killed}", template=shards, killed=killed)
        assert answers[killed] == {"died": -signal.SIGKILL}
        ours, keys, _ = answers[1 - killed]["value"]
        assert len(ours) == 1
        assert len(keys) == 4
