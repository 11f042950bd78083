"""Reading services without workers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from torchdata_ais.dataloader2.own.graph import set_graph_random_seed
from torchdata_ais.dataloader2.own.prefetch import Prefetcher, pause, resume
from torchdata_ais.pipes.base.torch_pipes import SHARDING_PRIORITIES, apply_sharding

ResetFunction = Callable[[Any], Any]
LimitFunction = Callable[[Any, "int | None"], Any]


@dataclass(frozen=True)
class WorkerInfo:
    """Number of this worker, from 0, and of all workers."""

    num_workers: int
    worker_id: int


class ReadingServiceInterface(ABC):
    """Base of reading services, which run the pipe of a `DataLoader2`.

    The loader works with a copy, so a service pickles until `initialize` is called.
    """

    @abstractmethod
    def initialize(self, datapipe: object) -> Any:
        """Return the pipe for the main process; called once, before epoch 0."""

    def finalize(self) -> None:  # noqa: B027 - who starts nothing has nothing to end
        """Release all resources, at shutdown or when the service is forgotten."""

    def initialize_iteration(
        self,
        seed_generator: object,  # noqa: ARG002 - for those who override it
        iter_reset_fn: ResetFunction | None = None,  # noqa: ARG002
    ) -> ResetFunction | None:
        """Start an epoch, of which `seed_generator` is the source of all seeds.

        `iter_reset_fn` is a function of the service before this one, for the pipe where it runs. Returns one for the
        services after this one, or None.
        """
        return None

    def finalize_iteration(self) -> None:  # noqa: B027
        """End an epoch. Called when its last item was given."""

    def __del__(self) -> None:
        try:  # noqa: SIM105 - at the end of the program contextlib may be gone
            self.finalize()
        except AttributeError:  # it was never whole, or modules are gone
            pass


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service that has a state."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Return the state, for `DataLoader2.state_dict`."""

    @abstractmethod
    def restore(self, datapipe: object, serialized_state: bytes) -> Any:
        """Return the pipe, resumed; called in place of `initialize`."""


class InProcessReadingService(ReadingServiceInterface):
    """Runs the pipe in this process, and seeds it for each epoch.

    Order:
        That of the pipe; it depends on the loader's seed and the epoch.

    Memory:
        `prefetch_cnt` items, and the memory of the pipe.

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
        init_fn: Callable[[Any, WorkerInfo], object] | None = None,
        reset_fn: Callable[[Any, WorkerInfo, Any], object] | None = None,
    ) -> None:
        self._prefetch_cnt = prefetch_cnt
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._end_datapipe: object = None

    def initialize(self, datapipe: Any) -> Any:
        """Return the pipe, made by `init_fn`, with a prefetching thread if needed."""
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

        def reset(pipe: object) -> Any:
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


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """A chain of services, ranks first: each runs the last one's pipe."""

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        self.reading_services = reading_services

    def initialize(self, datapipe: object) -> Any:
        """Return the pipe of the last service."""
        for service in self.reading_services:
            datapipe = service.initialize(datapipe)
        return datapipe

    def finalize(self) -> None:
        """End all services, the last first."""
        for service in reversed(self.reading_services):
            service.finalize()

    def initialize_iteration(
        self, seed_generator: object, iter_reset_fn: ResetFunction | None = None
    ) -> ResetFunction | None:
        """Start an epoch of each; each gets the result of the previous one."""
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
        return msgspec.msgpack.encode(states)

    def restore(self, datapipe: object, serialized_state: bytes) -> Any:
        """Return the pipe, with each service resumed at its state."""
        states = msgspec.msgpack.decode(serialized_state, type=list[bytes])
        for service, state in zip(self.reading_services, states, strict=True):
            if isinstance(service, CheckpointableReadingServiceInterface):
                datapipe = service.restore(datapipe, state)
            else:
                datapipe = service.initialize(datapipe)
                warnings.warn(f"{type(service).__name__} has no checkpoint: it begins anew", stacklevel=2)
        return datapipe

    def _pause(self, pause_fn: ResetFunction | None = None) -> ResetFunction | None:
        return self._told("_pause", pause_fn)

    def _resume(self, resume_fn: ResetFunction | None = None) -> ResetFunction | None:
        return self._told("_resume", resume_fn)

    def _limit(self, num_batches: int | None, limit_fn: LimitFunction | None = None) -> LimitFunction | None:
        return self._told("_limit", limit_fn, num_batches)

    def _told(
        self, order: str, function: Callable[..., object] | None, *arguments: object
    ) -> Callable[..., object] | None:
        """Call a method of each that has it, with the result of the previous one."""
        for service in self.reading_services:
            if hasattr(service, order):
                function = getattr(service, order)(*arguments, function)
        return function
