"""Parts of a pipe in each process."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.random  # here, once: a worker that is seeded would import it, each for itself
import torch

from torchdata_ais._util.world import ranks_of_node
from torchdata_ais.dataloader2.own import prefetch
from torchdata_ais.dataloader2.own.graph import (
    extract_wrapper,
    find_branches_without,
    find_dispatched,
    find_replicable_branches,
    list_dps,
    replace_dp,
    seed_graph,
    set_datapipes_seed,
)
from torchdata_ais.dataloader2.own.prefetch import resume
from torchdata_ais.dataloader2.torchdata_names import (
    OWN,
    PinMemory,
    Prefetcher,
    ShardingRoundRobinDispatcher,
    WorkerInfo,
)
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.seed import EpochCall
from torchdata_ais.pipes.base.sources import share_node
from torchdata_ais.pipes.base.torch_pipes import (
    SHARDING_PRIORITIES,
    all_pipes,
    apply_sharding,
    pipes_in,
    traverse_dps,
)
from torchdata_ais.pipes.planned.stage import PlannedStage
from torchdata_ais.ranks.listing import number_ranks_first
from torchdata_ais.workers.process import Dispatched
from torchdata_ais.workers.producer import notify_pipes


class Parts(NamedTuple):
    """A pipe, cut.

    Attributes:
        replica: The part that every worker process runs a copy of.
        dispatched: The part that one process runs for all workers, if the pipe has a
            ``sharding_round_robin_dispatch``.
        rest: The last pipe of the part in the main process, if any.
    """

    replica: Any
    dispatched: Any | None
    rest: Any | None

    def reading(self) -> list[Any]:
        """Return the last pipes of all parts that read, dispatched items apart."""
        roots = [self.dispatched] if self.dispatched is not None else []
        return roots + find_branches_without(traverse_dps(self.replica), Dispatched)


def planned_stages(pipes: Iterable[object]) -> list[PlannedStage]:
    """Return the stages that read by a plan."""
    return [part for part in pipes if isinstance(part, PlannedStage)]


def pause(pipe: object) -> None:
    """Pause every pipe of the graph that knows how to, and returns from it."""
    prefetch.pause(pipe, _would_not_return)


def _would_not_return(pipe: object) -> bool:
    """Report whether `pause` of this pipe never returns.

    torchdata's look-ahead threads have two such cases. ``prefetch`` waits for a signal of its thread, which sends none
    once its source is exhausted. ``pin_memory`` waits for a signal that its thread never sends. Neither has anything
    to stop then: no item comes from the paused workers.
    """
    if OWN or not isinstance(pipe, Prefetcher):
        return False
    ahead = vars(pipe).get("prefetch_data")  # not there in a copy that was not iterated yet
    return isinstance(pipe, PinMemory) or (ahead is not None and ahead.stop_iteration)


def cut(pipe: Any) -> Parts:
    """Cut `pipe` in place: a `Dispatched` replaces the dispatched part."""
    dispatched = find_dispatched(traverse_dps(pipe), ShardingRoundRobinDispatcher)
    if dispatched is not None:
        graph = replace_dp(traverse_dps(pipe), dispatched, Dispatched())
        pipe = next(iter(graph.values()))[0]
    branches = find_replicable_branches(traverse_dps(pipe))
    if len(branches) != 1:
        names = ", ".join(type(branch).__name__ for branch in branches) or "none"
        raise UsageError.at(
            "worker processes can run one branch of the pipe, the part before the first pipe that says it is not "
            f"replicable, and here there are {len(branches)} such branches ({names})",
            todo="join the branches before the pipe that is not replicable, or use num_workers=0",
        )
    return Parts(branches[0], dispatched, None if branches[0] is pipe else pipe)


def shard(replica: Any, count: int, index: int) -> None:
    """Give worker `index` of `count` its part, unless it was dispatched."""
    for root in find_branches_without(traverse_dps(replica), Dispatched):
        apply_sharding(root, count, index, SHARDING_PRIORITIES.MULTIPROCESSING)


def shard_over_ranks(parts: Parts, count: int, index: int) -> None:
    """Give rank `index` of `count` its part; a second call changes nothing."""
    for root in parts.reading():
        apply_sharding(root, count, index, SHARDING_PRIORITIES.DISTRIBUTED)


def refuse_second_sharding(parts: Parts) -> None:
    """Raise if one path has two sharding pipes, which lose most of the data."""
    for root in parts.reading():
        _walk(traverse_dps(root), None, set())


def _walk(graph: dict[int, tuple[Any, Any]], below: Any | None, seen: set[tuple[int, bool]]) -> None:
    for key, (pipe, sources) in graph.items():
        if (key, below is not None) in seen:
            continue
        seen.add((key, below is not None))
        shards = hasattr(pipe, "apply_sharding") and inspect.ismethod(pipe.apply_sharding)
        if shards and below is not None:
            raise UsageError.at(
                f"the pipe is sharded twice on one path, by {type(pipe).__name__} and further down by "
                f"{type(below).__name__}: all but a part of a part of the data would be lost",
                todo="keep one; `.load_tar()` puts a sharding_filter before itself unless there is one already, "
                "so write `.sharding_filter()` before it or not at all",
            )
        _walk(sources, pipe if shards else below, seen)


@dataclass(frozen=True)
class Reset:
    """Parameters of an epoch in a process.

    Attributes:
        epoch: The number that the pipes receive.
        seeds: A seed generator of torchdata: its shared seeds are equal in all processes, its own differ.
        iter_reset_fn: From a service before this one.
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
    """The part of the pipe that a process runs: a `workers.process.PipePart`.

    It is that of a worker, of the dispatching process, or of a service without workers.

    Attributes:
        pipe: The pipe, wrapped by `attach_wrapper`, so that lambdas pickle where dill is installed.
        info: Which worker of how many this is; for the dispatching process, worker 0.
        init_fn: Called once with the sharded pipe; returns the pipe to run. Not in the dispatching process.
        reset_fn: Called for each epoch with the seeded pipe; returns the pipe to run.
        dispatching: Whether it feeds all workers.
    """

    pipe: object
    info: WorkerInfo
    init_fn: Callable[..., object] | None
    reset_fn: Callable[..., object] | None
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

    def begin(self, pipe: object, reset: Reset) -> Any:
        """Seed the process and the pipe."""
        draw = reset.seeds.generate_shared_seed if self.dispatching else reset.seeds.generate_seed
        random.seed(draw())
        torch.manual_seed(draw())
        np.random.seed(draw() >> 32)  # noqa: NPY002 - programs draw from it
        return self.begin_pipe(pipe, reset)

    def begin_pipe(self, pipe: Any, reset: Reset) -> Any:
        """Seed the pipe alone. No ``set_seed`` may change the graph."""
        graph = traverse_dps(pipe)
        if self.dispatching:
            set_datapipes_seed(list_dps(graph), reset.seeds, distributed_shared=True)
        else:
            seed_graph(graph, reset.seeds)
        if reset.iter_reset_fn is not None:
            pipe = reset.iter_reset_fn(pipe)
        if self.reset_fn is not None:
            pipe = self.reset_fn(pipe, self.info, reset.seeds)
        if reset.iter_reset_fn is not None or self.reset_fn is not None:
            graph = traverse_dps(pipe)
        pipes = pipes_in(graph)
        stages = planned_stages(pipes)
        for stage in stages:  # shared by all ranks and workers: torchdata would give each its own
            stage.set_seed(reset.seeds.generate_shared_seed())
        for stage, call in zip(stages, reset.calls, strict=False):
            stage.take_call(call)
        notify_pipes(pipes, reset.epoch, reset.extras)
        return pipe

    pause = staticmethod(pause)
    resume = staticmethod(resume)
