"""Indexes that nobody proved by reading, compared with a listing: a shard stored again is found before it is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from torchdata_ais.errors import SampleIndexError
from torchdata_ais.index import IndexedSamples, ShardRow
from torchdata_ais.shard_names import common_beginning
from torchdata_ais.store import Facts, StoreOptions, list_objects
from torchdata_ais.urls import Location, parse_url


def compare_with_listing(index: IndexedSamples, options: StoreOptions) -> None:
    """List the shards of which nobody has read the samples, and raise if one is not what was indexed.

    Args:
        index: The index. Shards that prove themselves by their samples' XXH64 are not asked for.
        options: How the shards are reached.

    Memory: a listing of those shards.

    Raises:
        SampleIndexError: A shard is another one, or is not there any more; it names index and shard.
        TransportError: The cluster cannot be asked.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> compare_with_listing(SampleIndex.build(example_shards()), StoreOptions())  # proven: nothing is asked
    """
    buckets: dict[str, list[tuple[str, ShardRow, Location]]] = defaultdict(list)
    for where, row in _unproven(index):
        place = parse_url(row.name).at(options.endpoint)
        if place.kind == "object" and not place.params:
            buckets[replace(place, name="").url()].append((where, row, place))
    for rows in buckets.values():
        places = [place for _, _, place in rows]
        beginning = replace(places[0], name=common_beginning([place.name for place in places]))
        settings = replace(options, endpoint=beginning.endpoint)
        listed = list_objects(beginning.uri, options=settings, allow_empty=True)
        found = {parse_url(url).uri: Facts(url.size, url.version, url.checksum) for url in listed}
        for where, row, place in rows:
            there = found.get(place.uri)
            if there is None:
                raise _stale(where, row, "it is not there any more")
            difference = Facts(row.size, row.version, row.checksum).difference(there)
            if difference:
                raise _stale(where, row, f"it is another one than was indexed: {difference}")


def _unproven(index: IndexedSamples) -> Iterator[tuple[str, ShardRow]]:
    """Yield the shards to be listed, each with the place of its index."""
    if index.proof == "bytes":
        return
    for stored, number, _ in index.selected():
        row = stored.shard(number)
        if not row.proven:
            yield stored.folder.where, row


def _stale(where: str, row: ShardRow, what: str) -> SampleIndexError:
    return SampleIndexError.at(
        f"{where}: the index does not fit {row.name}: {what}",
        todo="index the shards again (torchdata-ais index), or restore them as they were",
        url=row.name,
    )
