"""Seed generator of an epoch: torchdata's class, or an equal one of ours."""

from torchdata_ais.dataloader2.torchdata_names import SeedGenerator, dist_share_seed

__all__ = ["SeedGenerator", "dist_share_seed"]
