"""An index made of what is known already, of what the cluster finds, and of what is read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

from torchdata_ais.error_text import Remedy, in_commands, in_programs
from torchdata_ais.errors import NotFoundError, SampleIndexError, UsageError
from torchdata_ais.index import (
    TABLE,
    UNFINISHED,
    Folder,
    IndexedSamples,
    IndexWriter,
    MemoryFolder,
    ShardEntry,
    ShardSamples,
    StoredIndex,
    fixed_beginning,
    folder_at,
    index_place,
    named_shards,
)
from torchdata_ais.indexing.cluster import indexed_by_cluster
from torchdata_ais.indexing.listing import listed_shards
from torchdata_ais.indexing.reading import indexed_by_reading
from torchdata_ais.jobs import OnProgress, SizedProgress
from torchdata_ais.shard_names import is_shard
from torchdata_ais.shown import bytes_text
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.urls import ObjectURL, parse_url, redact

Indexed = tuple[ShardEntry, ShardSamples]
Method = Literal["auto", "cluster", "read"]

_CHECKPOINT_S = 60.0

logger = logging.getLogger("torchdata_ais")


def build_stored(
    sources: Any,
    options: StoreOptions,
    *,
    method: Method,
    processes: int,
    where: str | os.PathLike[str] | None,
    previous: IndexedSamples | None,
    progress: OnProgress | None,
) -> StoredIndex:
    """Return the stored index of the samples of shards; `SampleIndex.build` has the arguments."""
    if previous is not None and previous.is_selection:
        raise UsageError.at("the index before holds a selection", todo="pass the whole index as previous=")
    urls = listed_shards(sources, options)
    if where is not None and os.fspath(where) == _place_beside(sources):
        refuse_part(sources, options)
    folder = MemoryFolder() if where is None else folder_at(where, options)
    before = [] if previous is None else [previous]
    before += [] if where is None else _standing(folder)
    known = _known(urls, before, proven=method == "read")
    writer = IndexWriter(folder, list(dict.fromkeys(name for index in before for name in index.columns)))
    saved = time.monotonic()
    done = size = 0
    to_make = [url for url in urls if url not in known]
    _say_what_is_fetched(to_make)
    try:
        with closing(indexed_shards(to_make, options, method, processes, progress)) as made:
            for url in urls:
                writer.add(*(known[url][0].shard_samples(known[url][1]) if url in known else next(made)))
                done += 1
                size += url.size or 0
                if progress is not None:
                    progress(SizedProgress("index", done, len(urls), size))
                if where is not None and time.monotonic() - saved > _CHECKPOINT_S:
                    writer.checkpoint()
                    saved = time.monotonic()
    except BaseException:
        if where is not None and done:
            writer.checkpoint()
        raise
    writer.finish(source=str(sources))
    return StoredIndex(folder)


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


def home_of(sources: Any, options: StoreOptions) -> str | None:
    """Return where the index lies by default; None for some of the shards there, whose index is another."""
    place = _place_beside(sources)
    return None if place is None or _not_named(sources, options) else place


def _place_beside(sources: Any) -> str | None:
    source = _only_one(sources)
    try:
        return index_place(source) if isinstance(source, str | os.PathLike) else None
    except UsageError:
        return None


def _only_one(sources: Any) -> Any:
    return sources[0] if isinstance(sources, list | tuple) and len(sources) == 1 else sources


def refuse_part(sources: Any, options: StoreOptions) -> None:
    """Raise if there are more shards than a template or a pattern names: the place beside them is for all of them."""
    more = _not_named(sources, options)
    if more:
        source = os.fspath(_only_one(sources))
        raise UsageError.at(
            f"there are more shards than {redact(source)} names, and the place beside them is for the index of all: "
            f"{more[0]} would not be in it",
            todo=Remedy(
                f"index {_all_beside(source)}: a template then opens the samples of the shards that it names",
                in_programs("pass where= for an index of these alone"),
                in_commands("make an index of these alone: torchdata-ais index --where"),
            ),
        )


def _not_named(sources: Any, options: StoreOptions) -> list[str]:
    """Return the shards that begin as those of a template or a pattern do, and are not named by it."""
    source = _only_one(sources)
    if not isinstance(source, str | os.PathLike) or (named := named_shards(source)) is None:
        return []
    settings = replace(options, endpoint=parse_url(os.fspath(source)).at(options.endpoint).endpoint)
    there = list_objects(_all_beside(os.fspath(source)), options=settings, allow_empty=True)
    return sorted(name for name in {parse_url(url).uri for url in there} - set(named) if is_shard(name))


def _all_beside(source: str) -> str:
    place = parse_url(source)
    beginning = fixed_beginning(place.name)
    return replace(place, name=beginning, params={}).uri if place.kind == "object" else f"{beginning}*"


def _standing(folder: Folder) -> list[IndexedSamples]:
    """Return what stands in a folder already: an index, a part of one, both or nothing."""
    found = (_stored(folder, table) for table in (TABLE, UNFINISHED))
    return [index for index in found if index is not None and not index.is_selection]


def _stored(folder: Folder, table: str) -> IndexedSamples | None:
    try:
        return IndexedSamples([StoredIndex(folder, table)])
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


def indexed_shards(
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
