"""Objects in and out of AIStore: listing, reading in blocks, writing. No torch."""

from torchdata_ais.store.budget import held_now
from torchdata_ais.store.cache import Kept, ObjectCache
from torchdata_ais.store.cluster import Cluster, ClusterNames, cluster_options, given_options
from torchdata_ais.store.files import file_url
from torchdata_ais.store.listing import list_objects, options_with
from torchdata_ais.store.nearby import with_neighbours
from torchdata_ais.store.objects import delete_object, head_object, object_exists, put_object
from torchdata_ais.store.options import Endpoint, Retry, StoreOptions, resolve_options
from torchdata_ais.store.ranges import read_range
from torchdata_ais.store.reader import Stats
from torchdata_ais.store.source import BlockSource, open_blocks

__all__ = [
    "BlockSource",
    "Cluster",
    "ClusterNames",
    "Endpoint",
    "Kept",
    "ObjectCache",
    "Retry",
    "Stats",
    "StoreOptions",
    "cluster_options",
    "delete_object",
    "file_url",
    "given_options",
    "head_object",
    "held_now",
    "list_objects",
    "object_exists",
    "open_blocks",
    "options_with",
    "put_object",
    "read_range",
    "resolve_options",
    "with_neighbours",
]
