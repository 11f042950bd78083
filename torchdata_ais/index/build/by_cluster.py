"""Indexes built by a job of the cluster."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torchdata_ais.errors import AISError, NotFoundError, ReadError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.index import IndexedShard, ShardEntry
from torchdata_ais.index.build.ais_format import parse_shard_index, samples_in
from torchdata_ais.index.build.by_reading import Indexing, UnusableError, indexed_by_reading
from torchdata_ais.store import ObjectMetadata, StoreOptions, read_range, target_of
from torchdata_ais.store.jobs import JobError, JobState, OnProgress, Progress, wait_for_job
from torchdata_ais.store.objects.pages import list_bucket
from torchdata_ais.store.objects.sdk import call, job_id_in, sdk_client
from torchdata_ais.store.objects.sdk_names import send_by
from torchdata_ais.urls import Location, ObjectURL, parse_url
from torchdata_ais.urls.parsing import common_beginning

_KIND = "index-shard"
_READ = 'use method="read"'
_NOT_ENDED = "0001-01-01"  # how Go writes a time that has not come


def check_unchunked(bucket: str, prefix: str, names: Iterable[str], options: StoreOptions) -> None:
    """Raise `JobError` if the prefix has an object stored in parts.

    The job destroys such objects. AIStore 5.0 stores the metadata of each shard again as that of an object in one
    piece, after indexing and when its index is dropped. The parts of a chunked object after the first are lost then.
    All objects with the prefix are listed, since the job takes them all; the listing must contain `names`.
    """
    place = Location("object", prefix, bucket, endpoint=options.endpoint)
    listed = list_bucket(place, prefix, options, whole=True)
    for entry in listed:
        if entry.chunked:
            raise JobError.at(
                f"ais://{bucket}/{entry.name} was uploaded in parts, and AIStore's shard index job destroys "
                "such objects; it was not started",
                todo=_READ,
                url=f"ais://{bucket}/{entry.name}",
            )
    missing = next(iter(sorted(set(names) - {entry.name for entry in listed})), None)
    if missing is not None:
        raise JobError.at(
            f"the listing of ais://{bucket}/{prefix} lacks the shard {missing}, which may be stored in parts; "
            "the shard index job was not started",
            todo=_READ,
            url=f"ais://{bucket}/{missing}",
        )


def run_index_job(bucket: str, prefix: str, options: StoreOptions, progress: OnProgress | None = None) -> str:
    """Have the targets index the shards with a prefix; return errors, or "".

    An object that is not a tar ends the job on its target, so its end proves nothing about any one shard.
    """
    with sdk_client(options) as client:
        job_id = _start(client, bucket, prefix, options)
        errors: list[str] = []

        def look() -> JobState:
            status = _asked(client, job_id, "status", options)
            targets = _asked(client, job_id, "qryxstats", options)
            parts = [part for found in targets.values() for part in found or ()]
            done = sum(int(part["stats"]["loc-objs"]) for part in parts)
            under_way = [
                part for part in parts if part["end-time"].startswith(_NOT_ENDED) and not part["aborted"]
            ]
            errors.extend(filter(None, [status.get("err"), *(part.get("err") for part in parts)]))
            finished = bool(status["end_time"]) and not under_way
            return JobState(Progress("cluster", done, 0), finished)

        wait_for_job(look, f"shard index job {job_id}", progress=progress)
        return "; ".join(dict.fromkeys(errors))


def _start(client: object, bucket: str, prefix: str, options: StoreOptions) -> str:
    value = {"prefix": prefix, "num-workers": 0, "skip-verify": False}

    def start() -> str:
        answer = send_by(
            client,
            "POST",
            path=f"buckets/{bucket}",
            params={"provider": "ais"},
            json={"action": _KIND, "name": "", "value": value},
        )
        return job_id_in(answer.text, options)

    try:
        return call(start, options, f"start of the shard index of ais://{bucket}", f"ais://{bucket}")
    except ReadError as error:
        if error.status not in (400, 405, 501):
            raise
        raise JobError.at(
            f"the cluster has no job that indexes shards ({error.what})",
            todo=Remedy(_READ, "a cluster of AIStore 4.4 or later"),
            url=f"ais://{bucket}",
        ) from error


def _asked(client: object, job_id: str, what: str, options: StoreOptions) -> Any:
    """Return the cluster's answer about the job."""
    asked = {"path": "cluster", "params": {"what": what}, "json": {"id": job_id, "kind": _KIND}}
    return call(lambda: send_by(client, "GET", **asked).json(), options, f"job {job_id}", options.endpoint)


_AT_ONCE = 8  # small objects fetched at the same time
_WINDOW = 128  # shards whose rows are held until those before them are known
_MOST_BYTES = 1 << 30
_SHOWN = 3

logger = logging.getLogger("torchdata_ais")


def indexed_by_cluster(urls: list[ObjectURL], how: Indexing) -> Iterator[IndexedShard]:
    """Yield the index rows of each shard; read those that the job left out.

    Memory: the rows of 128 shards, and the memory of reading.

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
    """Run a job for each bucket; all buckets are checked before the first."""
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
    """Return the cluster's rows of each shard, or why it has none."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(urls))) as pool:
        return list(pool.map(_one, urls, itertools.repeat(options)))


def _one(url: ObjectURL, options: StoreOptions) -> IndexedShard | str:
    place = parse_url(url).at(options.endpoint)
    idx = Location(
        "object", f"ais/@#/{place.bucket}/{place.name}.idx", ".sys-shardidx", endpoint=place.endpoint
    )
    why = "there is none"
    # The index of a shard is on the shard's target, under a name that the proxy looks for on any one.
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
    """Return the entry of a shard in an index of the cluster.

    Raises:
        UnusableError: It does not fit the shard, or is not complete.
    """
    found = parse_shard_index(read_range(idx, 0, _MOST_BYTES, options))
    if found.size != url.size or (url.checksum and found.checksum != url.checksum):
        raise UnusableError("its index is stale: it is of another version of the shard")
    if not found.checksum:
        raise UnusableError("its bucket has no checksums, by which a stale index is known")
    place = parse_url(url).at(options.endpoint)
    known = ObjectMetadata(url.size, url.version, url.checksum)

    def read(start: int, length: int) -> bytes:
        return read_range(place, start, length, options, known=known)

    return ShardEntry(place.uri, url.size, found.checksum, url.version), samples_in(found, place.uri, read)
