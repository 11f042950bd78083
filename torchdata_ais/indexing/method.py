"""How shards are indexed: by whom, in how many processes, and who hears of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchdata_ais.jobs import OnProgress
from torchdata_ais.store import StoreOptions

Method = Literal["auto", "cluster", "read"]


class Indexing(NamedTuple):
    """How shards are indexed; see `SampleIndex.build`.

    Attributes:
        options: Transport settings.
        method: Who looks at the shards.
        processes: Read in so many processes what is read.
        progress: Called while it goes on.
    """

    options: StoreOptions
    method: Method = "auto"
    processes: int = 0
    progress: OnProgress | None = None
