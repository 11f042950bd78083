"""DataPipes of torch.

torch core ships the base class, its registry of functional names and the stages imported here; torchdata's classes of
the same name are the same objects. Under a torch without them the import raises `MissingLibraryError`.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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
    "copy_pipe",
    "deepcopy_pipe",
    "graph_lock",
    "is_fork",
    "traverse_dps",
]


try:
    from torch.utils.data import graph, graph_settings
    from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe
    from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, IterableWrapper, Mapper, Shuffler
    from torch.utils.data.datapipes.iter.combining import _ChildDataPipe, _ContainerTemplate
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    from torch.utils.data.datapipes.iter.sharding import ShardingFilterIterDataPipe as ShardingFilter
except ImportError as error:
    raise MissingLibraryError.at(
        f"the installed torch {torch.__version__} has no DataPipes: {error}",
        todo=f"install a torch that has them. {NEWEST_TORCH} is the newest that was tested: "
        f'pip install "torch=={NEWEST_TORCH}.*"',
    ) from error


graph_lock = threading.RLock()
"""Lock of the hooks that torch sets on the classes of all pipes while it traverses one.

It is held wherever pipes are traversed, copied or pickled: a second traversal would raise, and a copy made by another
thread would get a string in place of its source. A fork waits for it, or the child would keep the hooks.
"""

os.register_at_fork(
    before=graph_lock.acquire, after_in_parent=graph_lock.release, after_in_child=graph_lock.release
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _locked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def locked(*args: _P.args, **options: _P.kwargs) -> _R:
        with graph_lock:
            return function(*args, **options)

    return locked


traverse_dps = _locked(graph.traverse_dps)
apply_sharding = _locked(graph_settings.apply_sharding)
apply_shuffle_settings = _locked(graph_settings.apply_shuffle_settings)
copy_pipe = _locked(copy.copy)
deepcopy_pipe = _locked(copy.deepcopy)


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


def pipes_in(traversed: dict[int, tuple[Any, Any]]) -> list[Any]:
    """Return the pipes of a `traverse_dps` graph, nearest first, each once."""
    found: dict[int, Any] = {}
    graphs = deque([traversed])
    while graphs:
        for number, (pipe, sources) in graphs.popleft().items():
            if number not in found:
                found[number] = pipe
                graphs.append(sources)
    return list(found.values())
