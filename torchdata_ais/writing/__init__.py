"""Shards out: samples to tar archives in files, streams and buckets, whole or not at all.

`TarWriter` writes one shard, `ShardWriter` a series that rolls over by count or size, and `convert` turns
folders of images, tables and existing shards into such a series.
"""

from __future__ import annotations

from torchdata_ais.writing.conversion import Conversion, convert
from torchdata_ais.writing.manifest import Manifest, ShardInfo
from torchdata_ais.writing.shard_writer import ShardWriter
from torchdata_ais.writing.tar_writer import TarWriter

__all__ = ["Conversion", "Manifest", "ShardInfo", "ShardWriter", "TarWriter", "convert"]
