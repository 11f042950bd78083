"""The graph of a pipe, and what is done to all of it: sharding, shuffling, sharing it out."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
import xxhash

from torchdata_ais.errors import UsageError

Graph = dict[int, tuple[Any, Any]]


class AnyPipe:
    """What pipes have in common, iterated or asked by index: they are found in the attributes of others."""


class SHARDING_PRIORITIES(enum.IntEnum):  # noqa: N801 - torch's name
    """Among whom items are shared out; of two kinds the first one changes slowest."""

    DEFAULT = 1
    DISTRIBUTED = 2
    MULTIPROCESSING = 3


def traverse_dps(pipe: Any) -> Graph:
    """Return the graph: ``{id(pipe): (pipe, graph of its sources)}``.

    Sources are attributes that are pipes, and pipes in collections of any depth.
    """
    return _graph(pipe, frozenset())


def _graph(pipe: Any, above: frozenset[int]) -> Graph:
    above |= {id(pipe)}
    found: dict[int, Any] = {}
    for value in vars(pipe).values():
        found.update((id(source), source) for source in _pipes_in(value) if id(source) not in above)
    sources: Graph = {}
    for source in found.values():
        sources |= _graph(source, above)
    return {id(pipe): (pipe, sources)}


def _pipes_in(value: Any) -> Iterator[Any]:
    if isinstance(value, AnyPipe):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _pipes_in(one)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _pipes_in(one)


def pipes_in(graph: Graph) -> list[Any]:
    """Return the pipes of what `traverse_dps` gave, nearest first, each once."""
    found: dict[int, Any] = {}
    graphs = deque([graph])
    while graphs:
        for number, (part, sources) in graphs.popleft().items():
            if number not in found:
                found[number] = part
                graphs.append(sources)
    return list(found.values())


def apply_sharding(pipe: Any, number: int, instance: int, group: Any = SHARDING_PRIORITIES.DEFAULT) -> Any:
    """Make every sharding stage the `instance`-th of `number`; return the pipe.

    Raises:
        UsageError: Two such stages stand on one path.
    """

    def walk(graph: Graph, below: Any) -> None:
        for one, sources in graph.values():
            shards = hasattr(one, "apply_sharding")
            if shards and below is not None:
                raise UsageError.at(
                    f"the pipe is sharded twice on one path, by {type(one).__name__} and by {type(below).__name__}",
                    todo="keep one sharding_filter on each path",
                )
            if shards:
                one.apply_sharding(number, instance, group)
            walk(sources, one if shards else below)

    walk(traverse_dps(pipe), None)
    return pipe


def apply_shuffle_settings(pipe: Any, shuffle: bool | None = None) -> Any:
    """Turn the shuffling stages on or off; return the pipe, with one at its end if it needs one."""
    if shuffle is None:
        return pipe
    shuffling = [
        one
        for one in pipes_in(traverse_dps(pipe))
        if hasattr(one, "set_shuffle") and hasattr(one, "set_seed")
    ]
    if shuffle and not shuffling:
        pipe = pipe.shuffle()
        shuffling = [pipe]
    for one in shuffling:
        one.set_shuffle(shuffle)
    return pipe


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
