"""The branches of a graph that go to one process or another."""

from __future__ import annotations

from typing import Any

from torchdata_ais.dataloader2.own.graph import Graph, each_pipe, last_pipe, list_dps
from torchdata_ais.stage.datapipes import traverse_dps


def find_replicable_branches(graph: Graph) -> list[Any]:
    """Return the last pipes of the branches that every worker can run a copy of.

    A pipe says that it cannot be copied by ``is_replicable() == False``; nor can what reads from it. Of branches
    that stand one in another the one nearest to the source is returned.
    """
    can: dict[int, bool] = {}

    def judge(number: int, pipe: Any, sources: Graph) -> bool:
        if number not in can:
            can[number] = True  # for a pipe that reads from itself
            itself = not hasattr(pipe, "is_replicable") or pipe.is_replicable()
            above = [judge(key, *entry) for key, entry in sources.items()]
            can[number] = itself and all(above)
        return can[number]

    for number, entry in graph.items():
        judge(number, *entry)
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

    def end_of(number: int, pipe: Any, sources: Graph) -> Any | None:
        if number not in ends:
            ends[number] = None  # for a pipe that reads from itself
            above = [pipe] if number in inside else [end_of(key, *entry) for key, entry in sources.items()]
            met = {id(end): end for end in above if end is not None}
            ends[number] = pipe if len(met) > 1 else next(iter(met.values()), None)
        return ends[number]

    return end_of(id(last_pipe(graph)), *next(iter(graph.values())))


def find_branches_without(graph: Graph, kind: type) -> list[Any]:
    """Return the last pipes of the largest branches that have no pipe of class `kind`."""
    has: dict[int, bool] = {}
    found: dict[int, Any] = {}

    def search(number: int, pipe: Any, sources: Graph) -> bool:
        if number not in has:
            has[number] = False
            above = {key: search(key, *entry) for key, entry in sources.items()}
            has[number] = isinstance(pipe, kind) or any(above.values())
            if has[number]:
                found.update((key, sources[key][0]) for key, there in above.items() if not there)
        return has[number]

    if not search(id(last_pipe(graph)), *next(iter(graph.values()))):
        return [last_pipe(graph)]
    return list(found.values())
