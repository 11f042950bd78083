"""Options of an index build: the method, the processes, the progress callback."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchdata_ais.jobs import OnProgress
from torchdata_ais.store import StoreOptions

Method = Literal["read", "cluster"]


class Indexing(NamedTuple):
    """How shards are indexed; see `SampleIndex.build`.

    Attributes:
        options: Transport settings.
        method: Whether shards are read, or indexed by the cluster.
        processes: Number of processes that read.
        progress: Called with each new `Progress`.
    """

    options: StoreOptions
    method: Method = "read"
    processes: int = 0
    progress: OnProgress | None = None
