# First, and while this module is not whole: whoever looks for torchdata's classes finds none, and takes ours.
import torchdata_ais.dataloader2.torchdata_names
from torchdata_ais.dataloader2 import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    DataLoader2Iterator,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PauseIteration,
    ReadingServiceInterface,
    SequentialReadingService,
    communication,
)

assert torchdata_ais.dataloader2.torchdata_names.OWN
assert DataLoader2.__module__.startswith("torchdata_ais.")
