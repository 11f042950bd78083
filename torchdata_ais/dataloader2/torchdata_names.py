"""Names of torchdata's DataLoader2, or ours: the only import of torchdata.

torchdata 0.8 and 0.9 have them; 0.10 and later do not, and torchdata may be missing. Importing torchdata's
``dataloader2`` shows a deprecation banner once per process. A caller of this module has chosen DataLoader2 already, so
the banner is caught.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

__all__ = [
    "OWN",
    "Adapter",
    "CacheTimeout",
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "FullSync",
    "InProcessReadingService",
    "InvalidStateResetRequired",
    "NotAvailable",
    "PauseIteration",
    "PinMemory",
    "Prefetcher",
    "ReadingServiceInterface",
    "SeedGenerator",
    "SequentialReadingService",
    "ShardingRoundRobinDispatcher",
    "Shuffle",
    "TerminateRequired",
    "WorkerInfo",
    "WorkersReadingService",
    "dist_share_seed",
]

OWN = False
"""True if these names are ours, because torchdata has none."""

try:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*#+\s*WARNING!\s*The 'datapipes', 'dataloader2'")
        from torchdata.dataloader2 import (
            CheckpointableReadingServiceInterface,
            DataLoader2,
            DataLoader2Iterator,
            DistributedReadingService,
            InProcessReadingService,
            ReadingServiceInterface,
            SequentialReadingService,
        )
        from torchdata.dataloader2 import MultiProcessingReadingService as WorkersReadingService
        from torchdata.dataloader2.adapter import Adapter, CacheTimeout, Shuffle
        from torchdata.dataloader2.communication.iter import (
            InvalidStateResetRequired,
            NotAvailable,
            TerminateRequired,
        )
        from torchdata.dataloader2.error import PauseIteration
        from torchdata.dataloader2.random import SeedGenerator, dist_share_seed
        from torchdata.dataloader2.utils import WorkerInfo
        from torchdata.datapipes.iter import FullSync, PinMemory, Prefetcher, ShardingRoundRobinDispatcher
except (ImportError, OSError):  # OSError: of a library of torchdata's that is for another Python
    OWN = True
    if not TYPE_CHECKING:
        from torchdata_ais.dataloader2.own.distributed import (
            DistributedReadingService,
            FullSync,
            ShardingRoundRobinDispatcher,
        )
        from torchdata_ais.dataloader2.own.loader import (
            Adapter,
            CacheTimeout,
            DataLoader2,
            DataLoader2Iterator,
            PauseIteration,
            Shuffle,
        )
        from torchdata_ais.dataloader2.own.prefetch import (
            InvalidStateResetRequired,
            NotAvailable,
            PinMemory,
            Prefetcher,
            TerminateRequired,
        )
        from torchdata_ais.dataloader2.own.random import SeedGenerator, dist_share_seed
        from torchdata_ais.dataloader2.own.services import (
            CheckpointableReadingServiceInterface,
            InProcessReadingService,
            ReadingServiceInterface,
            SequentialReadingService,
            WorkerInfo,
        )
        from torchdata_ais.dataloader2.own.services import ReadingServiceInterface as WorkersReadingService
        from torchdata_ais.pipes.base.registry import stage

        # Here, and not in their modules: next to torchdata's own pipes these names are torchdata's.
        stage("prefetch")(Prefetcher)
        stage("pin_memory")(PinMemory)
        stage("fullsync")(FullSync)
        stage("sharding_round_robin_dispatch")(ShardingRoundRobinDispatcher)
