# What torch has, and the four of ours; the rest of torchdata's pipes are not here.
from torch.utils.data.datapipes.iter import *
from torch.utils.data import IterDataPipe

from torchdata_ais.dataloader2 import FullSync, PinMemory, Prefetcher, ShardingRoundRobinDispatcher
