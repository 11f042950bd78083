"""Stream WebDataset shards from NVIDIA AIStore into PyTorch training.

Importing this package registers its stages as methods of every torch `IterDataPipe`::

    AISSourceLister("ais://pets").shuffle().load_tar().group_samples().decode("torchrgb8", size=224)

What drives a pipe (`MultiProcessingReadingService`) is loaded on first use, so that torchdata is imported
only by those who use its DataLoader2.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from typing import TYPE_CHECKING, Any

if _os.path.basename(_sys.argv[0] if _sys.argv else "") == "torchdata-ais":  # noqa: PTH119 - the command, importing
    from torchdata_ais._interrupt import quit_at_once

    quit_at_once()

from torchdata_ais import errors
from torchdata_ais.errors import AISError
from torchdata_ais.observe import draw as _draw  # noqa: F401 - so that notebooks show pipes as tables
from torchdata_ais.pipes import (
    AISFileLoader,
    AISObjectLoader,
    AISSourceLister,
    Associator,
    Batcher,
    DictMapper,
    EpochSetter,
    InfoPrinter,
    KeyExtractor,
    KeyRenamer,
    LengthSetter,
    ListBatcher,
    NonEmpty,
    PipeThrough,
    RandomMix,
    Renamer,
    Repeater,
    Resampler,
    RoundRobin,
    SampleDecoder,
    SampleMapper,
    Selector,
    Shuffler,
    SingleNodeOnly,
    Slicer,
    SplitByNode,
    SplitByWorker,
    StreamDecoder,
    Subsampler,
    TarSampleGrouper,
    TupleMaker,
    TupleMapper,
    Unbatcher,
    Unlister,
)
from torchdata_ais.samples import Sample
from torchdata_ais.store import Retry, StoreOptions
from torchdata_ais.urls import MemberPath, ObjectURL, expand_object_urls, object_url

if TYPE_CHECKING:
    from torchdata_ais.display import contact_sheet, display_loader_images, display_shard_images
    from torchdata_ais.dsort import run_dsort
    from torchdata_ais.etl import ensure_etl, shard_etl
    from torchdata_ais.index import SampleIndex
    from torchdata_ais.loaders import (
        MultiProcessingReadingService,
        ais_loader,
        as_dataset,
        draw,
        explain,
        load_state_dict,
        merge_states,
        mermaid,
        state_dict,
        state_from_json,
        state_to_json,
        stats,
    )
    from torchdata_ais.local import LocalCluster
    from torchdata_ais.writing import ShardWriter, TarWriter, convert

__version__ = "0.1.0"

__all__ = [
    "AISError",
    "AISFileLoader",
    "AISObjectLoader",
    "AISSourceLister",
    "Associator",
    "Batcher",
    "DictMapper",
    "EpochSetter",
    "InfoPrinter",
    "KeyExtractor",
    "KeyRenamer",
    "LengthSetter",
    "ListBatcher",
    "LocalCluster",
    "MemberPath",
    "MultiProcessingReadingService",
    "NonEmpty",
    "ObjectURL",
    "PipeThrough",
    "RandomMix",
    "Renamer",
    "Repeater",
    "Resampler",
    "Retry",
    "RoundRobin",
    "Sample",
    "SampleDecoder",
    "SampleIndex",
    "SampleMapper",
    "Selector",
    "ShardWriter",
    "Shuffler",
    "SingleNodeOnly",
    "Slicer",
    "SplitByNode",
    "SplitByWorker",
    "StoreOptions",
    "StreamDecoder",
    "Subsampler",
    "TarSampleGrouper",
    "TarWriter",
    "TupleMaker",
    "TupleMapper",
    "Unbatcher",
    "Unlister",
    "__version__",
    "ais_loader",
    "as_dataset",
    "contact_sheet",
    "convert",
    "display_loader_images",
    "display_shard_images",
    "draw",
    "ensure_etl",
    "errors",
    "expand_object_urls",
    "explain",
    "load_state_dict",
    "merge_states",
    "mermaid",
    "object_url",
    "run_dsort",
    "shard_etl",
    "state_dict",
    "state_from_json",
    "state_to_json",
    "stats",
]

_LAZY = {
    "LocalCluster": "torchdata_ais.local",
    "MultiProcessingReadingService": "torchdata_ais.loaders",
    "SampleIndex": "torchdata_ais.index",
    "ShardWriter": "torchdata_ais.writing",
    "TarWriter": "torchdata_ais.writing",
    "ais_loader": "torchdata_ais.loaders",
    "as_dataset": "torchdata_ais.loaders",
    "contact_sheet": "torchdata_ais.display",
    "convert": "torchdata_ais.writing",
    "display_loader_images": "torchdata_ais.display",
    "display_shard_images": "torchdata_ais.display",
    "draw": "torchdata_ais.loaders",
    "ensure_etl": "torchdata_ais.etl",
    "explain": "torchdata_ais.loaders",
    "load_state_dict": "torchdata_ais.loaders",
    "merge_states": "torchdata_ais.loaders",
    "mermaid": "torchdata_ais.loaders",
    "run_dsort": "torchdata_ais.dsort",
    "shard_etl": "torchdata_ais.etl",
    "state_dict": "torchdata_ais.loaders",
    "state_from_json": "torchdata_ais.loaders",
    "state_to_json": "torchdata_ais.loaders",
    "stats": "torchdata_ais.loaders",
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
