"""Making a sample index: by reading shards."""

from torchdata_ais.indexing.build import build_index
from torchdata_ais.indexing.shard import index_shard

__all__ = ["build_index", "index_shard"]
