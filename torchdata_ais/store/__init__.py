"""Objects in and out of AIStore: listing, reading in blocks, writing. No torch."""

from torchdata_ais.store.attempts import Cancelled
from torchdata_ais.store.batches import BatchAnswer, WantedRange, batch_group, read_batch
from torchdata_ais.store.budget import held_now
from torchdata_ais.store.cache import Kept, ObjectCache
from torchdata_ais.store.cancel import Cancel
from torchdata_ais.store.cluster import Cluster, cluster_options, given_options
from torchdata_ais.store.endpoint import Endpoint
from torchdata_ais.store.facts import Facts
from torchdata_ais.store.files import file_url
from torchdata_ais.store.heap import keep_memory
from torchdata_ais.store.journal import RequestRecord, journal
from torchdata_ais.store.listing import list_objects, options_with
from torchdata_ais.store.nearby import with_neighbours
from torchdata_ais.store.objects import delete_object, head_object, object_exists, put_object, target_of
from torchdata_ais.store.options import Retry, StoreOptions
from torchdata_ais.store.pace import Pace, pace_of
from torchdata_ais.store.packed_urls import PackedURLs
from torchdata_ais.store.pages import list_buckets
from torchdata_ais.store.ranges import read_range
from torchdata_ais.store.reader import Stats
from torchdata_ais.store.resolving import resolve_options
from torchdata_ais.store.source import BlockSource, open_blocks

__all__ = [
    "BatchAnswer",
    "BlockSource",
    "Cancel",
    "Cancelled",
    "Cluster",
    "Endpoint",
    "Facts",
    "Kept",
    "ObjectCache",
    "Pace",
    "PackedURLs",
    "RequestRecord",
    "Retry",
    "Stats",
    "StoreOptions",
    "WantedRange",
    "batch_group",
    "cluster_options",
    "delete_object",
    "file_url",
    "given_options",
    "head_object",
    "held_now",
    "journal",
    "keep_memory",
    "list_buckets",
    "list_objects",
    "object_exists",
    "open_blocks",
    "options_with",
    "pace_of",
    "put_object",
    "read_batch",
    "read_range",
    "resolve_options",
    "target_of",
    "with_neighbours",
]
