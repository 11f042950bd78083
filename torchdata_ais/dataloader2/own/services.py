"""Reading services that start no process: in this one, over ranks, one after another; and the base of ours."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchdata_ais.dataloader2.own.fullsync import FullSync
from torchdata_ais.dataloader2.own.interface import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
    ResetFunction,
    WorkerInfo,
)
from torchdata_ais.dataloader2.own.pausing import pause, resume
from torchdata_ais.dataloader2.own.prefetch import Prefetcher
from torchdata_ais.dataloader2.own.random import dist_share_seed
from torchdata_ais.dataloader2.own.seeding import set_graph_random_seed
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES, apply_sharding

_TIMEOUT_S = 30 * 60

LimitFunction = Callable[[Any, "int | None"], Any]


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

    def _limit(self, num_batches: int | None, limit_fn: LimitFunction | None = None) -> LimitFunction | None:
        if limit_fn is not None:
            limit_fn(self._end_datapipe, num_batches)
        return None


class DistributedReadingService(ReadingServiceInterface):
    """Shares the pipe out over the ranks of torch.distributed, seeds them alike, and keeps them in step.

    A ``.fullsync()`` is put at the end of the pipe unless one is there: every rank gives as many items as the rank
    that has fewest. `MultiProcessingReadingService` shares out over ranks by itself, and drops nothing.

    Args:
        timeout: How long, in seconds, a rank waits for the others.

    Raises:
        LoaderError: torch.distributed is not there or was not begun.
    """

    def __init__(self, timeout: float = _TIMEOUT_S) -> None:
        if not dist.is_available():
            raise LoaderError.at(
                "torch.distributed is not in this build of torch", todo="install one that has it"
            )
        self._timeout = timeout
        self._rank = 0
        self._pipe: Any = None
        self._group: Any = None

    def initialize(self, datapipe: Any) -> Any:
        """Return this rank's part of the pipe, in step with the others."""
        if not dist.is_initialized():
            raise LoaderError.at(
                "torch.distributed was not begun", todo="call torch.distributed.init_process_group(...) first"
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
    ) -> ResetFunction | None:
        """Take rank 0's seed, and seed the pipe by it."""
        seed_generator.seed(dist_share_seed(seed_generator.generate_shared_seed(), self._group))
        set_graph_random_seed(self._pipe, seed_generator.spawn(self._rank, inplace=True))
        return None

    def finalize(self) -> None:
        """End the group of this service."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """Several services, one behind another: what one makes of the pipe the next one runs.

    Args:
        reading_services: First the one over ranks, then the one over processes.
    """

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        self.reading_services = reading_services

    def initialize(self, datapipe: Any) -> Any:
        """Return what the last service makes of the pipe."""
        for service in self.reading_services:
            datapipe = service.initialize(datapipe)
        return datapipe

    def finalize(self) -> None:
        """End all services, the last first."""
        for service in reversed(self.reading_services):
            service.finalize()

    def initialize_iteration(
        self, seed_generator: Any, iter_reset_fn: ResetFunction | None = None
    ) -> ResetFunction | None:
        """Begin an epoch of each; what one returns the next is given."""
        for service in self.reading_services:
            iter_reset_fn = service.initialize_iteration(
                seed_generator=seed_generator, iter_reset_fn=iter_reset_fn
            )
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        """End an epoch of each, the last first."""
        for service in reversed(self.reading_services):
            service.finalize_iteration()

    def checkpoint(self) -> bytes:
        """Return the states of all that have one."""
        states = []
        for service in self.reading_services:
            if isinstance(service, CheckpointableReadingServiceInterface):
                states.append(service.checkpoint())
            else:
                states.append(b"")
                warnings.warn(f"{type(service).__name__} has no checkpoint: it begins anew", stacklevel=2)
        return pickle.dumps(states)

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Return the pipe, with each service standing where its state was taken."""
        states = pickle.loads(serialized_state)  # noqa: S301 - of `checkpoint`; see DataLoader2.load_state_dict
        for service, state in zip(self.reading_services, states, strict=True):
            if isinstance(service, CheckpointableReadingServiceInterface):
                datapipe = service.restore(datapipe, state)
            else:
                datapipe = service.initialize(datapipe)
                warnings.warn(f"{type(service).__name__} has no checkpoint: it begins anew", stacklevel=2)
        return datapipe

    def _pause(self, pause_fn: ResetFunction | None = None) -> ResetFunction | None:
        for service in self.reading_services:
            if hasattr(service, "_pause"):
                pause_fn = service._pause(pause_fn)
        return pause_fn

    def _resume(self, resume_fn: ResetFunction | None = None) -> ResetFunction | None:
        for service in self.reading_services:
            if hasattr(service, "_resume"):
                resume_fn = service._resume(resume_fn)
        return resume_fn

    def _limit(self, num_batches: int | None, limit_fn: LimitFunction | None = None) -> LimitFunction | None:
        for service in self.reading_services:
            if hasattr(service, "_limit"):
                limit_fn = service._limit(num_batches, limit_fn)
        return limit_fn


class WorkersReadingService(ReadingServiceInterface):
    """What `MultiProcessingReadingService` stands on where torchdata has no class for that: its arguments."""

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: Callable[..., Any] | None = None,
        worker_reset_fn: Callable[..., Any] | None = None,
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context not in (None, *methods):
            raise UsageError.at(
                f"multiprocessing_context={multiprocessing_context!r}",
                todo=f"use one of {', '.join(methods)}",
            )
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.main_prefetch_cnt = main_prefetch_cnt
        self.worker_init_fn = worker_init_fn
        self.worker_reset_fn = worker_reset_fn
        self._end_datapipe: Any = None
        self._mp = num_workers > 0
        self._finalized = False
