"""The sample index: format, opening, selection.

It imports no torch and reads no shards.
"""

from torchdata_ais.index.format import TABLE, UNFINISHED
from torchdata_ais.index.indexed_samples import IndexedSamples, check_no_places, opened_index
from torchdata_ais.index.location import (
    Folder,
    LocalFolder,
    MemoryFolder,
    RemoteFolder,
    ShardsFrom,
    fixed_beginning,
    folder_at,
    index_place,
    named_shards,
)
from torchdata_ais.index.mixture import Mixture, field_sizes, lengths_of
from torchdata_ais.index.rows import (
    IndexedShard,
    SampleReference,
    ShardEntry,
    ShardSamples,
    entry_of,
    stored_text,
)
from torchdata_ais.index.schedule import Schedule
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.index.writer import IndexWriter

__all__ = [
    "TABLE",
    "UNFINISHED",
    "Folder",
    "IndexWriter",
    "IndexedSamples",
    "IndexedShard",
    "LocalFolder",
    "MemoryFolder",
    "Mixture",
    "RemoteFolder",
    "SampleReference",
    "Schedule",
    "ShardEntry",
    "ShardRow",
    "ShardSamples",
    "ShardsFrom",
    "StoredIndex",
    "check_no_places",
    "entry_of",
    "field_sizes",
    "fixed_beginning",
    "folder_at",
    "index_place",
    "lengths_of",
    "named_shards",
    "opened_index",
    "stored_text",
]
