"""The only module that touches torch's DataPipes: what this package needs of them, in one place.

torch core ships the base class, its registry of functional names and the stages imported here; torchdata's classes of
the same name are the same objects. Where torch has none of that, ours stand in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "OWN",
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

OWN = False
"""Whether these are ours, because torch has none."""

try:
    from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe
    from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, IterableWrapper, Mapper, Shuffler
    from torch.utils.data.datapipes.iter.combining import _ChildDataPipe, _ContainerTemplate
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    from torch.utils.data.datapipes.iter.sharding import ShardingFilterIterDataPipe as ShardingFilter
    from torch.utils.data.graph import traverse_dps
    from torch.utils.data.graph_settings import apply_sharding, apply_shuffle_settings
except ImportError:
    OWN = True
    if not TYPE_CHECKING:
        from torchdata_ais.stage.own.base import IterDataPipe, MapDataPipe
        from torchdata_ais.stage.own.graph import (
            SHARDING_PRIORITIES,
            apply_sharding,
            apply_shuffle_settings,
            traverse_dps,
        )
        from torchdata_ais.stage.own.pipes import (
            Batcher,
            Collator,
            Filter,
            IterableWrapper,
            Mapper,
            ShardingFilter,
            Shuffler,
        )


def is_fork(pipe: object) -> bool:
    """Return whether `pipe` is a branch of a fork or a demultiplexer, or what gives its branches their items."""
    return not OWN and isinstance(pipe, (_ChildDataPipe, _ContainerTemplate))
