"""The graph of a pipe as torch sees it: through attributes and collections of any depth."""

from __future__ import annotations

from typing import Any

from torchdata_ais.stage.datapipes import traverse_dps
from torchdata_ais.stage.own.graph import pipes_in

__all__ = ["all_pipes", "pipes_in"]


def all_pipes(pipe: Any) -> list[Any]:
    """Return `pipe` and every pipe it depends on, of any package, nearest first, each once.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> one = IterableWrapper([1])
        >>> [type(pipe).__name__ for pipe in all_pipes(one.concat(one))]
        ['ConcaterIterDataPipe', 'IterableWrapperIterDataPipe']
    """
    return pipes_in(traverse_dps(pipe))
