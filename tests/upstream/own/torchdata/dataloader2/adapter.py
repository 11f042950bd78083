from torchdata_ais.dataloader2.adapter import Adapter, CacheTimeout, Shuffle
