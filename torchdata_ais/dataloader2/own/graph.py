"""The graph of a pipe as programs see it: looked through, listed and changed in place.

A graph is what `traverse_dps` gives: ``{id(pipe): (pipe, graph of its sources)}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchdata_ais.errors import LoaderError
from torchdata_ais.stage.datapipes import traverse_dps
from torchdata_ais.stage.graph import pipes_in

Graph = dict[int, tuple[Any, Any]]


def each_pipe(graph: Graph, seen: set[int] | None = None) -> Iterator[tuple[Any, Graph]]:
    """Yield every pipe of `graph` with the graph of its sources, each pipe once, a pipe before its sources."""
    seen = set() if seen is None else seen
    for number, (pipe, sources) in graph.items():
        if number not in seen:
            seen.add(number)
            yield pipe, sources
            yield from each_pipe(sources, seen)


def last_pipe(graph: Graph) -> Any:
    """Return the one pipe that no other of `graph` reads from."""
    assert len(graph) == 1, "a graph has one last pipe"
    ((pipe, _),) = graph.values()
    return pipe


def find_dps(graph: Graph, dp_type: type) -> list[Any]:
    """Return the pipes of exactly this class; a pipe stands before its sources.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper, Mapper
        >>> pipe = IterableWrapper([1]).map(str).map(len)
        >>> [found is pipe for found in find_dps(traverse_dps(pipe), Mapper)]
        [True, False]
    """
    return [pipe for pipe, _ in each_pipe(graph) if type(pipe) is dp_type]


def graph_of(pipe: Any, graph: Graph) -> Graph:
    """Return the part of `graph` that ends with `pipe`; looks through the pipe itself if it is not in there.

    To look through a pipe takes as long as pickling it.
    """
    for found, sources in each_pipe(graph):
        if found is pipe:
            return {id(pipe): (pipe, sources)}
    return traverse_dps(pipe)


def list_dps(graph: Graph, exclude_dps: Any | Sequence[Any] | None = None) -> list[Any]:
    """Return every pipe of `graph` once, breadth first from the last one.

    Args:
        graph: What `traverse_dps` gave.
        exclude_dps: A pipe, or several: they and all they read from are left out.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> source = IterableWrapper([1])
        >>> len(list_dps(traverse_dps(source.map(str)))), len(list_dps(traverse_dps(source.map(str)), source))
        (2, 1)
    """
    if exclude_dps is None:
        exclude_dps = []
    elif not isinstance(exclude_dps, (list, tuple, set)):
        exclude_dps = [exclude_dps]
    left_out = {id(pipe) for one in exclude_dps for pipe in pipes_in(graph_of(one, graph))}
    return [pipe for pipe in pipes_in(graph) if id(pipe) not in left_out]


def replace_dp(graph: Graph, old_datapipe: Any, new_datapipe: Any) -> Graph:
    """Let whoever reads from the old pipe read from the new one, in place; return the graph that this makes.

    The new pipe may itself read from the old one.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> source, other = IterableWrapper([1]), IterableWrapper([2, 3])
        >>> pipe = source.map(str)
        >>> _ = replace_dp(traverse_dps(pipe), source, other)
        >>> list(pipe)
        ['2', '3']
    """
    if id(old_datapipe) in graph:
        return traverse_dps(new_datapipe)
    last = last_pipe(graph)
    for reader, sources in each_pipe(graph):
        if id(old_datapipe) in sources:
            _reconnect(reader, old_datapipe, new_datapipe)
    return traverse_dps(last)


def remove_dp(graph: Graph, datapipe: Any) -> Graph:
    """Take a pipe that has one source out of the graph, in place; return the graph that this makes.

    Raises:
        LoaderError: The pipe has no source, or several: nothing could stand in its place.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> middle = IterableWrapper([1]).map(str)
        >>> pipe = middle.map(repr)
        >>> _ = remove_dp(traverse_dps(pipe), middle)
        >>> list(pipe)
        ['1']
    """
    ((_, sources),) = traverse_dps(datapipe).values()
    if len(sources) != 1:
        which = (
            "the receiving DataPipe having multiple sending DataPipes" if sources else "the source DataPipe"
        )
        raise LoaderError.at(
            f"Cannot remove {which} from the graph",
            todo="replace_dp(graph, old, new) puts another in its place",
        )
    ((source, _),) = sources.values()
    return replace_dp(graph, datapipe, source)


def _reconnect(reader: Any, old: Any, new: Any) -> None:
    for name, value in list(vars(reader).items()):
        other = _exchanged(value, old, new)
        if other is not value:
            setattr(reader, name, other)


def _exchanged(value: Any, old: Any, new: Any) -> Any:
    """Return `value` with `new` for `old`, in collections of any depth; those that can be changed are."""
    if value is old:
        return new
    if isinstance(value, dict):
        for name, one in list(value.items()):
            value[name] = _exchanged(one, old, new)
    elif isinstance(value, list):
        value[:] = [_exchanged(one, old, new) for one in value]
    elif isinstance(value, set) and any(one is old for one in value):
        value.remove(old)
        value.add(new)
    elif isinstance(value, tuple):
        others = [_exchanged(one, old, new) for one in value]
        if any(one is not other for one, other in zip(value, others, strict=True)):
            return type(value)(*others) if hasattr(value, "_fields") else tuple(others)
    return value
