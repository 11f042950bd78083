"""`.pin_memory`: items made ready for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchdata_ais.dataloader2.own.prefetch import Prefetcher
from torchdata_ais.errors import UsageError


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """Return `data` with its tensors, and whatever else has a method ``pin_memory``, in page-locked memory."""
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return made_like(data, {name: pin_memory_fn(value, device) for name, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(pin_memory_fn(value, device) for value in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return made_like(data, [pin_memory_fn(value, device) for value in data])
    return data


def made_like(data: Any, values: Any) -> Any:
    """Return `values` as what `data` is, or as they are if such a type is made of something else."""
    try:
        return type(data)(values)
    except TypeError:
        return values


class PinMemory(Prefetcher):
    """Puts the tensors of items into page-locked memory, two items ahead: ``pipe.pin_memory()``.

    It stays in the main process. Takes and yields any items, in their order.

    Memory:
        Two items, and one under way.

    Args:
        source_datapipe: The pipe.
        device: The GPU that the thread works for; None is the present one.
        pin_memory_fn: ``pin_memory_fn(item, device)`` returns the item, pinned.

    Raises:
        UsageError: There is no GPU.
    """

    def __init__(
        self,
        source_datapipe: Any,
        device: Any = None,
        pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn,
    ) -> None:
        if not torch.cuda.is_available():
            raise UsageError.at("pin_memory needs a GPU, and torch sees none", todo="leave .pin_memory() out")
        super().__init__(source_datapipe, buffer_size=2)
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def is_replicable(self) -> bool:
        """Return False: no worker process is to start CUDA."""
        return False

    def _taken(self) -> Iterable[Any]:
        return _Pinned(self.source_datapipe, self.pin_memory_fn, self.device)


class _Pinned:
    def __init__(self, items: Any, pin: Callable[[Any, Any], Any], device: Any) -> None:
        self._items, self._pin, self._device = items, pin, device

    def __iter__(self) -> Iterator[Any]:
        torch.cuda.set_device(self._device)  # of this thread
        for item in self._items:
            yield self._pin(item, self._device)
