"""Access to objects of AIStore: listing, reading in blocks, writing.

It does not import torch.
"""

from torchdata_ais.store.objects.cache import Kept, ObjectCache
from torchdata_ais.store.objects.files import OpenFiles, file_url
from torchdata_ais.store.objects.listing import list_each, list_objects, options_with
from torchdata_ais.store.objects.packed_urls import PackedURLs
from torchdata_ais.store.objects.pages import list_buckets
from torchdata_ais.store.objects.single import (
    delete_object,
    head_object,
    object_exists,
    put_object,
    read_range,
    target_of,
    with_neighbours,
)
from torchdata_ais.store.objects.source import BlockSource, open_blocks
from torchdata_ais.store.transport.attempts import Cancelled, watching
from torchdata_ais.store.transport.batches import BatchAnswer, WantedRange, batch_group, read_batch
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.cluster import Cluster, cluster_options, given_options, resolve_options
from torchdata_ais.store.transport.concurrency_limit import ConcurrencyLimit, concurrency_limit_of
from torchdata_ais.store.transport.metadata import ObjectMetadata
from torchdata_ais.store.transport.options import Endpoint, Retry, StoreOptions
from torchdata_ais.store.transport.read_ahead import Stats, held_now, keep_memory
from torchdata_ais.store.transport.request_log import RequestRecord, journal

__all__ = [
    "BatchAnswer",
    "BlockSource",
    "Cancel",
    "Cancelled",
    "Cluster",
    "ConcurrencyLimit",
    "Endpoint",
    "Kept",
    "ObjectCache",
    "ObjectMetadata",
    "OpenFiles",
    "PackedURLs",
    "RequestRecord",
    "Retry",
    "Stats",
    "StoreOptions",
    "WantedRange",
    "batch_group",
    "cluster_options",
    "concurrency_limit_of",
    "delete_object",
    "file_url",
    "given_options",
    "head_object",
    "held_now",
    "journal",
    "keep_memory",
    "list_buckets",
    "list_each",
    "list_objects",
    "object_exists",
    "open_blocks",
    "options_with",
    "put_object",
    "read_batch",
    "read_range",
    "resolve_options",
    "target_of",
    "watching",
    "with_neighbours",
]
