"""Listing and sharding over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import xxhash

from torchdata_ais._util.world import instance_of
from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.pipes.base.contract import Reader
from torchdata_ais.pipes.base.pipe import IterDataPipe, ShardingFilter
from torchdata_ais.pipes.base.torch_pipes import SHARDING_PRIORITIES, IterableWrapper, apply_sharding
from torchdata_ais.pipes.base.torch_pipes import Shuffler as CoreShuffler
from torchdata_ais.pipes.base.upstream import parents, upstream
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.planned.batches import SlotBatcher
from torchdata_ais.pipes.planned.shared_seed import SharedSeed
from torchdata_ais.pipes.planned.stage import PlannedStage
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.store import PackedURLs
from torchdata_ais.store.objects.packed_urls import OURS, Row
from torchdata_ais.urls import ObjectURL, parse_url, redact, shown_url

_OBJECTS = "/v1/objects/"
_LONG = 10_000  # strings in a list: fewer are 2 MB at most


class Table(msgspec.Struct):
    """The rows of one source of a pipe, in order.

    Attributes:
        listed: Whether it came from a listing, so that one rank's can serve all.
        told: Whether it is a lister's arguments, and not its result.
        parts: For a lister, the key of each of its sources and the number of its rows.
    """

    name: str
    rows: list[Row] = []
    listed: bool = False
    told: bool = False
    parts: list[tuple[int | str, int]] = []


class Listing:
    """The rows of all sources of a pipe, the nearest source first.

    Attributes:
        tables: One a source, and for a lister one more: its arguments. For the comparison only.
        shards: How many they name together; 0 if that is not known of all.
        digest: Identifies this data, independent of its cluster; empty where the pipe has no known source.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        endpoints: Sequence[str | None],
        lists: Sequence[PackedURLs | None] = (),
    ) -> None:
        self.tables = list(tables)
        known = [table.rows for table in tables if table.rows and not table.told]
        counts = [len(table.rows) for table in tables if not table.told]
        self.shards = sum(counts) if all(counts) else 0
        self.digest = digest_of(line for rows in known for line in identities(rows)) if known else ""
        self._lists = lists
        listed = (table for table in tables if table.listed)
        self._given = [
            # The sources that a lister has itself come in its own order, and may be as many as there are shards.
            (PackedURLs(table.rows, endpoint), [(key, n) for key, n in table.parts if isinstance(key, str)])
            for table, endpoint in zip(listed, endpoints, strict=True)
        ]

    @property
    def packed(self) -> list[PackedURLs]:
        """All that it gives, source by source."""
        return [urls for urls, _ in self._given] + [urls for urls in self._lists if urls is not None]

    def compared(self) -> Listing:
        """Drop the fields that only the comparison needs; return this listing."""
        self.tables = []
        return self

    @contextlib.contextmanager
    def on(self, pipe: IterDataPipe[object]) -> Iterator[None]:
        """Make `pipe` yield this listing, long lists packed, in this context."""
        wrappers = [(wrapper, wrapper.iterable) for wrapper in _lists_read(pipe)]
        self.give(pipe)
        try:
            yield
        finally:
            for lister in _listers(pipe):
                lister.give(None)
            for wrapper, items in wrappers:
                wrapper.iterable = items

    def give(self, pipe: IterDataPipe[object]) -> None:
        """Make the listers of `pipe`, or of a copy, yield this listing."""
        for lister, given in zip(_listers(pipe), self._given, strict=True):
            lister.give(*given)
        for wrapper, packed in zip(_lists_read(pipe), self._lists, strict=True):
            if packed is not None:
                wrapper.iterable = packed


def list_pipe(pipe: IterDataPipe[object], theirs: Sequence[Table] | None = None) -> Listing:
    """Return the rows of the sources of `pipe`; `theirs` need no listing."""
    taken = iter([table for table in theirs or () if table.listed])
    tables: list[Table] = []
    endpoints: list[str | None] = []
    lists = [_packed_list(wrapper.iterable) for wrapper in _lists_read(pipe)]
    for number, stage in enumerate(_sources(pipe), start=1):
        if isinstance(stage, AISSampleReader):
            sizes = [above.batchsize for above in upstream(pipe) if isinstance(above, SlotBatcher)]
            told = [*stage.told(), *(f"batches of {size}" for size in sizes)]
            tables.append(Table(f"the index (source {number})", rows_of(told)))
            continue
        if not isinstance(stage, AISSourceLister):
            texts = [_text(item) for item in _items(stage) or ()]
            tables.append(Table(f"the items of source {number}", rows_of(texts)))
            continue
        sources = None if stage.named_by is None else _items(stage.named_by)
        texts = stage.describe_sources(sources)
        tables.append(Table(f"the sources of list_ais (source {number})", rows_of(texts), told=True))
        if theirs is None:
            try:
                endpoint, table = _list(stage, sources, number)
            except AISError as error:
                raise error.with_traceback(None)  # noqa: B904 - the same error; it says what and where by itself
        else:
            table = next(taken, Table("", listed=True))
            endpoint = stage.endpoint() if any(row[0].startswith(OURS) for row in table.rows) else None
        tables.append(table)
        endpoints.append(endpoint)
    return Listing(tables, endpoints, lists)


def compare_indexes(pipe: IterDataPipe[object]) -> None:
    """Compare indexes of `pipe` not proved by reading with what is stored."""
    for stage in upstream(pipe):
        if isinstance(stage, AISSampleReader):
            stage.compare_with_listing()


def _list(lister: AISSourceLister, sources: Sequence[object] | None, number: int) -> tuple[str | None, Table]:
    found = lister.list_sources(sources)
    table = Table(f"the listing of source {number}", listed=True)
    table.parts = [(key, len(urls)) for key, urls in found.items()]
    remote = any(_OBJECTS in url for urls in found.values() for url in urls[:1])
    endpoint = lister.endpoint() if remote else None
    head = None if endpoint is None else endpoint.rstrip("/") + _OBJECTS
    for urls in found.values():
        for url in urls:
            text = OURS + url[len(head) - len(_OBJECTS) :] if head and url.startswith(head) else str(url)
            table.rows.append((text, url.size, url.version, url.checksum))
    return endpoint, table


def _listers(pipe: IterDataPipe[object]) -> list[AISSourceLister]:
    return [stage for stage in upstream(pipe) if isinstance(stage, AISSourceLister)]


def _lists_read(pipe: IterDataPipe[object]) -> list[Any]:
    """Return the pipes over shard lists that a stage reads directly."""
    readers = [stage for stage in upstream(pipe) if isinstance(stage, Reader)]
    found = [_behind_order(source) for reader in readers for source in parents(reader)]
    return [source for source in found if type(source) is IterableWrapper]


def _behind_order(pipe: IterDataPipe[object]) -> IterDataPipe[object]:
    while type(pipe) in (ShardingFilter, CoreShuffler, SharedSeed):
        pipe = parents(pipe)[0]
    return pipe


def _packed_list(items: Any) -> PackedURLs | None:
    """Return a long list of URLs as workers get it; None for anything else."""
    if isinstance(items, PackedURLs):
        return items
    if type(items) not in (list, tuple) or len(items) < _LONG or not {*map(type, items)} <= {str, ObjectURL}:
        return None
    return PackedURLs(map(_row_of, items))


def _row_of(url: str) -> Row:
    if isinstance(url, ObjectURL):
        return str(url), url.size, url.version, url.checksum
    return url, None, None, None


def _sources(pipe: IterDataPipe[object]) -> list[IterDataPipe[object]]:
    return [stage for stage in upstream(pipe) if isinstance(stage, AISSourceLister) or not parents(stage)]


def _items(pipe: IterDataPipe[object]) -> Sequence[object] | None:
    """Return all items of a pipe, for all workers, if known before iterating."""
    pipe = _behind_order(pipe)
    if isinstance(pipe, IterableWrapper) and isinstance(pipe.iterable, (list, tuple, range, PackedURLs)):
        return cast("Sequence[Any]", pipe.iterable)  # `PackedURLs` is one in all but its type
    return None


def _text(item: object) -> str:
    """Return the text of an item of a shard list, if equal in every process."""
    if isinstance(item, Mapping) and isinstance(item.get("url"), str):
        item = item["url"]
    if isinstance(item, (str, Path)):
        return shown_url(str(item))  # a signature may differ between ranks
    return repr(item) if isinstance(item, (int, float, bytes, type(None))) else type(item).__name__


def _name(text: str) -> str:
    """Return a URL without the address, which differs between ranks and days."""
    if text.startswith(OURS):
        return text[len(OURS) :]
    start = text.find(_OBJECTS) if text.startswith(("http://", "https://")) else -1
    return text if start < 0 else text[start:]


def rows_of(texts: Iterable[str]) -> list[Row]:
    """Return rows of names of which nothing else is known."""
    return [(text, None, None, None) for text in texts]


def identities(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the fields that identify a row: name, size, checksum or version.

    The last two only in a bucket of AIStore's own. For a remote bucket they are known only once an object was read, so
    a lack of them makes no difference.
    """
    for text, size, version, checksum in rows:
        name = _name(text)
        own = "provider=" not in name or "provider=ais" in name
        yield f"{name}\t{size}\t{(checksum or version) if own else None}"


def digest_of(lines: Iterable[str]) -> str:
    """Return a hash of 32 hexadecimal digits of a series of lines."""
    state = xxhash.xxh3_128()
    for line in lines:
        state.update(line.encode())
        state.update(b"\n")
    return state.hexdigest()


def shown(name: str) -> str:
    """Return a name for people: ``ais://bucket/name``, without secrets."""
    try:
        return parse_url("http://h" + name).uri if name.startswith(_OBJECTS) else redact(name)
    except UsageError:
        return redact(name)


def shard_instance(pipe: IterDataPipe[object], number: int, instance: int) -> None:
    """Make `pipe` the `instance`-th of `number` in this process.

    Splits of another loader are removed from its sharding filters first: torch refuses to mix kinds of splits.
    """
    for stage in upstream(pipe):
        if isinstance(stage, ShardingFilter):
            stage.groups.clear()
            stage._update_num_of_instances()
        elif isinstance(stage, PlannedStage):
            stage.forget_split()
    if number > 1:
        apply_sharding(pipe, number, instance, SHARDING_PRIORITIES.DISTRIBUTED)


def number_ranks_first(stages: Iterable[object]) -> None:
    """Number the filter instances split over ranks and workers, ranks first.

    torch numbers the workers of rank 0 first: with 6 shards over 2 ranks of 2 workers rank 0 would get 4 of them.
    """
    for stage in stages:
        if isinstance(stage, ShardingFilter) and stage.sharding_group_filter is None:
            ranks, rank = stage.groups.get(SHARDING_PRIORITIES.DISTRIBUTED, (1, 0))
            workers, worker = stage.groups.get(SHARDING_PRIORITIES.MULTIPROCESSING, (1, 0))
            if ranks * workers == stage.num_of_instances:
                stage.instance_id = instance_of(rank, ranks, worker)
