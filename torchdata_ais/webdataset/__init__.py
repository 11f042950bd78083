"""webdataset's names on this package's promises: change the import, keep the code.

    import torchdata_ais.webdataset as wds

What differs from webdataset 1.0.2, and why, stands in the README beside this file.
"""

from __future__ import annotations

from torchdata_ais.webdataset import (
    autodecode,
    cache,
    compat,
    extradatasets,
    filters,
    handlers,
    mix,
    pipeline,
    pytorch,
    shardlists,
    tariterators,
    tenbin,
    utils,
    writer,
)
from torchdata_ais.webdataset.autodecode import (
    Continue,
    Decoder,
    DecodingError,
    gzfilter,
    handle_extension,
    imagehandler,
    pytorch_weights_only,
    torch_audio,
    torch_loads,
    torch_video,
)
from torchdata_ais.webdataset.cache import LRUCleanup
from torchdata_ais.webdataset.commands import Command
from torchdata_ais.webdataset.compat import FluidInterface, FluidWrapper, Processor, WebDataset, WebLoader
from torchdata_ais.webdataset.currying import pipelinefilter
from torchdata_ais.webdataset.filters import (
    Cached,
    associate,
    batched,
    decode,
    default_collation_fn,
    detshuffle,
    extract_keys,
    getfirst,
    info,
    listed,
    log_keys,
    map,  # noqa: A004 - webdataset's name
    map_dict,
    map_tuple,
    rename,
    rename_keys,
    resampled,
    rsample,
    select,
    shuffle,
    slice,  # noqa: A004 - webdataset's name
    to_tuple,
    transform_with,
    unbatched,
    unlisted,
    xdecode,
)
from torchdata_ais.webdataset.gopen import gopen
from torchdata_ais.webdataset.handlers import (
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)
from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.webdataset.mix import MockDataset, RandomMix, RoundRobin
from torchdata_ais.webdataset.pipeline import DataPipeline
from torchdata_ais.webdataset.shardlists import (
    ResampledShards,
    SimpleShardList,
    non_empty,
    shardspec,
    single_node_only,
    split_by_node,
    split_by_worker,
)
from torchdata_ais.webdataset.tariterators import tarfile_samples, tarfile_to_samples
from torchdata_ais.webdataset.utils import PipelineStage, repeatedly
from torchdata_ais.webdataset.writer import ShardWriter, TarWriter, numpy_dumps, torch_dumps

ShardList = SimpleShardList

__getattr__ = explaining(__name__)


__all__ = [
    "Cached",
    "Command",
    "Continue",
    "DataPipeline",
    "Decoder",
    "DecodingError",
    "FluidInterface",
    "FluidWrapper",
    "LRUCleanup",
    "MockDataset",
    "PipelineStage",
    "Processor",
    "RandomMix",
    "ResampledShards",
    "RoundRobin",
    "ShardList",
    "ShardWriter",
    "SimpleShardList",
    "TarWriter",
    "WebDataset",
    "WebLoader",
    "associate",
    "autodecode",
    "batched",
    "cache",
    "compat",
    "decode",
    "default_collation_fn",
    "detshuffle",
    "extract_keys",
    "extradatasets",
    "filters",
    "getfirst",
    "gopen",
    "gzfilter",
    "handle_extension",
    "handlers",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "mix",
    "non_empty",
    "numpy_dumps",
    "pipeline",
    "pipelinefilter",
    "pytorch",
    "pytorch_weights_only",
    "rename",
    "rename_keys",
    "repeatedly",
    "reraise_exception",
    "resampled",
    "rsample",
    "select",
    "shardlists",
    "shardspec",
    "shuffle",
    "single_node_only",
    "slice",
    "split_by_node",
    "split_by_worker",
    "tarfile_samples",
    "tarfile_to_samples",
    "tariterators",
    "tenbin",
    "to_tuple",
    "torch_audio",
    "torch_dumps",
    "torch_loads",
    "torch_video",
    "transform_with",
    "unbatched",
    "unlisted",
    "utils",
    "warn_and_continue",
    "warn_and_stop",
    "writer",
    "xdecode",
]
