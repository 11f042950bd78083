"""Comparison of an index with a listing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchdata_ais.errors import SampleIndexError
from torchdata_ais.index import IndexedSamples, ShardRow
from torchdata_ais.store import ObjectMetadata, StoreOptions, list_objects
from torchdata_ais.urls import Location, ObjectURL, parse_url
from torchdata_ais.urls.parsing import common_beginning


def compare_with_listing(index: IndexedSamples, options: StoreOptions) -> None:
    """List the shards whose samples were not read, and compare them.

    Memory: a listing of those shards.

    Raises:
        SampleIndexError: A shard has changed since it was indexed, or does not exist any more.
        TransportError: The cluster does not answer.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> compare_with_listing(SampleIndex.build(example_shards()), StoreOptions())  # proven: nothing is asked
    """
    asked = [(where, row, parse_url(row.name).at(options.endpoint)) for where, row in _unproven(index)]
    listed = listed_objects([place for _, _, place in asked], options, allow_empty=True)
    for where, row, place in asked:
        if not _is_listed(place):
            continue
        there = listed.get(place.uri)
        if there is None:
            raise _stale(where, row, "it is not there any more")
        known = ObjectMetadata(row.size, row.version, row.checksum)
        difference = known.difference(ObjectMetadata(there.size, there.version, there.checksum))
        if difference:
            raise _stale(where, row, f"it is another one than was indexed: {difference}")


def listed_objects(
    places: Iterable[Location], options: StoreOptions, *, allow_empty: bool = False
) -> dict[str, ObjectURL]:
    """Return objects by their URIs, from one listing for each bucket.

    Its prefix is that of all `places` in the bucket. Those that are not objects, or transformed, are left out.
    """
    buckets: dict[str, list[Location]] = defaultdict(list)
    for place in filter(_is_listed, places):
        buckets[replace(place, name="").url()].append(place)
    listed: dict[str, ObjectURL] = {}
    for here in buckets.values():
        beginning = replace(here[0], name=common_beginning([place.name for place in here]))
        settings = replace(options, endpoint=beginning.endpoint)
        found = list_objects(beginning.uri, options=settings, allow_empty=allow_empty)
        listed |= {parse_url(url).uri: url for url in found}
    return listed


def _is_listed(place: Location) -> bool:
    return place.kind == "object" and not place.params


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
