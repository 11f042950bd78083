"""A pipe in a worker of torch's DataLoader that knows no pipes: each worker takes its part, in the same order."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import xxhash

from torchdata_ais.stage.own.graph import SHARDING_PRIORITIES, apply_sharding, pipes_in, traverse_dps


def share_out(pipe: Any, info: Any, run: int) -> None:
    """Give the worker of `info` its part of `pipe`, and all workers of all ranks the seeds of this run.

    Ranks that are to shuffle alike need the same seed of torch's generator, as for torch's own sampler.
    """
    if dist.is_available() and dist.is_initialized():
        apply_sharding(pipe, dist.get_world_size(), dist.get_rank(), SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(pipe, info.num_workers, info.id, SHARDING_PRIORITIES.MULTIPROCESSING)
    for index, one in enumerate(pipes_in(traverse_dps(pipe))):
        if hasattr(one, "set_seed"):
            one.set_seed(xxhash.xxh64_intdigest(f"{info.seed - info.id} {run} {index}".encode()) >> 1)
