"""`.sharding_round_robin_dispatch`: what stands before it runs in one process, which serves all workers in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES, IterDataPipe


class ShardingRoundRobinDispatcher(IterDataPipe[Any]):
    """Marks that all before it runs once, in a process of its own: `MultiProcessingReadingService` starts that.

    Takes and yields any items; worker w of n gets items w, w + n, w + 2n and so on. Without worker processes it gives
    what it takes.

    Args:
        source_datapipe: The pipe.
        sharding_group_filter: ``SHARDING_PRIORITIES.MULTIPROCESSING``; there is no other way.

    Raises:
        UsageError: Another `sharding_group_filter`.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> list(ShardingRoundRobinDispatcher(IterableWrapper([1, 2]), SHARDING_PRIORITIES.MULTIPROCESSING))
        [1, 2]
    """

    def __init__(self, source_datapipe: Any, sharding_group_filter: Any = None) -> None:
        super().__init__()
        if sharding_group_filter != SHARDING_PRIORITIES.MULTIPROCESSING:
            raise UsageError.at(
                f"sharding_round_robin_dispatch({sharding_group_filter})",
                todo="pass SHARDING_PRIORITIES.MULTIPROCESSING: items go to worker processes, not to ranks",
            )
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[Any]:
        yield from self.source_datapipe

    def __len__(self) -> int:
        return len(self.source_datapipe)
