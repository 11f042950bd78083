"""The methods of a pipe that the loader calls besides those of torch: any pipe of a graph may have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class EpochListener(Protocol):
    """A pipe that is told of each epoch before its first item."""

    def _ais_reset(self, *, epoch: int, extras: Any) -> None:
        """Take the number of the epoch, and what was sent to this worker for it."""


@runtime_checkable
class EnvelopeSender(Protocol):
    """A pipe that, as the last one of a worker, sends something along with its items."""

    def _ais_envelope(self) -> Any:
        """Return what goes with the item just made, or after the last one; None for nothing."""


def tell_pipes(pipes: Iterable[Any], epoch: int, extras: Any) -> None:
    """Tell the pipes that listen."""
    for pipe in pipes:
        if isinstance(pipe, EpochListener):
            pipe._ais_reset(epoch=epoch, extras=extras)
