"""What drives a pipe: the reading service for DataLoader2.

Names are imported on first use, so that importing this package imports neither torch nor torchdata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata_ais.loaders.reading_service import MultiProcessingReadingService

__all__ = ["MultiProcessingReadingService"]

_HOMES = {"MultiProcessingReadingService": "torchdata_ais.loaders.reading_service"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
