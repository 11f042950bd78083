"""pytest plugin: torchdata's tests meet our reading service under the name of its own.

With ``TORCHDATA_OWN`` set, `own/` stands before the installed torchdata: they meet all that is ours.
"""

from __future__ import annotations

import os

from outcomes import pytest_collection_finish, pytest_runtest_logreport

__all__ = ["pytest_collection_finish", "pytest_configure", "pytest_runtest_logreport"]


def pytest_configure() -> None:
    from torchdata_ais.dataloader2 import MultiProcessingReadingService

    import torchdata.dataloader2  # isort: skip

    if os.environ.get("TORCHDATA_OWN"):
        assert torchdata.dataloader2.MultiProcessingReadingService is MultiProcessingReadingService
        return

    import torchdata.dataloader2.reading_service  # isort: skip

    for module in (torchdata.dataloader2, torchdata.dataloader2.reading_service):
        assert module.MultiProcessingReadingService is not MultiProcessingReadingService
        module.MultiProcessingReadingService = MultiProcessingReadingService
