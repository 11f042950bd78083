"""Which pipe of a graph gets which seed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

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
