"""``.single_node_only()``: refuse to run in several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.world import known_ranks


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
    gives = "each"

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        # Worker processes know the ranks by the environment only, so what is known here travels with the stage.
        _, self._world = known_ranks()

    def _items(self) -> Iterator[Any]:
        world = max(self._world, known_ranks()[1])
        if world > 1:
            raise UsageError.at(
                f"there are {world} ranks, and .single_node_only() is for one",
                todo="take it out: shards are split over ranks and workers before .load_tar() anyway",
            )
        yield from self._source
