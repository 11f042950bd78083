"""`build_index`: an index made of what is known already, of what the cluster finds, and of what is read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any, Literal

from torchdata_ais.errors import NotFoundError, SampleIndexError, UsageError
from torchdata_ais.index import (
    TABLE,
    UNFINISHED,
    Folder,
    IndexWriter,
    MemoryFolder,
    SampleIndex,
    ShardEntry,
    ShardSamples,
    StoredIndex,
    folder_at,
    index_place,
)
from torchdata_ais.indexing.cluster import indexed_by_cluster
from torchdata_ais.indexing.listing import listed_shards
from torchdata_ais.indexing.reading import indexed_by_reading
from torchdata_ais.jobs import OnProgress, Progress
from torchdata_ais.store import StoreOptions, resolve_options
from torchdata_ais.urls import ObjectURL, parse_url

__all__ = ["Indexed", "Method", "build_index"]

Indexed = tuple[ShardEntry, ShardSamples]
Method = Literal["auto", "cluster", "read"]

_CHECKPOINT_S = 60.0

logger = logging.getLogger("torchdata_ais")


def build_index(
    sources: Any,
    *,
    endpoint: str | None = None,
    method: Method = "auto",
    processes: int = 0,
    where: str | os.PathLike[str] | None = None,
    previous: SampleIndex | None = None,
    progress: OnProgress | None = None,
    options: StoreOptions | None = None,
) -> SampleIndex:
    """Make the index of the samples of shards.

    Args:
        sources: What `.list_ais()` takes: prefixes, templates, paths, folders, one or several.
        endpoint: The cluster; default ``AIS_ENDPOINT``.
        method: ``"cluster"``: AIStore's own job looks at the headers where the shards lie, and no sample is moved;
            shards that it has no valid index of are named in the log, and read. ``"read"``: every shard is read, which
            finds the XXH64 of each sample, too. ``"auto"``: by the cluster where it has that job, else by reading.
        processes: Read in so many processes; 0 reads in this one.
        where: Store the index there as it grows: a folder, or ``ais://bucket/name``. A build that broke off goes on
            where it was (at most a minute of work is done again); of an index that stands there, only shards that
            changed are made anew. None keeps the index in memory, to be stored by `SampleIndex.save`.
        previous: An index of an earlier time. Shards that it has with the same size and the same checksum (or, where
            there is none, version) are taken from it.
        progress: Called with each new `Progress`.
        options: Transport settings in place of `endpoint`.

    Order: that of the listing.

    Memory: one sample a process, one part of the index (64 MiB) and 200 bytes a shard; the whole index if `where` is
    None.

    Raises:
        NotFoundError: There are no such shards.
        TransportError, ShardError, SampleError: A shard cannot be read or is not sound; no index is made.
        JobError: The cluster has no such job, or does not do it, with ``method="cluster"``.
        UsageError: A shard is compressed, or stands in the list twice; or `previous` is a selection.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> build_index(example_shards(counts=(3, 2)))  # doctest: +ELLIPSIS
        SampleIndex(5 samples of 2 shards, proof='bytes', digest='...')
    """
    if method not in ("auto", "cluster", "read"):
        raise UsageError.at(f"method={method!r}", todo='use "auto", "cluster" or "read"')
    if previous is not None and previous.is_selection:
        raise UsageError.at("the index before holds a selection", todo="pass the whole index as previous=")
    settings = options or resolve_options(endpoint=endpoint)
    urls = listed_shards(sources, settings)
    folder = MemoryFolder() if where is None else folder_at(where, settings)
    before = [] if previous is None else [previous]
    before += [] if where is None else _standing(folder)
    known = _known(urls, before, proven=method == "read")
    writer = IndexWriter(folder)
    saved = time.monotonic()
    done = 0
    to_make = [url for url in urls if url not in known]
    try:
        with closing(_made(to_make, settings, method, processes, progress)) as made:
            for url in urls:
                writer.add(*(known[url][0].shard_samples(known[url][1]) if url in known else next(made)))
                done += 1
                if progress is not None:
                    progress(Progress("index", done, len(urls)))
                if where is not None and time.monotonic() - saved > _CHECKPOINT_S:
                    writer.checkpoint()
                    saved = time.monotonic()
    except BaseException:
        if where is not None and done:
            writer.checkpoint()
        raise
    writer.finish(source=str(sources))
    return SampleIndex([StoredIndex(folder)], home=_home(sources), options=settings)


def _home(sources: Any) -> str | None:
    """Return where the index lies by default."""
    one = sources[0] if isinstance(sources, list | tuple) and len(sources) == 1 else sources
    try:
        return index_place(one) if isinstance(one, str | os.PathLike) else None
    except UsageError:
        return None


def _standing(folder: Folder) -> list[SampleIndex]:
    """Return what stands in a folder already: an index, a part of one, both or nothing."""
    found = (_stored(folder, table) for table in (TABLE, UNFINISHED))
    return [index for index in found if index is not None and not index.is_selection]


def _stored(folder: Folder, table: str) -> SampleIndex | None:
    try:
        return SampleIndex([StoredIndex(folder, table)])
    except NotFoundError:
        return None
    except SampleIndexError as error:
        logger.warning("%s; all of it is made anew", error.what)
        return None


def _known(
    urls: list[ObjectURL], before: list[SampleIndex], *, proven: bool
) -> dict[ObjectURL, tuple[SampleIndex, int]]:
    """Return the shards that are as they were in an index of before, and where that has them."""
    known: dict[ObjectURL, tuple[SampleIndex, int]] = {}
    for index in before:
        rows = {row.name: (number, row) for number, row in enumerate(index.shards)}
        for url in urls:
            number, row = rows.get(parse_url(url).uri, (0, None))
            if row is not None and (row.proven or not proven) and _is_same(url, row):
                known[url] = index, number
    return known


def _is_same(url: ObjectURL, row: Any) -> bool:
    if url.size is None or url.size != row.size:
        return False
    if url.checksum and row.checksum:
        return bool(url.checksum == row.checksum)
    return bool(url.version and url.version == row.version)


def _made(
    urls: list[ObjectURL],
    options: StoreOptions,
    method: Method,
    processes: int,
    progress: OnProgress | None,
) -> Generator[Indexed, None, None]:
    """Yield what an index holds of each shard, in their order."""
    if method != "read" and urls:
        yield from indexed_by_cluster(urls, options, processes, must=method == "cluster", progress=progress)
    else:
        yield from indexed_by_reading(urls, options, processes)
