"""Indexes made by AIStore's shard index job: start, wait, and fetch of the results."""

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
from torchdata_ais.indexing.job import check_unchunked, run_index_job
from torchdata_ais.indexing.method import Indexing
from torchdata_ais.indexing.reading import indexed_by_reading
from torchdata_ais.indexing.shard_idx import parse_shard_index, samples_in
from torchdata_ais.jobs import JobError
from torchdata_ais.shard_names import common_beginning
from torchdata_ais.store import Facts, StoreOptions, read_range, target_of
from torchdata_ais.urls import Location, ObjectURL, parse_url

_AT_ONCE = 8  # small objects fetched at the same time
_WINDOW = 128  # shards whose rows are held until those before them are known
_MOST_BYTES = 1 << 30
_SHOWN = 3

logger = logging.getLogger("torchdata_ais")


def indexed_by_cluster(urls: list[ObjectURL], how: Indexing) -> Iterator[IndexedShard]:
    """Yield the index rows of each shard, in order; read the shards that the job left out.

    Args:
        urls: The shards, with size and checksum as listed.
        how: Transport settings, processes and progress.

    Memory: the rows of 128 shards, and what reading takes.

    Raises:
        JobError: The cluster has no such job, or cannot index these shards, or an object was uploaded in parts.
    """
    options = how.options
    _run_jobs(urls, how)
    unusable: Counter[str] = Counter()
    try:
        for begin in range(0, len(urls), _WINDOW):
            window = urls[begin : begin + _WINDOW]
            found = _fetched(window, options)
            unread = [url for url, one in zip(window, found, strict=True) if isinstance(one, str)]
            for url, why in zip(window, found, strict=True):
                if isinstance(why, str):
                    unusable[why] += 1
                    if unusable[why] <= _SHOWN:
                        logger.warning(
                            "%s is read, as the cluster has no index of it: %s", parse_url(url).uri, why
                        )
            with_read = indexed_by_reading(unread, options, how.processes)
            for one in found:
                yield next(with_read) if isinstance(one, str) else one
    finally:  # the consumer of the last shard does not ask for another
        for why, count in unusable.items():
            if count > _SHOWN:
                logger.warning("%d more shards were read: %s", count - _SHOWN, why)


def _run_jobs(urls: list[ObjectURL], how: Indexing) -> None:
    """Start a job for each bucket and wait for it; none is started before all buckets were checked."""
    buckets: dict[tuple[str, str], list[str]] = defaultdict(list)
    for url in urls:
        place = parse_url(url).at(how.options.endpoint)
        if why := _not_indexed(place):
            raise JobError.at(
                f'method="cluster" cannot index {place.uri}: {why}', todo='use method="read"', url=place.shown
            )
        buckets[place.endpoint, place.bucket].append(place.name)
    jobs = [
        (bucket, common_beginning(names), names, replace(how.options, endpoint=endpoint))
        for (endpoint, bucket), names in buckets.items()
    ]
    for bucket, prefix, names, options in jobs:
        check_unchunked(bucket, prefix, names, options)
    for bucket, prefix, _, options in jobs:
        reported = run_index_job(bucket, prefix, options, how.progress)
        if reported:
            logger.warning("the shard index job over ais://%s/%s reported: %s", bucket, prefix, reported)


def _not_indexed(place: Location) -> str:
    """Return why the cluster's job cannot index this shard; empty if it can."""
    if place.kind != "object":
        return "it is not an object of a cluster"
    if place.provider != "ais":
        return f"its bucket belongs to the provider {place.provider}, and the job indexes ais:// buckets"
    if place.namespace:
        return (
            f"its bucket is in the namespace {place.namespace}, for which this package does not start the job"
        )
    if place.params:
        return f"its URL asks for a derived object ({', '.join(sorted(place.params))})"
    return ""


def _fetched(urls: list[ObjectURL], options: StoreOptions) -> list[IndexedShard | str]:
    """Return the rows that the cluster has of each shard, or why there are none."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(urls))) as pool:
        return list(pool.map(_one, urls, itertools.repeat(options)))


def _one(url: ObjectURL, options: StoreOptions) -> IndexedShard | str:
    place = parse_url(url).at(options.endpoint)
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
    if not found.checksum:
        raise UnusableError("its bucket has no checksums, by which a stale index is known")
    place = parse_url(url).at(options.endpoint)
    known = Facts(url.size, url.version, url.checksum)

    def read(start: int, length: int) -> bytes:
        return read_range(place, start, length, options, known=known)

    return ShardEntry(place.uri, url.size, found.checksum, url.version), samples_in(found, place.uri, read)
