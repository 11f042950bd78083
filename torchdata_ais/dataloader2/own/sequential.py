"""`SequentialReadingService`: several services, one behind another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from torchdata_ais.dataloader2.own.interface import (
    CheckpointableReadingServiceInterface,
    LimitFunction,
    ReadingServiceInterface,
    ResetFunction,
)


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
        return msgspec.msgpack.encode(states)

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Return the pipe, with each service standing where its state was taken."""
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
        self, order: str, function: Callable[..., Any] | None, *arguments: Any
    ) -> Callable[..., Any] | None:
        """Give an order to each that knows it; what one returns the next is given."""
        for service in self.reading_services:
            if hasattr(service, order):
                function = getattr(service, order)(*arguments, function)
        return function
