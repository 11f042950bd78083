"""The only module that imports torchdata: what this package needs of DataLoader2, in one place.

Importing torchdata's ``dataloader2`` shows a deprecation banner once per process. Whoever comes here has chosen
DataLoader2 already, so the banner is caught.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r"\s*#+\s*WARNING!\s*The 'datapipes', 'dataloader2'")
    from torchdata.dataloader2 import (
        DataLoader2,
        DistributedReadingService,
        InProcessReadingService,
        SequentialReadingService,
    )
    from torchdata.dataloader2 import MultiProcessingReadingService as UpstreamService
    from torchdata.dataloader2.graph import (
        replace_dp,
        set_graph_random_seed,
    )
    from torchdata.dataloader2.graph._serialization import attach_wrapper, extract_wrapper
    from torchdata.dataloader2.graph.utils import _find_replicable_branches as find_replicable_branches
    from torchdata.dataloader2.random import SeedGenerator
    from torchdata.dataloader2.utils import WorkerInfo
    from torchdata.dataloader2.utils.dispatch import find_lca_round_robin_sharding_dp as find_dispatched
    from torchdata.dataloader2.utils.worker import process_reset_fn
    from torchdata.datapipes.iter import FullSync, PinMemory, Prefetcher

__all__ = [
    "DataLoader2",
    "DistributedReadingService",
    "FullSync",
    "InProcessReadingService",
    "PinMemory",
    "Prefetcher",
    "SeedGenerator",
    "SequentialReadingService",
    "UpstreamService",
    "WorkerInfo",
    "attach_wrapper",
    "extract_wrapper",
    "find_dispatched",
    "find_replicable_branches",
    "process_reset_fn",
    "replace_dp",
    "set_graph_random_seed",
]
