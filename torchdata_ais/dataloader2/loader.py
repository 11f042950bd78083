"""torchdata's `DataLoader2`, which says what to do about pipes that it cannot copy."""

from __future__ import annotations

from typing import Any

from torchdata_ais.dataloader2 import torchdata_names
from torchdata_ais.stage.sending import explained

__all__ = ["DataLoader2"]


class DataLoader2(torchdata_names.DataLoader2[Any]):  # type: ignore[misc]
    """torchdata's own.

    Raises:
        UsageError: A function in the pipe that cannot be pickled: DataLoader2 makes a copy that way.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        with explained():
            super().__init__(*arguments, **named)
