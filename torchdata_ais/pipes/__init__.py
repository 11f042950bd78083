"""The stages: one `IterDataPipe` a file, or a few of a kind, each a thin shell over the rooms below.

Importing this package registers the functional names (``.list_ais()``, ``.load_tar()``, ...).
"""

from torchdata_ais.pipes.associate import Associator
from torchdata_ais.pipes.batched import Batcher, Unbatcher
from torchdata_ais.pipes.decode import SampleDecoder
from torchdata_ais.pipes.extract_keys import KeyExtractor
from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.listed import ListBatcher, Unlister
from torchdata_ais.pipes.load_objects import AISObjectLoader
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.pipes.mapped import DictMapper, SampleMapper, TupleMapper
from torchdata_ais.pipes.mixed import RandomMix, RoundRobin
from torchdata_ais.pipes.packed import Bucketer, Packer
from torchdata_ais.pipes.pipe_through import PipeThrough
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.pipes.rename import KeyRenamer, Renamer
from torchdata_ais.pipes.repeated import EpochSetter, Repeater
from torchdata_ais.pipes.resampled import Resampler
from torchdata_ais.pipes.select import Selector, Slicer, Subsampler
from torchdata_ais.pipes.shuffled import Shuffler
from torchdata_ais.pipes.split_by_node import SplitByNode, SplitByWorker
from torchdata_ais.pipes.to_tuple import TupleMaker
from torchdata_ais.pipes.unchanged import InfoPrinter, LengthSetter, NonEmpty, SingleNodeOnly
from torchdata_ais.pipes.xdecode import StreamDecoder

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
