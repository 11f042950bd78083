"""`InProcessReadingService`: a pipe that runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata_ais.dataloader2.own.interface import (
    LimitFunction,
    ReadingServiceInterface,
    ResetFunction,
    WorkerInfo,
)
from torchdata_ais.dataloader2.own.pausing import pause, resume
from torchdata_ais.dataloader2.own.prefetch import Prefetcher
from torchdata_ais.dataloader2.own.seeding import set_graph_random_seed
from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES, apply_sharding


class InProcessReadingService(ReadingServiceInterface):
    """Runs the pipe in this process, and seeds it for each epoch.

    Order:
        That of the pipe; it depends on the loader's seed and the epoch.

    Memory:
        `prefetch_cnt` items, and what the pipe holds.

    Args:
        prefetch_cnt: Items that a thread makes ahead.
        init_fn: Called once with the pipe and its `WorkerInfo`; returns the pipe.
        reset_fn: Called for each epoch with the seeded pipe, `WorkerInfo` and the seed generator; returns the pipe.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2 import DataLoader2
        >>> with DataLoader2(IterableWrapper(range(3)), reading_service=InProcessReadingService()) as loader:
        ...     list(loader)
        [0, 1, 2]
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
        reset_fn: Callable[[Any, WorkerInfo, Any], Any] | None = None,
    ) -> None:
        self._prefetch_cnt = prefetch_cnt
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._end_datapipe: Any = None

    def initialize(self, datapipe: Any) -> Any:
        """Return the pipe, made by `init_fn`, with a thread behind it if items are made ahead."""
        info = WorkerInfo(1, 0)
        apply_sharding(datapipe, info.num_workers, info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING)
        if self._init_fn is not None:
            datapipe = self._init_fn(datapipe, info)
        if self._prefetch_cnt > 0:
            datapipe = Prefetcher(datapipe, self._prefetch_cnt)
        self._end_datapipe = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: Any, iter_reset_fn: ResetFunction | None = None
    ) -> ResetFunction | None:
        """Seed the pipe."""
        set_graph_random_seed(self._end_datapipe, seed_generator)
        if iter_reset_fn is None and self._reset_fn is None:
            return None

        def reset(pipe: Any) -> Any:
            if iter_reset_fn is not None:
                pipe = iter_reset_fn(pipe)
            if self._reset_fn is not None:
                pipe = self._reset_fn(pipe, WorkerInfo(1, 0), seed_generator)
            self._end_datapipe = pipe
            return pipe

        return reset

    def _pause(self, pause_fn: ResetFunction | None = None) -> ResetFunction | None:
        pause(self._end_datapipe)
        return pause_fn

    def _resume(self, resume_fn: ResetFunction | None = None) -> ResetFunction | None:
        resume(self._end_datapipe)
        return resume_fn

    def _limit(self, num_batches: int | None, limit_fn: LimitFunction | None = None) -> None:
        if limit_fn is not None:
            limit_fn(self._end_datapipe, num_batches)
