"""Adapters: what `DataLoader2` does to a pipe before it runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from torchdata_ais.dataloader2.own.graph import list_dps
from torchdata_ais.errors import UsageError
from torchdata_ais.stage.datapipes import apply_shuffle_settings, traverse_dps


class Adapter(ABC):
    """Base of adapters: functions of a pipe that return it, changed, or another one."""

    @abstractmethod
    def __call__(self, datapipe: Any) -> Any:
        """Return the pipe to run."""


class Shuffle(Adapter):
    """Turns all shuffling of a pipe on or off.

    Args:
        enable: True turns it on, and puts a ``.shuffle()`` at the end of a pipe that has none; False turns it off;
            None changes nothing.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2 import DataLoader2
        >>> list(DataLoader2(IterableWrapper(range(5)).shuffle(), Shuffle(False)))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, enable: bool | None = True) -> None:
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        """Return the pipe, set so."""
        return apply_shuffle_settings(datapipe, shuffle=self.enable)


@runtime_checkable
class _Waits(Protocol):
    def set_timeout(self, timeout: float) -> None: ...


class CacheTimeout(Adapter):
    """Sets how long, in seconds, pipes wait for a file that another process is putting into a cache.

    Told are the pipes that have a method ``set_timeout``, as torchdata's ``end_caching`` has.

    Args:
        timeout: Seconds.

    Raises:
        UsageError: No `timeout`.
    """

    def __init__(self, timeout: float | None = None) -> None:
        if timeout is None:
            raise UsageError.at("CacheTimeout was given no timeout", todo="pass seconds: CacheTimeout(600)")
        self.timeout = timeout

    def __call__(self, datapipe: Any) -> Any:
        """Return the pipe, set so."""
        for pipe in list_dps(traverse_dps(datapipe)):
            if isinstance(pipe, _Waits):
                pipe.set_timeout(self.timeout)
        return datapipe
