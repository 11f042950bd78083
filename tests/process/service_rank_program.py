"""What one rank runs in test_service_ranks.py: forked, or as a program: its argument and answer are JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from service_pipes import uneven

from torchdata_ais.dataloader2.torchdata_names import (
    DataLoader2,
    DistributedReadingService,
    SequentialReadingService,
)
from torchdata_ais.errors import AISError
from torchdata_ais.loaders import MultiProcessingReadingService


def raise_at_three(item: tuple[int, int]) -> tuple[int, int]:
    if item == (3, 1):
        raise ValueError("three")
    return item


def kill_at_three(item: tuple[int, int]) -> tuple[int, int]:
    if item == (3, 1):
        os.kill(os.getpid(), 9)
    return item


def run(job: dict[str, Any]) -> list[list[Any]]:
    rank = dist.get_rank()
    functions = {"raise": raise_at_three, "kill": kill_at_three}
    pipe = uneven()
    if job.get("function"):
        pipe = pipe.map(functions[job["function"]])
    service: Any = MultiProcessingReadingService(
        job.get("workers", 2), rank_timeout_s=job.get("rank_timeout_s", 60)
    )
    if job.get("after_distributed"):
        service = SequentialReadingService(DistributedReadingService(timeout=30), service)
    if job.get("only_rank_0") and rank == 0:  # a validation loader of rank 0 alone
        alone = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, shard_by_rank=False))
        assert len(list(alone)) == 25
        alone.shutdown()
    loader = DataLoader2(pipe, reading_service=service)
    if job.get("seed") is not None:
        loader.seed(job["seed"] + 100 * rank)  # rank 0's counts
    else:
        torch.manual_seed(rank)
    epochs: list[list[Any]] = []
    groups = 0
    dist.barrier()
    try:
        for epoch in range(job.get("epochs", 3)):
            if rank == 0 and epoch == job.get("rank_0_stops_at"):
                break
            if rank == 0 and epoch == job.get("rank_0_sleeps_at"):
                time.sleep(job["rank_timeout_s"] + 2)
            epochs.append([])
            for item in loader:
                epochs[-1].append(item)
                if job.get("dies") == rank and len(epochs[-1]) == 3:
                    os.kill(os.getpid(), 9)
                time.sleep(job.get("step_s", 0))
            groups = groups or len(dist.distributed_c10d._world.pg_map)
        assert len(dist.distributed_c10d._world.pg_map) == groups  # no process group is made per epoch
        return epochs
    finally:
        loader.shutdown()


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job; an error is an answer, too."""
    try:
        return {"epochs": run(job)}
    except (AISError, ValueError, RuntimeError) as error:
        return {"epochs": None, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    job = json.loads(sys.argv[1])
    print("ANSWER " + json.dumps(main(job)), flush=True)
    if "dies" in job:
        os._exit(0)  # without the other rank there is nothing to take leave of
    dist.barrier()  # rank 0 is where the store lives: it goes last
    if dist.get_rank() == 0:
        time.sleep(0.2)
    dist.destroy_process_group()
