"""What the reading service does to the part of a pipe that a process runs: there, and for each epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.random  # here, once: a worker that is seeded would import it, each for itself
import torch

from torchdata_ais.dataloader2.cut import pause, planned_stages, seed_plan, shard
from torchdata_ais.dataloader2.own.copying import extract_wrapper
from torchdata_ais.dataloader2.own.graph import list_dps
from torchdata_ais.dataloader2.own.pausing import resume
from torchdata_ais.dataloader2.own.seeding import set_datapipes_seed, set_graph_random_seed
from torchdata_ais.dataloader2.torchdata_names import WorkerInfo
from torchdata_ais.ranks.sharding import number_ranks_first
from torchdata_ais.stage.datapipes import traverse_dps
from torchdata_ais.stage.graph import all_pipes
from torchdata_ais.stage.next_epoch import EpochCall
from torchdata_ais.stage.transport import share_node
from torchdata_ais.workers.hooks import tell_pipes
from torchdata_ais.world import ranks_of_node


@dataclass(frozen=True)
class Reset:
    """What begins an epoch in a process.

    Attributes:
        epoch: The number the pipes are told.
        seeds: A seed generator of torchdata: its shared seeds are equal in all processes, its own differ.
        iter_reset_fn: Handed on from a service that stands before this one.
        extras: Handed to every pipe that has `_ais_reset`.
        calls: The last calls of ``set_epoch`` of the stages that read by a plan.
    """

    epoch: int
    seeds: Any
    iter_reset_fn: Callable[[Any], Any] | None
    extras: Any
    calls: tuple[EpochCall, ...] = ()


@dataclass(frozen=True)
class ServicePart:
    """A worker's replica of the pipe, what the dispatching process runs, or the pipe of a service without workers.

    It is a `workers.job.Part`.

    Attributes:
        pipe: The pipe, wrapped by `attach_wrapper`, so that lambdas pickle where dill is installed.
        info: Which worker of how many this is; for the dispatching process, worker 0.
        init_fn: Called once with the sharded pipe; returns the pipe to run. Not in the dispatching process.
        reset_fn: Called for each epoch with the seeded pipe; returns the pipe to run.
        dispatching: Whether it feeds all workers.
    """

    pipe: Any
    info: WorkerInfo
    init_fn: Callable[..., Any] | None
    reset_fn: Callable[..., Any] | None
    dispatching: bool = False

    def open(self) -> Any:
        """Return the pipe without its wrapper."""
        return extract_wrapper(self.pipe)

    def prepare(self, pipe: Any) -> Any:
        """Shard the pipe over the workers."""
        if self.dispatching:
            return pipe
        shard(pipe, self.info.num_workers, self.info.worker_id)
        number_ranks_first(all_pipes(pipe))
        share_node(pipe, ranks_of_node() * self.info.num_workers)
        if self.init_fn is not None:
            pipe = self.init_fn(pipe, self.info)
            if not hasattr(pipe, "__iter__"):
                raise TypeError(f"worker_init_fn must return the pipe to run, not {type(pipe).__name__}")
        return pipe

    def begin(self, pipe: Any, reset: Reset) -> Any:
        """Seed the process and the pipe."""
        draw = reset.seeds.generate_shared_seed if self.dispatching else reset.seeds.generate_seed
        random.seed(draw())
        torch.manual_seed(draw())
        np.random.seed(draw() >> 32)  # noqa: NPY002 - programs draw from it
        return self.begin_pipe(pipe, reset)

    def begin_pipe(self, pipe: Any, reset: Reset) -> Any:
        """Seed the pipe alone."""
        if self.dispatching:
            set_datapipes_seed(list_dps(traverse_dps(pipe)), reset.seeds, distributed_shared=True)
        else:
            set_graph_random_seed(pipe, reset.seeds)
        if reset.iter_reset_fn is not None:
            pipe = reset.iter_reset_fn(pipe)
        if self.reset_fn is not None:
            pipe = self.reset_fn(pipe, self.info, reset.seeds)
        pipes = all_pipes(pipe)
        seed_plan(pipes, reset.seeds)
        for stage, call in zip(planned_stages(pipes), reset.calls, strict=False):
            stage.take_call(call)
        tell_pipes(pipes, reset.epoch, reset.extras)
        return pipe

    pause = staticmethod(pause)
    resume = staticmethod(resume)
