"""`transform_bucket`: all shards of a bucket through a transform into another bucket, by the cluster alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchdata_ais.arguments import checked
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.etl.cluster import logs_of
from torchdata_ais.jobs import JobError, JobState, OnProgress, Progress, known_cluster, wait_for_job
from torchdata_ais.store import Cluster, StoreOptions, list_objects
from torchdata_ais.store.exchange import not_aistore
from torchdata_ais.store.sdk import call, job_id_in, make_bucket, sdk_bucket, sdk_client
from torchdata_ais.urls import bucket_place

logger = logging.getLogger("torchdata_ais")


@dataclass(frozen=True)
class TransformResult:
    """What an offline transform has done.

    Attributes:
        job_id: Its name on the cluster.
        objects: How many objects were written.
        errors: Objects that failed, and why.
    """

    job_id: str
    objects: int
    errors: dict[str, str] = field(default_factory=dict)


@checked
def transform_bucket(
    cluster: Cluster,
    etl_name: str,
    source: Any,
    target: Any,
    *,
    ext: Mapping[str, str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    num_workers: int = 0,
    timeout: str = "5m",
    progress: OnProgress | None = None,
    stall_timeout: float = 600.0,
) -> TransformResult:
    """Put all objects of a bucket through a transform and store what comes out, and wait until it is done.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        etl_name: The transform. (Arguments of requests are for reading: the server takes none here.)
        source: ``ais://bucket`` or ``ais://bucket/prefix``, or an SDK bucket.
        target: ``ais://bucket``, or ``ais://bucket/prefix`` for a text before each name; made if it is missing. Objects
            of these names are replaced.
        ext: New endings of names by the old ones, as in ``{"tgz": "tar"}``.
        on_error: ``"skip"`` goes on after an object that fails; it is in the result, and logged as a warning. If all
            fail it is an error in any case: then it is the transform that cannot work.
        num_workers: Objects at a time on each target; 0 is one for each disk.
        timeout: For one object.
        progress: Called with each new `Progress` in objects.
        stall_timeout: Seconds without progress after which waiting is given up.

    Raises:
        NotFoundError: No such bucket or transform, or nothing in the bucket.
        JobError: An object failed; the message has the reason and the end of the transform's log. Those that came
            before it stay written.
        StallError: The job makes no progress.

    Example:
        >>> from torchdata_ais.etl import ensure_etl, shard_etl
        >>> from torchdata_ais.local import LocalCluster
        >>> from torchdata_ais.testing import example_shards
        >>> with LocalCluster(etl=True) as cluster:
        ...     bucket = cluster.client().bucket("b").create()
        ...     for number, shard in enumerate(example_shards()):
        ...         _ = bucket.object(f"s-{number}.tar").get_writer().put_file(shard)
        ...     name = ensure_etl(cluster, "no-change", shard_etl(lambda sample: sample))
        ...     transform_bucket(cluster, name, "ais://b", "ais://copy").objects
        3
    """
    options = known_cluster(cluster)
    place, to = bucket_place(source), bucket_place(target)
    in_one_bucket = replace(place, name="").uri == replace(to, name="").uri
    if in_one_bucket and (to.name + place.name).startswith(place.name):
        raise UsageError.at(
            "the new objects would replace the old, or be transformed again: their names begin as those of the source",
            todo="write to another bucket",
            url=place.uri,
        )
    total = len(list_objects(place.uri, options=options))
    with sdk_client(options) as client:
        bucket, made = sdk_bucket(client, place), sdk_bucket(client, to)
        make_bucket(client, to, options)
        once = replace(options, retry=replace(options.retry, attempts=1))
        job_id = call(
            lambda: job_id_in(bucket.transform(
                etl_name, made, timeout=timeout, prefix_filter=place.name, prepend=to.name, ext=dict(ext or {}) or None,
                num_workers=num_workers, cont_on_err=on_error == "skip",
            ), options),
            once, f"transform {etl_name}", place.uri,
        )  # fmt: skip
        name = f"transform {etl_name} (job {job_id})"
        try:
            look = _look(client, job_id, total, options, goes_on=on_error == "skip")
            wait_for_job(look, name, progress=progress, stall_timeout=stall_timeout)
        except JobError as error:
            errors = _errors(client, etl_name, job_id, options)
            raise _with_log(error, client, options, etl_name, errors) from None
        errors = _errors(client, etl_name, job_id, options)
        # All of them: the transform cannot work, and it is no matter of single objects.
        if errors and (on_error == "raise" or len(errors) >= total):
            failed = JobError.at(f"{name} failed over {len(errors)} objects")
            raise _with_log(failed, client, options, etl_name, errors)
    for object_name, why in errors.items():
        logger.warning("%s: %s was left out: %s", name, object_name, why)
    return TransformResult(job_id, total - len(errors), errors)


def _look(
    client: Any, job_id: str, total: int, options: StoreOptions, *, goes_on: bool
) -> Callable[[], JobState]:
    job = client.job(job_id=job_id)

    def written() -> int:
        stats = [one.stats for one in job.get_details().list_snapshots() if one.stats is not None]
        return sum(int(one.objects) for one in stats)

    def ask() -> Any:
        status = job.status()
        if status.uuid != job_id:
            raise not_aistore(options.endpoint, f"asked for job {job_id}, it tells of {status.uuid!r:.40}")
        return status

    def look() -> JobState:
        status = call(ask, options, f"job {job_id}", options.endpoint)
        done = 0
        with suppress(NotFoundError):  # before the first target has begun
            done = call(written, options, f"job {job_id}", options.endpoint)
        finished = status.end_time != 0
        error = "" if goes_on else status.err  # of a job that goes on, errors of objects
        if status.aborted:
            error = status.err or "it was aborted"
        return JobState(Progress("transform", min(done, total), total), finished, error if finished else "")

    return look


def _errors(client: Any, etl_name: str, job_id: str, options: StoreOptions) -> dict[str, str]:
    """Return the objects that failed, with what was said about each."""

    def ask() -> dict[str, str]:
        details = client.etl(etl_name).view(job_id)
        return {error.obj_name: error.msg for error in details.obj_errors or ()}

    try:
        return call(ask, options, f"transform {etl_name}", options.endpoint)
    except AISError:
        return {}


def _with_log(
    error: JobError, client: Any, options: StoreOptions, etl_name: str, errors: dict[str, str]
) -> JobError:
    """Return the error with the first failed objects and the end of the log in it."""
    parts = [str(error.sentences)]
    parts += [f"{name}: {why}" for name, why in list(errors.items())[:3]]
    try:
        parts.append(f"log of {etl_name}:\n{logs_of(client, options, etl_name, 40)}")
    except AISError:
        logger.debug("no log of %s", etl_name)
    return JobError.at("\n".join(parts))
