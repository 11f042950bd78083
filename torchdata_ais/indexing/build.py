"""`build_index`: an index made by reading every shard."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import Unpack

from torchdata_ais.errors import UsageError
from torchdata_ais.index import (
    IndexWriter,
    LocalFolder,
    MemoryFolder,
    SampleIndex,
    ShardEntry,
    ShardSamples,
    StoredIndex,
)
from torchdata_ais.indexing.shard import index_shard
from torchdata_ais.store import Cluster, ClusterNames, StoreOptions, cluster_options, list_objects
from torchdata_ais.urls import ObjectURL, parse_url
from torchdata_ais.workers.ordered_pool import OrderedPool

__all__ = ["build_index"]


def build_index(
    sources: Any,
    *,
    where: str | os.PathLike[str] | None = None,
    cluster: Cluster = None,
    processes: int = 0,
    previous: SampleIndex | None = None,
    on_shard: Callable[[str, int], None] | None = None,
    **named: Unpack[ClusterNames],
) -> SampleIndex:
    """Read shards, and make the index of their samples.

    Args:
        sources: What `.list_ais()` takes: prefixes, templates, paths, folders, one or several.
        where: A folder to store the index in; None keeps it in memory.
        cluster: See `torchdata_ais.store.Cluster`.
        processes: Read in so many processes; 0 reads in this one.
        previous: An index of an earlier time. Shards that it has with the same size and the same checksum (or, where
            there is none, version) are taken from it and not read.
        on_shard: Called with the name of each shard and the number of its samples when it is done.
        **named: Parts of `cluster` by version 0.1's names: ``endpoint client token options``.

    Order: that of the listing.

    Memory: one sample a process, and one part of the index (64 MiB); all of it if `where` is None.

    Raises:
        NotFoundError: There are no such shards.
        TransportError, ShardError, SampleError: A shard cannot be read or is not sound; no index is made.
        UsageError: A shard is compressed, or stands in the list twice.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> build_index(example_shards(counts=(3, 2)))  # doctest: +ELLIPSIS
        SampleIndex(5 samples of 2 shards, proof='bytes', digest='...')
    """
    options = cluster_options(cluster, **named)
    several = [sources] if not isinstance(sources, list | tuple) else sources
    urls = [url for source in several for url in list_objects(source, options=options)]
    _check_once(urls)
    folder = MemoryFolder() if where is None else LocalFolder(where)
    writer = IndexWriter(folder)
    for entry, samples in _indexed(urls, options, processes, previous):
        writer.add(entry, samples)
        if on_shard is not None:
            on_shard(entry.name, len(samples.keys))
    writer.finish(source=str(sources))
    return SampleIndex([StoredIndex(folder)])


def _check_once(urls: list[ObjectURL]) -> None:
    seen: set[str] = set()
    for url in urls:
        name = parse_url(url).uri
        if name in seen:
            raise UsageError.at(f"the shard {name} is listed twice", todo="name it once", url=name)
        seen.add(name)


def _indexed(
    urls: list[ObjectURL], options: StoreOptions, processes: int, previous: SampleIndex | None
) -> Iterator[tuple[ShardEntry, ShardSamples]]:
    """Yield what an index holds of each shard, in their order."""
    known = {} if previous is None else previous.by_shard()
    kept = {url: number for url in urls if (number := _unchanged(url, known)) is not None}
    to_read = [url for url in urls if url not in kept]
    read = _read(to_read, options, processes)
    for url in urls:
        if url in kept:
            assert previous is not None
            yield previous.shard_samples(kept[url])
        else:
            yield next(read)


def _unchanged(url: ObjectURL, known: dict[str, tuple[int, ShardEntry]]) -> int | None:
    """Return the number of the shard in the index before, if what the listing says shows that it is the same."""
    number, entry = known.get(parse_url(url).uri, (0, None))
    if entry is None or url.size is None or url.size != entry.size:
        return None
    if url.checksum and entry.checksum:
        return number if url.checksum == entry.checksum else None
    return number if url.version and url.version == entry.version else None


def _read(
    urls: list[ObjectURL], options: StoreOptions, processes: int
) -> Iterator[tuple[ShardEntry, ShardSamples]]:
    work = functools.partial(index_shard, options=options)
    if processes < 1 or len(urls) < 2:
        yield from map(work, urls)
        return
    with OrderedPool(work, min(processes, len(urls))) as pool:
        yield from pool.map(urls)
