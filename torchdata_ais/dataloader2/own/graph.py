"""Graph of a pipe: traverse, copy, split and seed.

A graph is the result of `traverse_dps`: ``{id(pipe): (pipe, graph of its sources)}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torchdata_ais.errors import LoaderError
from torchdata_ais.pipes.base.pickle_check import Pickled, dumped, loaded
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe, ShardingFilter, pipes_in, traverse_dps

_T = TypeVar("_T")

Graph = dict[int, tuple[Any, "Graph"]]


def each_pipe(graph: Graph, seen: set[int] | None = None) -> Iterator[tuple[Any, Graph]]:
    """Yield every pipe once, before its sources, with the graph of these."""
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
    """Return the pipes of exactly this class, a pipe before its sources.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper, Mapper
        >>> pipe = IterableWrapper([1]).map(str).map(len)
        >>> [found is pipe for found in find_dps(traverse_dps(pipe), Mapper)]
        [True, False]
    """
    return [pipe for pipe, _ in each_pipe(graph) if type(pipe) is dp_type]


def graph_of(pipe: Any, graph: Graph) -> Graph:
    """Return the part of `graph` that ends with `pipe`.

    Traverses the pipe itself if it is not in the graph, which takes as long as pickling it.
    """
    for found, sources in each_pipe(graph):
        if found is pipe:
            return {id(pipe): (pipe, sources)}
    return traverse_dps(pipe)


def list_dps(graph: Graph, exclude_dps: object = None) -> list[Any]:
    """Return every pipe of `graph` once, breadth first from the last one.

    A pipe of `exclude_dps`, or several, are left out, and all they read from.

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


def replace_dp(graph: Graph, old_datapipe: object, new_datapipe: Any) -> Graph:
    """Make all readers of the old pipe read the new one, in place.

    Returns the new graph. The new pipe may itself read from the old one.

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
            for name, value in list(vars(reader).items()):
                other = _exchanged(value, old_datapipe, new_datapipe)
                if other is not value:
                    setattr(reader, name, other)
    return traverse_dps(last)


def remove_dp(graph: Graph, datapipe: Any) -> Graph:
    """Remove a pipe with one source in place; return the new graph.

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


def _exchanged(value: object, old: object, new: object) -> Any:
    """Replace `old` by `new` in nested collections, in place where possible."""
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


def _sources_first(graph: Graph, seen: set[int] | None = None) -> Iterator[tuple[int, object, Graph]]:
    """Yield every pipe once, after its sources: number, pipe, their graph."""
    seen = set() if seen is None else seen
    for number, (pipe, sources) in graph.items():
        if number not in seen:
            seen.add(number)
            yield from _sources_first(sources, seen)
            yield number, pipe, sources


def find_replicable_branches(graph: Graph) -> list[Any]:
    """Return the last pipes of the branches that every worker can copy.

    A pipe with ``is_replicable() == False`` cannot be copied; nor can its readers. Of nested branches the one nearest
    to the source is returned.
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


def find_dispatched(graph: Graph, dispatcher: type[Any]) -> Any:
    """Return the last pipe of the part that one process runs for all workers.

    It covers every `dispatcher` of `graph`; where several paths have one, it is the pipe at which these meet.
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
    """Return the last pipes of the largest branches without a pipe of `kind`."""
    having: set[int] = set()
    found: dict[int, Any] = {}
    for number, pipe, sources in _sources_first(graph):
        if isinstance(pipe, kind) or not having.isdisjoint(sources):
            having.add(number)
            found.update((key, source) for key, (source, _) in sources.items() if key not in having)
    return list(found.values()) if having else [last_pipe(graph)]


class _Carrier(IterDataPipe[Any]):
    """Carries a pipe to another process or into a state, and yields its items."""

    def __init__(self, pipe: Any) -> None:
        super().__init__()
        self._pipe = pipe

    def __iter__(self) -> Iterator[object]:
        yield from self._pipe

    def __len__(self) -> int:
        return len(self._pipe)

    def __getstate__(self) -> object:
        return dumped(self._pipe)

    def __setstate__(self, state: Pickled) -> None:
        self._pipe = loaded(state)


def attach_wrapper(pipe: object) -> Any:
    """Return `pipe` in a carrier, which pickles if it can be done at all."""
    return pipe if isinstance(pipe, _Carrier) else _Carrier(pipe)


def extract_wrapper(pipe: object) -> Any:
    """Return the pipe out of its carrier."""
    return pipe._pipe if isinstance(pipe, _Carrier) else pipe


def clone(item: _T) -> _T:
    """Return a copy of a pipe or a service; raise if it cannot be pickled."""
    copied: _T = loaded(dumped(item))
    return copied


def set_datapipes_seed(datapipes: Iterable[object], seed_generator: Any, distributed_shared: bool) -> None:
    """Seed each pipe that has ``set_seed``, for all processes or this worker.

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


def set_graph_random_seed(datapipe: Any, seed_generator: object) -> Any:
    """Seed all pipes of the graph: shared seeds before a sharding filter.

    The other pipes get seeds of this worker. So all workers shuffle the data equally before they share it out, and
    each shuffles its own part independently.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2.random import SeedGenerator
        >>> pipe = IterableWrapper(range(9)).shuffle()
        >>> set_graph_random_seed(pipe, SeedGenerator(7)) is pipe
        True
    """
    seed_graph(traverse_dps(datapipe), seed_generator)
    return datapipe


def seed_graph(graph: Graph, seed_generator: object) -> None:
    """Seed all pipes of a graph as `set_graph_random_seed`."""
    filters = find_dps(graph, ShardingFilter)
    before = {id(pipe): pipe for end in filters for pipe in list_dps(graph_of(end, graph))}
    set_datapipes_seed(before.values(), seed_generator, distributed_shared=True)
    set_datapipes_seed(list_dps(graph, filters), seed_generator, distributed_shared=False)
