"""Objects in and out of AIStore: listing, reading in blocks, writing. No torch."""

from torchdata_ais.store.listing import list_objects
from torchdata_ais.store.options import Retry, StoreOptions, resolve_options
from torchdata_ais.store.reader import Stats
from torchdata_ais.store.source import BlockSource, open_blocks

__all__ = [
    "BlockSource",
    "Retry",
    "Stats",
    "StoreOptions",
    "list_objects",
    "open_blocks",
    "resolve_options",
]
