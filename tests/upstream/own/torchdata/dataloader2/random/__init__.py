from torchdata_ais.dataloader2.random import SeedGenerator, dist_share_seed
