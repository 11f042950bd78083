"""The branches of a graph that go to one process or another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.dataloader2.own.graph import Graph, each_pipe, last_pipe, list_dps
from torchdata_ais.stage.datapipes import traverse_dps


def _sources_first(graph: Graph, seen: set[int] | None = None) -> Iterator[tuple[int, Any, Graph]]:
    """Yield every pipe of `graph` with its number and the graph of its sources, each pipe once, behind its sources."""
    seen = set() if seen is None else seen
    for number, (pipe, sources) in graph.items():
        if number not in seen:
            seen.add(number)
            yield from _sources_first(sources, seen)
            yield number, pipe, sources


def find_replicable_branches(graph: Graph) -> list[Any]:
    """Return the last pipes of the branches that every worker can run a copy of.

    A pipe says that it cannot be copied by ``is_replicable() == False``; nor can what reads from it. Of branches
    that stand one in another the one nearest to the source is returned.
    """
    can: dict[int, bool] = {}
    for number, pipe, sources in _sources_first(graph):
        itself = not hasattr(pipe, "is_replicable") or pipe.is_replicable()
        can[number] = itself and all(can.get(key, True) for key in sources)
    ends: dict[int, tuple[Any, Graph]] = {key: entry for key, entry in graph.items() if can[key]}
    for pipe, sources in each_pipe(graph):
        if not can[id(pipe)]:
            ends |= {key: entry for key, entry in sources.items() if can[key]}
    return [
        pipe
        for pipe, sources in ends.values()
        if not any(id(above) in ends for above, _ in each_pipe(sources) if above is not pipe)
    ]


def find_dispatched(graph: Graph, dispatcher: type[Any]) -> Any | None:
    """Return the last pipe of what one process runs for all workers: it covers every `dispatcher` of `graph`.

    None where there is no such pipe. Where several paths have one, it is the pipe at which these meet.
    """
    dispatchers = [pipe for pipe in list_dps(graph) if isinstance(pipe, dispatcher)]
    inside = {id(above) for pipe in dispatchers for above in list_dps(traverse_dps(pipe))}
    ends: dict[int, Any | None] = {}
    for number, pipe, sources in _sources_first(graph):
        above = [pipe] if number in inside else [ends.get(key) for key in sources]
        met = {id(end): end for end in above if end is not None}
        ends[number] = pipe if len(met) > 1 else next(iter(met.values()), None)
    return ends[id(last_pipe(graph))]


def find_branches_without(graph: Graph, kind: type) -> list[Any]:
    """Return the last pipes of the largest branches that have no pipe of class `kind`."""
    having: set[int] = set()
    found: dict[int, Any] = {}
    for number, pipe, sources in _sources_first(graph):
        if isinstance(pipe, kind) or not having.isdisjoint(sources):
            having.add(number)
            found.update((key, source) for key, (source, _) in sources.items() if key not in having)
    return list(found.values()) if having else [last_pipe(graph)]
