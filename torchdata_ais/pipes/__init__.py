"""The stages: one `IterDataPipe` a file, each a thin shell over the rooms below.

Importing this package registers the functional names (``.list_ais()``, ``.load_tar()``, ...).
"""

from torchdata_ais.pipes.batched import Batcher
from torchdata_ais.pipes.decode import SampleDecoder
from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.load_objects import AISObjectLoader
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.pipes.shuffled import Shuffler
from torchdata_ais.pipes.to_tuple import TupleMaker

__all__ = [
    "AISFileLoader",
    "AISObjectLoader",
    "AISSourceLister",
    "Batcher",
    "SampleDecoder",
    "Shuffler",
    "TarSampleGrouper",
    "TupleMaker",
]
