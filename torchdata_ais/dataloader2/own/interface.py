"""What a reading service is for `DataLoader2`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ResetFunction = Callable[[Any], Any]
LimitFunction = Callable[[Any, "int | None"], Any]


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this is.

    Attributes:
        num_workers: How many there are.
        worker_id: This one, from 0.
    """

    num_workers: int
    worker_id: int


class ReadingServiceInterface(ABC):
    """Base of reading services, which say where and how the pipe of a `DataLoader2` runs.

    The loader works with a copy, so a service pickles until `initialize` is called.
    """

    @abstractmethod
    def initialize(self, datapipe: Any) -> Any:
        """Return the pipe that the main process is to iterate. Called once, before the first epoch."""

    def finalize(self) -> None:  # noqa: B027 - who starts nothing has nothing to end
        """Give back all that was taken. Called when the loader is shut down, and when the service is forgotten."""

    def initialize_iteration(
        self,
        seed_generator: Any,  # noqa: ARG002 - for those who override it
        iter_reset_fn: ResetFunction | None = None,  # noqa: ARG002
    ) -> ResetFunction | None:
        """Begin an epoch.

        Args:
            seed_generator: Where all seeds of the epoch come from.
            iter_reset_fn: What a service before this one wants done to the pipe where it runs.

        Returns:
            What is to be done to the pipe further on; None for nothing.
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
    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Return the pipe to iterate, standing where `serialized_state` was taken. Called in place of `initialize`."""
