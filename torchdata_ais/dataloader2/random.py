"""Where the seeds of an epoch come from: torchdata's class, or ours, which draws the same."""

from torchdata_ais.dataloader2.torchdata_names import SeedGenerator, dist_share_seed

__all__ = ["SeedGenerator", "dist_share_seed"]
