"""Making a sample index: by AIStore's own job, by reading shards; and comparing it with them."""

from torchdata_ais.index.build.by_reading import ShardWatch, index_shard
from torchdata_ais.index.build.sample_index import SampleIndex, build_index, problems_of

__all__ = ["SampleIndex", "ShardWatch", "build_index", "index_shard", "problems_of"]
