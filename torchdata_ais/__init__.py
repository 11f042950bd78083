"""Stream WebDataset shards from NVIDIA AIStore into PyTorch training.

Importing this package registers its stages as methods of every torch `IterDataPipe`::

    AISSourceLister("ais://pets").shuffle().load_tar().group_samples().decode("torchrgb8", size=224)

What drives a pipe (`MultiProcessingReadingService`) is loaded on first use, so that torchdata is imported
only by those who use its DataLoader2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata_ais import errors
from torchdata_ais.errors import AISError
from torchdata_ais.pipes import (
    AISFileLoader,
    AISObjectLoader,
    AISSourceLister,
    Batcher,
    SampleDecoder,
    Shuffler,
    TarSampleGrouper,
    TupleMaker,
)
from torchdata_ais.samples import Sample
from torchdata_ais.store import Retry, StoreOptions
from torchdata_ais.urls import MemberPath, ObjectURL, object_url

if TYPE_CHECKING:
    from torchdata_ais.loaders import MultiProcessingReadingService
    from torchdata_ais.local import LocalCluster

__version__ = "0.1.0"

__all__ = [
    "AISError",
    "AISFileLoader",
    "AISObjectLoader",
    "AISSourceLister",
    "Batcher",
    "LocalCluster",
    "MemberPath",
    "MultiProcessingReadingService",
    "ObjectURL",
    "Retry",
    "Sample",
    "SampleDecoder",
    "Shuffler",
    "StoreOptions",
    "TarSampleGrouper",
    "TupleMaker",
    "__version__",
    "errors",
    "object_url",
]

_LAZY = {
    "LocalCluster": "torchdata_ais.local",
    "MultiProcessingReadingService": "torchdata_ais.loaders",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
