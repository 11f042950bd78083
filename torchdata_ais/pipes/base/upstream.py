"""Upstream pipes of a stage."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.torch_pipes import Filter, IterDataPipe, Mapper

# Most attributes are of these: to ask torch whether something is a pipe takes half a microsecond, 70 times an epoch.
_NO_PIPES = frozenset({type(None), bool, int, float, str, bytes, types.FunctionType})


def parents(pipe: object) -> list[IterDataPipe[object]]:
    """Return the pipes that are attributes of `pipe`, or in collections there."""
    if not hasattr(pipe, "__dict__"):
        raise UsageError.at(
            f"a {type(pipe).__name__} is no pipe and no loader: {pipe!r:.60}",
            todo="pass the last stage of a chain, or what ais_loader returned",
        )
    found: list[IterDataPipe[object]] = []
    for value in list(vars(pipe).values()):  # another thread may be at work in it
        if type(value) in _NO_PIPES:
            continue
        found.extend(item for item in members(value) if isinstance(item, IterDataPipe))
    return found


def members(value: object) -> Iterable[Any]:
    """Return what a collection holds; what is none, alone."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple, set)) else [value]


def upstream(pipe: IterDataPipe[object]) -> Iterator[IterDataPipe[object]]:
    """Yield `pipe` and every pipe it depends on, nearest first, each once."""
    seen: set[int] = set()
    queue = [pipe]
    while queue:
        current = queue.pop(0)
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            queue.extend(parents(current))


def is_sharding(pipe: IterDataPipe[object]) -> bool:
    """Return whether `pipe` splits its items over ranks and workers."""
    return (
        hasattr(pipe, "apply_sharding")
        or type(pipe).__name__.startswith("_DummySharding")
        or ("ShardingRoundRobinDispatcher" in type(pipe).__name__)
    )


def at_work(source: IterDataPipe[object]) -> dict[str, Any]:
    """Return ``url`` and ``key`` of the current sample at or above `source`.

    ``{}`` where that is not known, or where a stage on the way holds others, too.
    """
    while True:
        if isinstance(source, Stage):
            place = source.busy_with() or source.left_at or {}
            if place.get("key") is not None:
                return place
            effect = source.effect()
            if not source.hidden and (effect.holds or effect.gives not in ("each", "fewer", "batches")):
                return {}
        elif not isinstance(source, (Mapper, Filter)):
            return {}
        above = parents(source)
        if len(above) != 1:
            return {}
        source = above[0]
