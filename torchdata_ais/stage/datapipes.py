"""The only module that imports torch's DataPipes: what this package needs of them, in one place.

torch core ships the base class, its registry of functional names and the stages imported here; torchdata's classes of
the same name are the same objects. Under a torch without them the import raises `MissingLibraryError`.
"""

from __future__ import annotations

import torch

from torchdata_ais.errors import MissingLibraryError
from torchdata_ais.versions import NEWEST_TORCH

try:
    from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe
    from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, IterableWrapper, Mapper, Shuffler
    from torch.utils.data.datapipes.iter.combining import _ChildDataPipe, _ContainerTemplate
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    from torch.utils.data.datapipes.iter.sharding import ShardingFilterIterDataPipe as ShardingFilter
    from torch.utils.data.graph import traverse_dps
    from torch.utils.data.graph_settings import apply_sharding, apply_shuffle_settings
except ImportError as error:
    raise MissingLibraryError.at(
        f"the installed torch {torch.__version__} has no DataPipes: {error}",
        todo=f"install a torch that has them. {NEWEST_TORCH} is the newest that was tested: "
        f'pip install "torch=={NEWEST_TORCH}.*"',
    ) from error

__all__ = [
    "SHARDING_PRIORITIES",
    "Batcher",
    "Collator",
    "Filter",
    "IterDataPipe",
    "IterableWrapper",
    "MapDataPipe",
    "Mapper",
    "ShardingFilter",
    "Shuffler",
    "apply_sharding",
    "apply_shuffle_settings",
    "is_fork",
    "traverse_dps",
]


def is_fork(pipe: object) -> bool:
    """Return whether `pipe` is a branch of a fork or a demultiplexer, or what gives its branches their items."""
    return isinstance(pipe, (_ChildDataPipe, _ContainerTemplate))
