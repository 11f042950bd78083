"""torchdata's `DataLoader2`, which says what to do about pipes that it cannot copy."""

from __future__ import annotations

from typing import Any

from torchdata_ais.arguments import checked
from torchdata_ais.dataloader2 import torchdata_names
from torchdata_ais.errors import UsageError
from torchdata_ais.stage.sending import explained


class DataLoader2(torchdata_names.DataLoader2[Any]):  # type: ignore[misc]
    """torchdata's own.

    Raises:
        UsageError: Arguments that it does not take. A function in the pipe that cannot be pickled: DataLoader2 makes a
            copy that way.
    """

    @checked
    def __init__(self, datapipe: Any, datapipe_adapter_fn: Any = None, reading_service: Any = None) -> None:
        if any(
            isinstance(one, torchdata_names.ReadingServiceInterface)
            for one in (datapipe, datapipe_adapter_fn)
        ):
            raise UsageError.at(
                "DataLoader2 was given a reading service in another place than its own",
                todo="write DataLoader2(pipe, reading_service=service)",
            )
        with explained():
            super().__init__(datapipe, datapipe_adapter_fn, reading_service)
