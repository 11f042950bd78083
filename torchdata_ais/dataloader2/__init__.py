"""torchdata's DataLoader2 and the reading services for it: the only room that imports torchdata.

`MultiProcessingReadingService` is this package's, the rest is torchdata's own. Names are imported on first use, with
torchdata: what needs none of them works where it is not installed, or has no DataLoader2 (0.10 and later).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchdata_ais.lazy import lazy_names

if TYPE_CHECKING:
    from torchdata_ais.dataloader2.reading_service import MultiProcessingReadingService
    from torchdata_ais.dataloader2.torchdata_names import (
        DataLoader2,
        DistributedReadingService,
        InProcessReadingService,
        SequentialReadingService,
    )

__all__ = [
    "DataLoader2",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "SequentialReadingService",
]

_HOMES = dict.fromkeys(__all__, "torchdata_ais.dataloader2.torchdata_names")
_HOMES["MultiProcessingReadingService"] = "torchdata_ais.dataloader2.reading_service"

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
