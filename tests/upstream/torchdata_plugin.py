"""pytest plugin: torchdata's tests meet our reading service under the name of its own."""

from __future__ import annotations

from outcomes import pytest_collection_finish, pytest_runtest_logreport

from torchdata_ais import MultiProcessingReadingService  # first: it keeps torchdata's banner away

import torchdata.dataloader2  # isort: skip
import torchdata.dataloader2.reading_service  # isort: skip

__all__ = ["pytest_collection_finish", "pytest_runtest_logreport"]

assert torchdata.dataloader2.MultiProcessingReadingService is not MultiProcessingReadingService
torchdata.dataloader2.MultiProcessingReadingService = MultiProcessingReadingService
torchdata.dataloader2.reading_service.MultiProcessingReadingService = MultiProcessingReadingService
