"""A worker has next to no memory of its own for the names of many shards, however it was started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.testing import write_shard

pytestmark = [pytest.mark.timeout(300), pytest.mark.ci]

DIGITS = 5
MOST_MB = 6.0
"""For 100,000 shards. As a list of strings they took 13 (fork) and 34 (spawn)."""


def private_mb() -> float:
    """Return what this process would give back if it ended."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return (
        sum(int(one.split()[1]) for one in lines if one.startswith(("Private_Clean", "Private_Dirty"))) / 1024
    )


def measured(_: Any) -> tuple[int, float]:
    return os.getpid(), private_mb()


def names(folder: Path, digits: int) -> str:
    """Return a template of ``10 ** digits`` names of one shard: links lead back into its folder."""
    return "/".join([str(folder), *["d0"] * (DIGITS - digits), *["d{0..9}"] * digits, "s.tar"])


def most_private_mb(pipe: Any, shards: int, **how: Any) -> float:
    """Return the most that a worker had at any sample, in a job of so many ranks that each reads 10 shards."""
    pipe = pipe.load_tar().group_samples().map_sample(measured).listed(1)
    with ais_loader(
        pipe,
        num_workers=2,
        prefetch=1,
        rank=0,
        world_size=shards // 10,
        epoch_steps=10,
        start_spread_s=0,
        **how,
    ) as loader:
        found = [sample for (sample,) in loader]
    assert len({pid for pid, _ in found}) == 2
    return max(mb for _, mb in found)


@pytest.mark.parametrize(
    ("method", "listed"), [("fork", "template"), ("fork", "list"), ("spawn", "template")]
)
def test_promise_7_names_of_shards_are_no_memory_of_the_worker(
    tmp_path: Path, method: str, listed: str
) -> None:
    write_shard(tmp_path / "s.tar", {"a.cls": b"1"})
    for digit in range(10):
        (tmp_path / f"d{digit}").symlink_to(tmp_path)
    how = {"multiprocessing_context": method}
    few = most_private_mb(AISSourceLister(names(tmp_path, 1)), 10, **how)
    pipe = AISSourceLister(names(tmp_path, DIGITS))
    many = pipe if listed == "template" else IterableWrapper(list(pipe))
    assert most_private_mb(many.shuffle(), 10**DIGITS, **how) - few < MOST_MB
