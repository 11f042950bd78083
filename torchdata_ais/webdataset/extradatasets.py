"""`MockDataset` under webdataset's module name."""

from __future__ import annotations

from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.webdataset.mix import MockDataset

__all__ = ["MockDataset"]


__getattr__ = explaining(__name__)
