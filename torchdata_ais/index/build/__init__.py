"""Building of sample indexes, and comparison with the shards."""

from torchdata_ais.index.build.by_reading import ShardWatch, index_shard
from torchdata_ais.index.build.sample_index import SampleIndex, build_index, problems_of

__all__ = ["SampleIndex", "ShardWatch", "build_index", "index_shard", "problems_of"]
