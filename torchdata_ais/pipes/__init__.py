"""The stages: one `IterDataPipe` a file, or a few of a kind, each a thin shell over the rooms below.

Importing this package registers the functional names (``.list_ais()``, ``.load_tar()``, ...).
"""

from torchdata_ais.pipes.batched import Batcher, ListBatcher, Unbatcher, Unlister
from torchdata_ais.pipes.decode import SampleDecoder, StreamDecoder
from torchdata_ais.pipes.fields import KeyExtractor, KeyRenamer, Renamer, TupleMaker
from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.load_objects import AISObjectLoader
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.pipes.mapped import Associator, DictMapper, SampleMapper, TupleMapper
from torchdata_ais.pipes.mixed import RandomMix, RoundRobin
from torchdata_ais.pipes.packed import Bucketer, Packer
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.pipes.repeated import EpochSetter, Repeater
from torchdata_ais.pipes.resampled import Resampler, SplitByNode, SplitByWorker
from torchdata_ais.pipes.select import Selector, Slicer, Subsampler
from torchdata_ais.pipes.shuffled import Shuffler
from torchdata_ais.pipes.unchanged import InfoPrinter, LengthSetter, NonEmpty, PipeThrough, SingleNodeOnly

__all__ = [
    "AISFileLoader",
    "AISObjectLoader",
    "AISSampleReader",
    "AISSourceLister",
    "Associator",
    "Batcher",
    "Bucketer",
    "DictMapper",
    "EpochSetter",
    "InfoPrinter",
    "KeyExtractor",
    "KeyRenamer",
    "LengthSetter",
    "ListBatcher",
    "NonEmpty",
    "Packer",
    "PipeThrough",
    "RandomMix",
    "Renamer",
    "Repeater",
    "Resampler",
    "RoundRobin",
    "SampleDecoder",
    "SampleMapper",
    "Selector",
    "Shuffler",
    "SingleNodeOnly",
    "Slicer",
    "SplitByNode",
    "SplitByWorker",
    "StreamDecoder",
    "Subsampler",
    "TarSampleGrouper",
    "TupleMaker",
    "TupleMapper",
    "Unbatcher",
    "Unlister",
]
