"""``.split_by_node()`` and ``.split_by_worker()``: the split over ranks and workers, under webdataset's names."""

from __future__ import annotations

from typing import Any

from torchdata_ais.stage.above import ensure_sharded
from torchdata_ais.stage.pipe import IterDataPipe, Pipe, as_pipe
from torchdata_ais.stage.registry import stage


@stage("split_by_node")
class SplitByNode(Pipe[Any]):
    """Split shards over ranks and workers (``.split_by_node()``); makes torch's ``.sharding_filter()``.

    Ranks and workers are split in one step, the only one for which loaders keep the shuffle before it the same
    everywhere. So ``.split_by_node()``, ``.split_by_worker()``, one after the other, or none at all before
    ``.load_tar()``, come to the same: every shard is read by exactly one worker of one rank.

    Args:
        source: Pipe of shards.

    Yields:
        The items of this worker: every `n`-th, for `n` ranks times workers.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> pipe = SplitByNode(range(6))
        >>> pipe.apply_sharding(3, 1)
        >>> list(pipe)
        [1, 4]
    """

    def __new__(cls, source: Any) -> IterDataPipe[Any]:  # type: ignore[misc]
        """Return a sharding filter over `source`, or `source` itself if it has one."""
        return ensure_sharded(as_pipe(source))


@stage("split_by_worker")
class SplitByWorker(SplitByNode):
    """Split shards over ranks and workers (``.split_by_worker()``): another name of `SplitByNode`.

    Args:
        source: Pipe of shards.

    Yields:
        The items of this worker.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> pipe = SplitByWorker(range(6))
        >>> SplitByWorker(pipe) is pipe
        True
    """
