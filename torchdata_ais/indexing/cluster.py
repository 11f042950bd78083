"""Shards indexed by AIStore's own job: started, waited for, its results fetched shard by shard."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from torchdata_ais.errors import AISError, NotFoundError
from torchdata_ais.index import IndexedShard, ShardEntry
from torchdata_ais.indexing.grouping import UnusableError
from torchdata_ais.indexing.job import run_index_job
from torchdata_ais.indexing.method import Indexing
from torchdata_ais.indexing.reading import indexed_by_reading
from torchdata_ais.indexing.shard_idx import parse_shard_index, samples_in
from torchdata_ais.jobs import JobError
from torchdata_ais.shard_names import common_beginning
from torchdata_ais.store import StoreOptions, read_range, target_of
from torchdata_ais.urls import Location, ObjectURL, parse_url

_AT_ONCE = 8  # small objects fetched at the same time
_WINDOW = 128  # shards whose rows are held until those before them are known
_MOST_BYTES = 1 << 30
_SHOWN = 3

logger = logging.getLogger("torchdata_ais")


def indexed_by_cluster(urls: list[ObjectURL], how: Indexing) -> Iterator[IndexedShard]:
    """Yield what an index holds of each shard, in their order; shards that the cluster cannot index are read.

    Args:
        urls: The shards, with size and checksum as listed.
        how: How they are indexed; with ``method="cluster"`` a cluster without that job is an error.

    Memory: the rows of 128 shards, and what reading takes.

    Raises:
        JobError: There is no such job, and the method is ``"cluster"``.
    """
    options = how.options
    ran = _run_jobs(urls, how)
    unusable: Counter[str] = Counter()
    try:
        for begin in range(0, len(urls), _WINDOW):
            window = urls[begin : begin + _WINDOW]
            found = _fetched(window, options, ran)
            unread = [url for url, one in zip(window, found, strict=True) if isinstance(one, str)]
            for url, why in zip(window, found, strict=True):
                if isinstance(why, str) and ran:
                    unusable[why] += 1
                    if unusable[why] <= _SHOWN:
                        logger.warning(
                            "%s is read, as the cluster has no index of it: %s", parse_url(url).uri, why
                        )
            with_read = indexed_by_reading(unread, options, how.processes)
            for one in found:
                yield next(with_read) if isinstance(one, str) else one
    finally:  # who takes the last one does not ask for more
        for why, count in unusable.items():
            if count > _SHOWN:
                logger.warning("%d more shards were read: %s", count - _SHOWN, why)


def _is_theirs(place: Location) -> bool:
    """Whether the cluster's job takes this object: one of its own, plain, as it is stored."""
    return place.kind == "object" and place.provider == "ais" and not place.namespace and not place.params


def _run_jobs(urls: list[ObjectURL], how: Indexing) -> bool:
    """Have the cluster index the shards, a job a bucket; return whether it did anything."""
    buckets: dict[tuple[str, str], list[str]] = defaultdict(list)
    must = how.method == "cluster"
    for url in urls:
        place = parse_url(url).at(how.options.endpoint)
        if _is_theirs(place):
            buckets[place.endpoint, place.bucket].append(place.name)
    if must and sum(map(len, buckets.values())) < len(urls):
        raise JobError.at(
            "some of these shards are not in a bucket of AIStore's own, which its job indexes",
            todo='use method="auto": what the cluster cannot index is read',
        )
    for (endpoint, bucket), names in buckets.items():
        prefix = common_beginning(names)
        try:
            said = run_index_job(bucket, prefix, replace(how.options, endpoint=endpoint), how.progress)
        except JobError as error:
            if must:
                raise
            logger.info("ais://%s is indexed by reading: %s", bucket, error.what)
            return False
        if said:
            logger.warning("the shard index job over ais://%s/%s said: %s", bucket, prefix, said)
    return bool(buckets)


def _fetched(urls: list[ObjectURL], options: StoreOptions, ran: bool) -> list[IndexedShard | str]:
    """Return what the cluster has found in each shard, or why that cannot be used."""
    if not ran:
        return ["the cluster has no such job"] * len(urls)
    with ThreadPoolExecutor(min(_AT_ONCE, len(urls))) as pool:
        return list(pool.map(_one, urls, itertools.repeat(options)))


def _one(url: ObjectURL, options: StoreOptions) -> IndexedShard | str:
    place = parse_url(url).at(options.endpoint)
    if not _is_theirs(place):
        return "it is in no bucket of AIStore's own"
    idx = Location(
        "object", f"ais/@#/{place.bucket}/{place.name}.idx", ".sys-shardidx", endpoint=place.endpoint
    )
    why = "there is none"
    # The index of a shard lies on the shard's target, under a name that the proxy looks for on any one.
    for beside in (False, True):
        try:
            return _usable(replace(idx, endpoint=target_of(place, options)) if beside else idx, url, options)
        except NotFoundError:  # noqa: PERF203 - two at most
            continue
        except UnusableError as unusable:
            why = str(unusable)
        except AISError as error:
            if not beside:
                raise
            logger.info("%s: %s", parse_url(url).uri, error.what)
            why = f"its target does not give it ({type(error).__name__})"
    return why


def _usable(idx: Location, url: ObjectURL, options: StoreOptions) -> IndexedShard:
    """Return what an index of the cluster says of a shard.

    Raises:
        NotFoundError: It is not there.
        UnusableError: It does not fit the shard, or does not say all.
    """
    found = parse_shard_index(read_range(idx, 0, _MOST_BYTES, options))
    if found.size != url.size or (url.checksum and found.checksum != url.checksum):
        raise UnusableError("its index is stale: it is of another version of the shard")
    name = parse_url(url).uri
    return ShardEntry(name, url.size, found.checksum, url.version), samples_in(found, name)
