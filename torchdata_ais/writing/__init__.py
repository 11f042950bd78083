"""Writing of shards: samples to tar archives in files, streams, buckets.

A shard appears whole or not at all. `TarWriter` writes one shard, `ShardWriter` a series that rolls over by count or
size, and `convert` turns folders of images, tables and existing shards into such a series.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
