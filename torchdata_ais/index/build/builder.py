"""Builder of indexes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from torchdata_ais._util.formatting import bytes_text
from torchdata_ais.errors import NotFoundError, SampleIndexError, UsageError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.index import (
    TABLE,
    UNFINISHED,
    Folder,
    IndexedSamples,
    IndexedShard,
    IndexWriter,
    MemoryFolder,
    StoredIndex,
    fixed_beginning,
    folder_at,
    index_place,
    named_shards,
)
from torchdata_ais.index.build.by_cluster import indexed_by_cluster
from torchdata_ais.index.build.by_reading import Indexing, indexed_by_reading, listed_shards
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.store.jobs import SizedProgress
from torchdata_ais.urls import ObjectURL, parse_url, redact
from torchdata_ais.urls.parsing import is_shard


class IndexLocation:
    """Index location next to the shards that begin as a template or a pattern.

    Several sources have no such place.
    """

    def __init__(self, sources: object, options: StoreOptions) -> None:
        only = sources[0] if isinstance(sources, list | tuple) and len(sources) == 1 else sources
        self._source = os.fspath(only) if isinstance(only, str | os.PathLike) else None
        self._options = options

    @cached_property
    def place(self) -> str | None:
        """The location; None: there is none."""
        with suppress(UsageError):
            return None if self._source is None else index_place(self._source)
        return None

    @property
    def home(self) -> str | None:
        """Default location; None for a part of the shards there."""
        return None if self.place is None or self._not_named else self.place

    def refuse_part(self) -> None:
        """Raise `UsageError` if the place is for more shards than are named."""
        if self._source is not None and self._not_named:
            raise UsageError.at(
                f"there are more shards than {redact(self._source)} names, and the place beside them is for the index "
                f"of all: {self._not_named[0]} would not be in it",
                todo=Remedy(
                    f"index {_all_shards(self._source)}: a template then opens samples of the shards that it names",
                    in_programs("pass where= for an index of these alone"),
                    in_commands("make an index of these alone: torchdata-ais index --where"),
                ),
            )

    @cached_property
    def _not_named(self) -> list[str]:
        """Unnamed shards with the beginning of a template or a pattern."""
        if self._source is None or (named := named_shards(self._source)) is None:
            return []
        settings = replace(
            self._options, endpoint=parse_url(self._source).at(self._options.endpoint).endpoint
        )
        there = list_objects(_all_shards(self._source), options=settings, allow_empty=True)
        return sorted(name for name in {parse_url(url).uri for url in there} - set(named) if is_shard(name))


def _all_shards(source: str) -> str:
    place = parse_url(source)
    beginning = fixed_beginning(place.name)
    return replace(place, name=beginning, params={}).uri if place.kind == "object" else f"{beginning}*"


_CHECKPOINT_S = 60.0

logger = logging.getLogger("torchdata_ais")


# One loop with many branches: each of the optional parts (a folder, progress) hooks into the same pass.
def build_stored(
    sources: object, how: Indexing, where: str | os.PathLike[str] | None, previous: IndexedSamples | None
) -> tuple[StoredIndex, str | None]:
    """Return the stored index and its folder; see `SampleIndex.build`."""
    if previous is not None and previous.is_selection:
        raise UsageError.at("the index before holds a selection", todo="pass the whole index as previous=")
    urls = listed_shards(sources, how.options)
    location = IndexLocation(sources, how.options)
    if where is not None and os.fspath(where) == location.place:
        location.refuse_part()
    folder = MemoryFolder() if where is None else folder_at(where, how.options)
    stored = (_stored(folder, table) for table in (TABLE, UNFINISHED))
    before = [one for one in (previous, *stored) if one is not None]
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
    return StoredIndex(folder), location.home


def _say_what_is_fetched(urls: list[ObjectURL]) -> None:
    """Log that the cluster fetches cloud shards that it does not have yet."""
    far = [url for url in urls if (place := parse_url(url)).kind == "object" and place.provider != "ais"]
    if far:
        logger.warning(
            "%d shards with %s, %s first, are read whole, and fetched from behind the cluster as far as they are not in"
            " it: a prefetch job before that (bucket.objects(obj_template=...).prefetch()) uses all targets at once",
            len(far),
            bytes_text(sum(url.size or 0 for url in far)),
            parse_url(far[0]).uri,
        )


def _stored(folder: Folder, table: str) -> IndexedSamples | None:
    """Return the index in a folder, or its unfinished part; no selection."""
    try:
        stored = StoredIndex(folder, table)
        for number in range(len(stored.head.pages)):
            stored.page(number)  # one that is damaged or forged is not taken up
        return None if stored.head.selection else IndexedSamples([stored])
    except NotFoundError:
        return None
    except SampleIndexError as error:
        logger.warning("%s; all of it is made anew", error.what)
        return None


def _known(
    urls: list[ObjectURL], before: list[IndexedSamples], *, proven: bool
) -> dict[ObjectURL, tuple[IndexedSamples, int]]:
    """Return the unchanged shards of an earlier index, and their numbers."""
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
    """Yield the index entry of each shard, in their order."""
    if how.method == "cluster" and urls:
        yield from indexed_by_cluster(urls, how)
    else:
        yield from indexed_by_reading(urls, how.options, how.processes)
