"""``.single_node_only()``: refuse to run in several ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch.distributed

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes._pipe import IterDataPipe, Pipe, as_pipe, stage

__all__ = ["SingleNodeOnly"]


@stage("single_node_only")
class SingleNodeOnly(Pipe[Any]):
    """Pass items on, but raise if there are several ranks (``.single_node_only()``).

    Args:
        source: Pipe of anything.

    Yields:
        The items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        UsageError: ``WORLD_SIZE`` or torch.distributed says that there are several ranks.

    Example:
        >>> list(SingleNodeOnly(range(3)))
        [0, 1, 2]
    """

    resumable = True

    def __init__(self, source: Any) -> None:
        source = as_pipe(source)
        super().__init__(source)
        self._source: IterDataPipe[Any] = source
        # Worker processes know the ranks by the environment only, so what is known here travels with the stage.
        self._world = _world_size()

    def __iter__(self) -> Iterator[Any]:
        world = max(self._world, _world_size())
        if world > 1:
            raise UsageError.at(
                f"there are {world} ranks, and .single_node_only() is for one",
                todo="take it out: shards are split over ranks and workers before .load_tar() anyway",
            )
        yield from self._source


def _world_size() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdecimal() else 1
