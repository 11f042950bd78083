"""Adapters of `DataLoader2`: torchdata's, or ours of the same interface."""

from torchdata_ais.dataloader2.torchdata_names import Adapter, CacheTimeout, Shuffle

__all__ = ["Adapter", "CacheTimeout", "Shuffle"]
