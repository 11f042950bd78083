"""DataPipes of torch.

torch core ships the base class, its registry of functional names and the stages imported here; torchdata's classes of
the same name are the same objects. Under a torch without them the import raises `MissingLibraryError`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from torchdata_ais._util.versions import NEWEST_TORCH
from torchdata_ais.errors import MissingLibraryError

__all__ = [
    "SHARDING_PRIORITIES",
    "Batcher",
    "Collator",
    "Filter",
    "IterDataPipe",
    "IterableWrapper",
    "MapDataPipe",
    "Mapper",
    "ShardingFilter",
    "Shuffler",
    "apply_sharding",
    "apply_shuffle_settings",
    "is_fork",
    "traverse_dps",
]


try:
    from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe
    from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, IterableWrapper, Mapper, Shuffler
    from torch.utils.data.datapipes.iter.combining import _ChildDataPipe, _ContainerTemplate
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    from torch.utils.data.datapipes.iter.sharding import ShardingFilterIterDataPipe as ShardingFilter
    from torch.utils.data.graph import traverse_dps
    from torch.utils.data.graph_settings import apply_sharding, apply_shuffle_settings
except ImportError as error:
    raise MissingLibraryError.at(
        f"the installed torch {torch.__version__} has no DataPipes: {error}",
        todo=f"install a torch that has them. {NEWEST_TORCH} is the newest that was tested: "
        f'pip install "torch=={NEWEST_TORCH}.*"',
    ) from error


def is_fork(pipe: object) -> bool:
    """Return whether `pipe` is a branch of a fork, or makes the branches."""
    return isinstance(pipe, (_ChildDataPipe, _ContainerTemplate))


def all_pipes(pipe: Any) -> list[Any]:
    """Return `pipe` and all pipes it depends on, of any package, each once.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> one = IterableWrapper([1])
        >>> [type(pipe).__name__ for pipe in all_pipes(one.concat(one))]
        ['ConcaterIterDataPipe', 'IterableWrapperIterDataPipe']
    """
    return pipes_in(traverse_dps(pipe))


def pipes_in(graph: dict[int, tuple[Any, Any]]) -> list[Any]:
    """Return the pipes of a `traverse_dps` graph, nearest first, each once."""
    found: dict[int, Any] = {}
    graphs = deque([graph])
    while graphs:
        for number, (pipe, sources) in graphs.popleft().items():
            if number not in found:
                found[number] = pipe
                graphs.append(sources)
    return list(found.values())
