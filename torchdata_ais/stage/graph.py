"""The graph of a pipe as torch sees it: through attributes and collections of any depth."""

from __future__ import annotations

from collections import deque
from typing import Any

from torchdata_ais.stage.datapipes import traverse_dps


def all_pipes(pipe: Any) -> list[Any]:
    """Return `pipe` and every pipe it depends on, of any package, nearest first, each once.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> one = IterableWrapper([1])
        >>> [type(pipe).__name__ for pipe in all_pipes(one.concat(one))]
        ['ConcaterIterDataPipe', 'IterableWrapperIterDataPipe']
    """
    return pipes_in(traverse_dps(pipe))


def pipes_in(graph: dict[int, tuple[Any, Any]]) -> list[Any]:
    """Return the pipes of the graph that `traverse_dps` returned, nearest first, each once."""
    found: dict[int, Any] = {}
    graphs = deque([graph])
    while graphs:
        for number, (pipe, sources) in graphs.popleft().items():
            if number not in found:
                found[number] = pipe
                graphs.append(sources)
    return list(found.values())
