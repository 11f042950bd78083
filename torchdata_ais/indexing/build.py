"""Index builds: rows of earlier indexes, of the cluster's job, and of shards that are read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

from torchdata_ais.errors import NotFoundError, SampleIndexError, UsageError
from torchdata_ais.index import (
    TABLE,
    UNFINISHED,
    Folder,
    IndexedSamples,
    IndexedShard,
    IndexWriter,
    MemoryFolder,
    StoredIndex,
    folder_at,
)
from torchdata_ais.indexing.beside import Beside
from torchdata_ais.indexing.cluster import indexed_by_cluster
from torchdata_ais.indexing.listing import listed_shards
from torchdata_ais.indexing.method import Indexing
from torchdata_ais.indexing.reading import indexed_by_reading
from torchdata_ais.jobs import SizedProgress
from torchdata_ais.shown import bytes_text
from torchdata_ais.urls import ObjectURL, parse_url

_CHECKPOINT_S = 60.0

logger = logging.getLogger("torchdata_ais")


def build_stored(
    sources: Any, how: Indexing, where: str | os.PathLike[str] | None, previous: IndexedSamples | None
) -> tuple[StoredIndex, str | None]:
    """Return the stored index of the samples of shards, and its home; `SampleIndex.build` has the arguments."""
    if previous is not None and previous.is_selection:
        raise UsageError.at("the index before holds a selection", todo="pass the whole index as previous=")
    urls = listed_shards(sources, how.options)
    beside = Beside(sources, how.options)
    if where is not None and os.fspath(where) == beside.place:
        beside.refuse_part()
    folder = MemoryFolder() if where is None else folder_at(where, how.options)
    before = [] if previous is None else [previous]
    before += [] if where is None else _standing(folder)
    known = _known(urls, before, proven=how.method == "read")
    writer = IndexWriter(folder, list(dict.fromkeys(name for index in before for name in index.columns)))
    saved = time.monotonic()
    done = size = 0
    to_make = [url for url in urls if url not in known]
    _say_what_is_fetched(to_make)
    try:
        with closing(indexed_shards(to_make, how)) as made:
            for url in urls:
                writer.add(*(known[url][0].shard_samples(known[url][1]) if url in known else next(made)))
                done += 1
                size += url.size or 0
                if how.progress is not None:
                    how.progress(SizedProgress("index", done, len(urls), size))
                if where is not None and time.monotonic() - saved > _CHECKPOINT_S:
                    writer.checkpoint()
                    saved = time.monotonic()
    except BaseException:
        if where is not None and done:
            writer.checkpoint()
        raise
    writer.finish(source=str(sources))
    return StoredIndex(folder), beside.home


def _say_what_is_fetched(urls: list[ObjectURL]) -> None:
    """Tell of shards behind the cluster: to read them, it fetches what it has not yet, every byte."""
    far = [url for url in urls if (place := parse_url(url)).kind == "object" and place.provider != "ais"]
    if far:
        logger.warning(
            "%d shards with %s, %s first, are read whole, and fetched from behind the cluster as far as they are not in"
            " it: a prefetch job before that (bucket.objects(obj_template=...).prefetch()) uses all targets at once",
            len(far),
            bytes_text(sum(url.size or 0 for url in far)),
            parse_url(far[0]).uri,
        )


def _standing(folder: Folder) -> list[IndexedSamples]:
    """Return what stands in a folder already: an index, a part of one, both or nothing."""
    found = (_stored(folder, table) for table in (TABLE, UNFINISHED))
    return [index for index in found if index is not None and not index.is_selection]


def _stored(folder: Folder, table: str) -> IndexedSamples | None:
    try:
        stored = StoredIndex(folder, table)
        for number in range(len(stored.head.pages)):
            stored.page(number)  # one that is damaged or forged is not taken up
        return IndexedSamples([stored])
    except NotFoundError:
        return None
    except SampleIndexError as error:
        logger.warning("%s; all of it is made anew", error.what)
        return None


def _known(
    urls: list[ObjectURL], before: list[IndexedSamples], *, proven: bool
) -> dict[ObjectURL, tuple[IndexedSamples, int]]:
    """Return the shards that are as they were in an index of before, and where that has them."""
    known: dict[ObjectURL, tuple[IndexedSamples, int]] = {}
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


def indexed_shards(urls: list[ObjectURL], how: Indexing) -> Generator[IndexedShard, None, None]:
    """Yield what an index holds of each shard, in their order."""
    if how.method == "cluster" and urls:
        yield from indexed_by_cluster(urls, how)
    else:
        yield from indexed_by_reading(urls, how.options, how.processes)
