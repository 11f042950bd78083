"""Indexes of other tools."""

from __future__ import annotations

import posixpath
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.index import (
    IndexedShard,
    IndexWriter,
    MemoryFolder,
    ShardEntry,
    ShardSamples,
    StoredIndex,
    folder_at,
)
from torchdata_ais.index.build.ais_format import ClusterIndex, samples_in
from torchdata_ais.index.build.builder import indexed_shards
from torchdata_ais.index.build.by_reading import Indexing, UnusableError, listed_shards
from torchdata_ais.index.build.foreign_formats import (
    Claim,
    claim_in_idx,
    energon_counts,
    index_headers,
    json_in,
    unfitting,
    wids_claims,
)
from torchdata_ais.index.format import foreign_shard
from torchdata_ais.index.location import place_around
from torchdata_ais.store import StoreOptions, list_objects, read_range
from torchdata_ais.urls import (
    OBJECTS_PATH,
    ObjectURL,
    ShardPlaces,
    below_fault,
    parse_url,
    path_fault,
    redact,
)

_INFO = ".nv-meta/.info.json"
_MOST_BYTES = 1 << 30


def is_foreign(where: str) -> bool:
    """Return whether this names index files of another tool.

    Example:
        >>> is_foreign("ais://pets/train-{0..9}.tar.idx"), is_foreign("data/shards.json"), is_foreign("data")
        (True, True, False)
    """
    return where.endswith((".idx", ".json"))


def energon_info_at(where: str, options: StoreOptions) -> str | None:
    """Return Energon's file that lists the shards of a folder, if it is there."""
    place = parse_url(where)
    if place.kind not in ("file", "object") or any(mark in place.name for mark in "{*?["):
        return None
    folder, _, name = posixpath.join(where, _INFO).rpartition("/")
    return f"{folder}/{name}" if folder_at(folder, options).has(name) else None


def open_foreign(
    where: str, shards: object, options: StoreOptions, *, places: ShardPlaces, processes: int = 0
) -> StoredIndex:
    """Return the samples of another tool's index as an index in memory.

    `where` names ``.idx`` files (a name, a pattern, a template), ``.nv-meta/.info.json``, or a JSON of wids. `shards`
    are those of ``.idx`` files, in the same order; None: those of their names. It may name shards of further `places`.

    Raises:
        SampleIndexError: It is damaged, names shards of other places, or does not fit the shards; names the first.
    """
    claims = _claims_at(where, shards, options, places)
    try:
        urls = listed_shards([claim.shard for claim in claims], options)
    except NotFoundError as error:
        shard = str(error.url or "a shard")
        raise unfitting(redact(where), shard, "it is not there") from error
    folder = MemoryFolder()
    writer = IndexWriter(folder)
    with closing(_indexed(claims, urls, Indexing(options, processes=processes))) as found:
        for claim, (entry, samples) in zip(claims, found, strict=True):
            misfit = _misfit(claim, entry, samples)
            if misfit is not None:
                raise unfitting(claim.where, entry.name, *misfit)
            writer.add(entry, samples)
    writer.finish(source=redact(where))
    return StoredIndex(folder)


def _claims_at(where: str, shards: object, options: StoreOptions, places: ShardPlaces) -> list[Claim]:
    if where.endswith(".json"):
        if shards is not None:
            raise UsageError.at("shards= beside an index that names its shards", todo="leave shards= out")
        whole = json_in(read_range(where, 0, _MOST_BYTES, options), where)
        found = _energon(whole, where, options) if "shard_counts" in whole else _wids(whole, where, places)
        if not found:
            raise UsageError.at(f"{redact(where)}: the index names no shard", todo="look into the file")
        return found
    names = [str(url) for url in list_objects(where, options=options)]
    of = _shards_of(names) if shards is None else [str(url) for url in list_objects(shards, options=options)]
    if len(of) != len(names):
        raise UsageError.at(
            f"{len(names)} indexes for {len(of)} shards", todo="name as many shards= as indexes"
        )
    return [
        claim_in_idx(read_range(name, 0, _MOST_BYTES, options), parse_url(name).uri, shard)
        for name, shard in zip(names, of, strict=True)
    ]


def _wids(whole: dict[str, Any], where: str, places: ShardPlaces) -> list[Claim]:
    found = wids_claims(whole, where)
    places += ShardPlaces.of([place_around(posixpath.dirname(where) or ".")])
    start = f"{endpoint}{OBJECTS_PATH}" if (endpoint := parse_url(where).endpoint) else ""
    for claim in found:
        # A URL at the host of the index is compared as the object that it names.
        name = claim.shard
        if start and name.startswith(start) and not (place := parse_url(name)).params:
            name = place.uri
        if why := places.fault(name) or _template_fault(name):
            raise foreign_shard(claim.shard, why, redact(where))
    return found


def _template_fault(name: str) -> str:
    """Return why a name would be expanded where shards are listed, or ""."""
    return "it is a template or a pattern" if any(mark in name for mark in "{*[") else ""


def _shards_of(names: list[str]) -> list[str]:
    """Return the shards next to indexes.

    Two of one shard are refused: ``*.idx`` finds DALI's ``s.idx`` and Energon's ``s.tar.idx``.
    """
    index_of: dict[str, str] = {}
    for name in names:
        shard = _shard_of(name)
        if (other := index_of.setdefault(shard, name)) != name:
            raise UsageError.at(
                f"{redact(other)} and {redact(name)} are both indexes of one shard",
                todo='name those of one tool: "*.tar.idx" (Energon, Lhotse), or "s-{000..099}.idx" (DALI)',
                url=shard,
            )
    return [_shard_of(name) for name in names]


def _shard_of(index: str) -> str:
    """Return the shard of an ``.idx``: Energon and Lhotse keep ``.tar`` in it."""
    path, mark, query = index.partition("?")
    name = path.removesuffix(".idx")
    return f"{name if name.endswith('.tar') else f'{name}.tar'}{mark}{query}"


def _energon(whole: dict[str, Any], where: str, options: StoreOptions) -> list[Claim]:
    folder = posixpath.dirname(posixpath.dirname(where))
    claims = []
    for name, count in energon_counts(whole, where).items():
        shard = posixpath.join(folder, name)
        why = below_fault(name) or _template_fault(name)
        if not why and parse_url(shard).kind == "file":
            why = path_fault(folder or ".", shard)
        if why:
            raise foreign_shard(name, why, redact(where))
        try:
            offsets = read_range(f"{shard}.idx", 0, _MOST_BYTES, options)
        except NotFoundError as error:
            raise unfitting(where, shard, f"{shard}.idx is not there") from error
        claim = claim_in_idx(offsets, f"{shard}.idx", shard)
        if claim.offsets is None or len(claim.offsets) - 1 != count:
            said = "no offsets" if claim.offsets is None else f"{len(claim.offsets) - 1} samples"
            raise unfitting(where, shard, f"it says {count} samples, and {shard}.idx {said}")
        claims.append(claim)
    return claims


def _indexed(
    claims: list[Claim], urls: list[ObjectURL], how: Indexing
) -> Generator[IndexedShard, None, None]:
    """Yield the entry of each shard, by the index alone if that suffices."""
    unsaid = [
        url for claim, url in zip(claims, urls, strict=True) if claim.members is None or url.size is None
    ]
    found = iter(_looked_at(unsaid, how))
    for claim, url in zip(claims, urls, strict=True):
        if claim.members is None or url.size is None:
            yield next(found)
            continue
        name = str(parse_url(url).uri)
        try:
            samples = samples_in(ClusterIndex(url.checksum or "", url.size, claim.members), name)
        except UnusableError as error:
            raise unfitting(claim.where, name, str(error)) from error
        yield ShardEntry(name, url.size, url.checksum, url.version), samples


def _looked_at(urls: list[ObjectURL], how: Indexing) -> Iterable[IndexedShard]:
    if all(parse_url(url).kind == "file" for url in urls):
        return (index_headers(url, how.options) for url in urls)
    return indexed_shards(urls, how)


def _misfit(claim: Claim, entry: ShardEntry, samples: ShardSamples) -> tuple[str, str | None] | None:
    """Return how index and shard differ and the key, or None if they do not."""
    if claim.size is not None and entry.size is not None and claim.size != entry.size:
        return f"it says {claim.size} bytes, and the shard has {entry.size}", None
    # Samples of nothing but links are in no index of another tool.
    there = [number for number, fields in enumerate(samples.fields) if fields]
    if claim.samples is not None and claim.samples != len(there):
        return f"it says {claim.samples} samples, and the shard has {len(there)}", None
    if claim.offsets is None:
        return None
    *begins, end = claim.offsets
    for place, (begin, number) in enumerate(zip(begins, there, strict=False)):
        if not samples.starts[number] <= begin < samples.ends[number]:
            key = samples.keys[number]
            at = samples.starts[number]
            return f"its sample {place} begins at byte {begin}, and {key!r} of the shard at {at}", key
    if len(begins) != len(there):
        return f"it has {len(begins)} samples, and the shard {len(there)}", None
    if entry.size is not None and end > entry.size:
        return f"it ends at byte {end} of {entry.size}", None
    return None
