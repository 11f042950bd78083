"""Shards indexed by reading them, in this process or in several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torchdata_ais.index import IndexedShard
from torchdata_ais.indexing.shard import index_shard
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import ObjectURL
from torchdata_ais.workers.ordered_pool import OrderedPool

_T = TypeVar("_T")
_R = TypeVar("_R")


def indexed_by_reading(
    urls: list[ObjectURL], options: StoreOptions, processes: int
) -> Iterator[IndexedShard]:
    """Yield what an index holds of each shard, in their order.

    Args:
        urls: The shards.
        options: Transport settings.
        processes: Read in so many processes; 0 reads in this one.

    Memory: one sample a process, and the rows of at most ``2 * processes`` shards.
    """
    return in_processes(functools.partial(index_shard, options=options), urls, processes)


def in_processes(work: Callable[[_T], _R], urls: Sequence[_T], processes: int) -> Iterator[_R]:
    """Yield what `work` returns for each URL, in their order: in so many processes, or in this one."""
    if processes < 2 or len(urls) < 2:
        yield from map(work, urls)
        return
    with OrderedPool(work, min(processes, len(urls))) as pool:
        yield from pool.map(urls)
