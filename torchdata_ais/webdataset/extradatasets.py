"""Where older programs look for `MockDataset`."""

from __future__ import annotations

from typing import NoReturn

from torchdata_ais.webdataset.left_out import missing
from torchdata_ais.webdataset.mix import MockDataset

__all__ = ["MockDataset"]


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
