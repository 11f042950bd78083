"""Which pipe of a graph gets which seed, and what a process is seeded with for an epoch."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.random  # here, once: a worker that is seeded would import it, each for itself
import torch

from torchdata_ais.dataloader2.own.graph import find_dps, graph_of, list_dps
from torchdata_ais.stage.datapipes import ShardingFilter, traverse_dps


def set_datapipes_seed(datapipes: Iterable[Any], seed_generator: Any, distributed_shared: bool) -> None:
    """Give each of these pipes that has a method ``set_seed`` a seed: of all processes, or of this worker.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2.random import SeedGenerator
        >>> one, two = (IterableWrapper(range(9)).shuffle() for _ in range(2))
        >>> for pipe in (one, two):
        ...     set_datapipes_seed([pipe], SeedGenerator(7), distributed_shared=True)
        >>> list(one) == list(two)
        True
    """
    draw = seed_generator.generate_shared_seed if distributed_shared else seed_generator.generate_seed
    for pipe in datapipes:
        if hasattr(pipe, "set_seed") and inspect.ismethod(pipe.set_seed):
            pipe.set_seed(draw())


def set_graph_random_seed(datapipe: Any, seed_generator: Any) -> Any:
    """Seed all pipes of the graph: what stands before a sharding filter as in all processes, the rest as this worker.

    So all workers shuffle alike what they share out among them, and each by itself what is its own.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2.random import SeedGenerator
        >>> pipe = IterableWrapper(range(9)).shuffle()
        >>> set_graph_random_seed(pipe, SeedGenerator(7)) is pipe
        True
    """
    graph = traverse_dps(datapipe)
    filters = find_dps(graph, ShardingFilter)
    before = {id(pipe): pipe for end in filters for pipe in list_dps(graph_of(end, graph))}
    set_datapipes_seed(before.values(), seed_generator, distributed_shared=True)
    set_datapipes_seed(list_dps(graph, filters), seed_generator, distributed_shared=False)
    return datapipe


def begin_epoch(
    pipe: Any,
    info: Any,
    seeds: Any,
    shared: bool = False,
    iter_reset_fn: Callable[[Any], Any] | None = None,
    reset_fn: Callable[[Any, Any, Any], Any] | None = None,
) -> Any:
    """Seed the process and the pipe that it runs; return the pipe to iterate.

    Args:
        pipe: What this process runs.
        info: Its `WorkerInfo`.
        seeds: Its seed generator.
        shared: Whether all seeds are those of all processes: in the dispatching process.
        iter_reset_fn: A function that another reading service asks for; returns the pipe.
        reset_fn: The function that the user gave; returns the pipe.
    """
    draw = seeds.generate_shared_seed if shared else seeds.generate_seed
    random.seed(draw())
    torch.manual_seed(draw())
    np.random.seed(draw() >> 32)  # noqa: NPY002 - programs draw from it
    if shared:
        set_datapipes_seed(list_dps(traverse_dps(pipe)), seeds, distributed_shared=True)
    else:
        set_graph_random_seed(pipe, seeds)
    if iter_reset_fn is not None:
        pipe = iter_reset_fn(pipe)
    return pipe if reset_fn is None else reset_fn(pipe, info, seeds)
