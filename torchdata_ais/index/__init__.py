"""The sample index as files: its form, opening it, choosing from it. No torch, and no reading of shards."""

from torchdata_ais.index.folder import Folder, LocalFolder, MemoryFolder
from torchdata_ais.index.form import Head
from torchdata_ais.index.sample_index import SampleIndex, SampleReference
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.index.writer import (
    IndexWriter,
    ShardEntry,
    ShardSamples,
    content_of,
    digest_of,
    stored_text,
)

__all__ = [
    "Folder",
    "Head",
    "IndexWriter",
    "LocalFolder",
    "MemoryFolder",
    "SampleIndex",
    "SampleReference",
    "ShardEntry",
    "ShardRow",
    "ShardSamples",
    "StoredIndex",
    "content_of",
    "digest_of",
    "stored_text",
]
