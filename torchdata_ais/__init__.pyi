"""The public names, and where they are: read by type checkers, and by the package itself to load them on first use."""

from . import errors as errors
from .codecs import CenterCrop as CenterCrop
from .codecs import Decoder as Decoder
from .codecs import Normalize as Normalize
from .codecs import RandomResizedCrop as RandomResizedCrop
from .codecs import ResizeCrop as ResizeCrop
from .display import (
    contact_sheet as contact_sheet,
)
from .display import (
    display_loader_images as display_loader_images,
)
from .display import (
    display_shard_images as display_shard_images,
)
from .dsort import run_dsort as run_dsort
from .errors import AISError as AISError
from .etl import (
    ensure_etl as ensure_etl,
)
from .etl import (
    shard_etl as shard_etl,
)
from .index import Mixture as Mixture
from .indexing import SampleIndex as SampleIndex
from .loaders import (
    MultiProcessingReadingService as MultiProcessingReadingService,
)
from .loaders import (
    SampleDataset as SampleDataset,
)
from .loaders import (
    ais_loader as ais_loader,
)
from .loaders import (
    as_dataset as as_dataset,
)
from .loaders import (
    draw as draw,
)
from .loaders import (
    explain as explain,
)
from .loaders import (
    load_state_dict as load_state_dict,
)
from .loaders import (
    merge_states as merge_states,
)
from .loaders import (
    mermaid as mermaid,
)
from .loaders import (
    state_dict as state_dict,
)
from .loaders import (
    state_from_json as state_from_json,
)
from .loaders import (
    state_to_json as state_to_json,
)
from .loaders import (
    stats as stats,
)
from .local import LocalCluster as LocalCluster
from .pipes import (
    AISFileLoader as AISFileLoader,
)
from .pipes import (
    AISObjectLoader as AISObjectLoader,
)
from .pipes import (
    AISSampleReader as AISSampleReader,
)
from .pipes import (
    AISSourceLister as AISSourceLister,
)
from .pipes import (
    Associator as Associator,
)
from .pipes import (
    Batcher as Batcher,
)
from .pipes import (
    Bucketer as Bucketer,
)
from .pipes import (
    DictMapper as DictMapper,
)
from .pipes import (
    EpochSetter as EpochSetter,
)
from .pipes import (
    InfoPrinter as InfoPrinter,
)
from .pipes import (
    KeyExtractor as KeyExtractor,
)
from .pipes import (
    KeyRenamer as KeyRenamer,
)
from .pipes import (
    LengthSetter as LengthSetter,
)
from .pipes import (
    ListBatcher as ListBatcher,
)
from .pipes import (
    NonEmpty as NonEmpty,
)
from .pipes import (
    Packer as Packer,
)
from .pipes import (
    PipeThrough as PipeThrough,
)
from .pipes import (
    RandomMix as RandomMix,
)
from .pipes import (
    Renamer as Renamer,
)
from .pipes import (
    Repeater as Repeater,
)
from .pipes import (
    Resampler as Resampler,
)
from .pipes import (
    RoundRobin as RoundRobin,
)
from .pipes import (
    SampleDecoder as SampleDecoder,
)
from .pipes import (
    SampleMapper as SampleMapper,
)
from .pipes import (
    Selector as Selector,
)
from .pipes import (
    Shuffler as Shuffler,
)
from .pipes import (
    SingleNodeOnly as SingleNodeOnly,
)
from .pipes import (
    Slicer as Slicer,
)
from .pipes import (
    SplitByNode as SplitByNode,
)
from .pipes import (
    SplitByWorker as SplitByWorker,
)
from .pipes import (
    StreamDecoder as StreamDecoder,
)
from .pipes import (
    Subsampler as Subsampler,
)
from .pipes import (
    TarSampleGrouper as TarSampleGrouper,
)
from .pipes import (
    TupleMaker as TupleMaker,
)
from .pipes import (
    TupleMapper as TupleMapper,
)
from .pipes import (
    Unbatcher as Unbatcher,
)
from .pipes import (
    Unlister as Unlister,
)
from .reading.open_shard import Safety as Safety
from .samples import Sample as Sample
from .store import (
    ObjectCache as ObjectCache,
)
from .store import (
    Retry as Retry,
)
from .store import (
    StoreOptions as StoreOptions,
)
from .urls import (
    MemberPath as MemberPath,
)
from .urls import (
    ObjectURL as ObjectURL,
)
from .urls import (
    expand_object_urls as expand_object_urls,
)
from .urls import (
    object_url as object_url,
)
from .writing import (
    ShardWriter as ShardWriter,
)
from .writing import (
    TarWriter as TarWriter,
)
from .writing import (
    convert as convert,
)

__version__: str
