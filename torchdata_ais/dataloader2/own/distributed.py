"""Distributed reading, .fullsync and .sharding_round_robin_dispatch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchdata_ais.dataloader2.own.graph import set_graph_random_seed
from torchdata_ais.dataloader2.own.prefetch import LookAhead, LookingAhead
from torchdata_ais.dataloader2.own.random import dist_share_seed
from torchdata_ais.dataloader2.own.services import ReadingServiceInterface, ResetFunction
from torchdata_ais.errors import LoaderError, StallError, UsageError
from torchdata_ais.pipes.base.torch_pipes import SHARDING_PRIORITIES, IterDataPipe, apply_sharding

_END_S = 5.0
"""Time that a loader that is shut down waits for the other ranks."""


class _Agreed:
    """The items of a rank, each as soon as every rank has one."""

    def __init__(self, items: Iterable[object], group: Any, size: int) -> None:
        self._items, self._group, self._size = items, group, size

    def __iter__(self) -> Iterator[object]:
        items, rank = iter(self._items), dist.get_rank()
        while True:
            item: object = None
            error: BaseException | None = None
            have = 1
            try:
                item = next(items)
            except StopIteration:
                have = 0
            except Exception as raised:  # noqa: BLE001 - raised again when the other ranks know
                error = raised
            counts = torch.tensor([have, error is not None], dtype=torch.int64)
            try:
                dist.all_reduce(counts, group=self._group)
            except Exception as lost:  # gloo raises RuntimeErrors of many kinds
                raise error or LoaderError.at(
                    f"another rank cannot be reached any more: {lost}",
                    todo="look for the rank that ended first; its own output says why",
                    rank=rank,
                ) from lost
            if error is not None:
                raise error
            if counts[1] > 0:
                raise LoaderError.at(
                    "another rank could not make an item, so this rank ends its epoch, too",
                    todo="look for the rank that ended first; its own output says why",
                    rank=rank,
                )
            if counts[0] < self._size:
                return
            yield item
            del item


class FullSync(LookingAhead):
    """Ends all ranks' epoch with the shortest rank: ``pipe.fullsync()``.

    Takes and yields any items, in their order; further items of longer ranks are dropped. It stays in the main
    process, and makes one item ahead. torch.distributed must be initialised, and every rank must iterate.

    Memory:
        One item, and one under way.

    Raises:
        StallError: No item of this rank or of another came for `timeout` seconds.
        LoaderError: torch.distributed is not initialised; another rank failed or is gone.
    """

    _group: object = None
    _stays = ("_ahead", "_group")

    def __init__(self, datapipe: Any, timeout: float = 30 * 60) -> None:
        super().__init__()
        self.datapipe = datapipe
        self.timeout = timeout

    def __iter__(self) -> Iterator[Any]:
        if not (dist.is_available() and dist.is_initialized()):
            raise LoaderError.at(
                "the ranks of fullsync need torch.distributed, which is not initialized",
                todo="call torch.distributed.init_process_group(...) first, or leave .fullsync() out",
            )
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        size = dist.get_world_size()
        if size == 1:
            yield from self.datapipe
            return
        # The ranks ask each other once more than they give items, wherever each of them stops.
        self._ahead = ahead = LookAhead(_Agreed(self.datapipe, self._group, size), 1, keeps_full=True)
        try:
            while True:
                try:
                    item = ahead.get(self.timeout)
                except StopIteration:
                    return
                except TimeoutError as error:
                    raise self._too_slow() from error
                yield item
                del item
        finally:
            ahead.close()

    def _too_slow(self) -> StallError:
        return StallError.at(
            f"this rank or another one made no item for {self.timeout:g} s",
            todo="look for the rank that hangs, or raise fullsync(timeout=)",
            rank=dist.get_rank(),
        )

    def is_replicable(self) -> bool:
        """Return False: ranks communicate from their main processes."""
        return False

    def reset(self) -> None:
        """End the iteration before: finish its pending exchange with the ranks."""
        if not self._ends_within(self.timeout):
            raise self._too_slow()
        self._ahead = None

    def pause(self) -> None:
        """Make nothing more; returns when the item under way is there."""
        if self._ahead is not None and not self._ahead.pause(self.timeout):
            raise self._too_slow()

    def shutdown(self) -> None:
        """End the thread; one that waits for a missing rank ends with the process."""
        self._ends_within(min(_END_S, self.timeout))
        self._ahead = None

    def _ends_within(self, timeout: float) -> bool:
        if self._ahead is None:
            return True
        self._ahead.close()
        return self._ahead.join(timeout)

    def __del__(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


_TIMEOUT_S = 30 * 60


class DistributedReadingService(ReadingServiceInterface):
    """Shards, seeds and synchronises the pipe over torch.distributed's ranks.

    All ranks get equal seeds. A ``.fullsync()`` is put at the end of the pipe unless it has one: every rank yields as
    many items as the rank with fewest. `MultiProcessingReadingService` shards over ranks by itself, and drops nothing.
    A rank waits `timeout` seconds for the others.
    """

    def __init__(self, timeout: float = _TIMEOUT_S) -> None:
        if not dist.is_available():
            raise LoaderError.at(
                "torch.distributed is not in this build of torch", todo="install one that has it"
            )
        self._timeout = timeout
        self._rank = 0
        self._pipe: object = None
        self._group: Any = None

    def initialize(self, datapipe: Any) -> Any:
        """Return this rank's part of the pipe, in step with the others."""
        if not dist.is_initialized():
            raise LoaderError.at(
                "torch.distributed is not initialized",
                todo="call torch.distributed.init_process_group(...) first",
            )
        self._rank = dist.get_rank()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        apply_sharding(datapipe, dist.get_world_size(), self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        self._pipe = datapipe if isinstance(datapipe, FullSync) else FullSync(datapipe, self._timeout)
        return self._pipe

    def initialize_iteration(
        self,
        seed_generator: Any,
        iter_reset_fn: ResetFunction | None = None,  # noqa: ARG002 - of the interface
    ) -> None:
        """Take rank 0's seed, and seed the pipe by it."""
        seed_generator.seed(dist_share_seed(seed_generator.generate_shared_seed(), self._group))
        set_graph_random_seed(self._pipe, seed_generator.spawn(self._rank, inplace=True))

    def finalize(self) -> None:
        """End the group of this service."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


class ShardingRoundRobinDispatcher(IterDataPipe[Any]):
    """Marks that the pipes before it run once, in a separate process.

    `MultiProcessingReadingService` starts that process. Takes and yields any items; worker w of n gets items w, w + n,
    w + 2n and so on. Without worker processes it yields its input. The only `sharding_group_filter` is
    ``SHARDING_PRIORITIES.MULTIPROCESSING``.

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
