"""Transforms on a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import AISError, NotFoundError, TransportError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.jobs.etl.make import fingerprint
from torchdata_ais.store import Cluster, StoreOptions, list_objects
from torchdata_ais.store.jobs import JobError, JobState, OnProgress, Progress, known_cluster, wait_for_job
from torchdata_ais.store.objects.sdk import call, job_id_in, make_bucket, sdk_bucket, sdk_client
from torchdata_ais.store.objects.sdk_names import etl_payload, etl_seconds, etl_ways
from torchdata_ais.store.transport.exchange import not_aistore
from torchdata_ais.urls import bucket_place

logger = logging.getLogger("torchdata_ais")

_STAGES = ["Initializing", "Running", "Stopped", "Aborted"]
_PACKAGE = "torchdata-ais"
_FINGERPRINT = "TORCHDATA_AIS_ETL"
_CHANGE_S = 300.0  # pods start and stop within this time; the SDK gives them the same
_PAYLOAD_BYTES = 120_000  # Linux passes no more than 128 KiB in one environment variable


@checked
def ensure_etl(
    cluster: Cluster,
    name: str,
    server: object,
    *,
    replace_other: bool = False,
    dependencies: Sequence[str] = (),
    comm_type: str = "hpush",
    init_timeout: str = "5m",
    obj_timeout: str = "5m",
    env: Mapping[str, str] | None = None,
) -> str:
    """Ensure that a transform runs on the cluster, and return its name.

    Made if it is missing, started if it was stopped, left alone if it runs with the same code.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        name: 6 to 32 of ``a-z 0-9 -``.
        server: The result of `shard_etl`, or any server class of the SDK.
        replace_other: Replace a transform of this name that runs other code. Otherwise that is an error. (Compared is
            the source text of the function and its settings, not the code of called functions.)
        dependencies: Packages for the pods to install. This package is always among them; name it yourself to set its
            source (``"torchdata-ais @ https://..."``).
        comm_type: How shards reach the pods: ``"hpush"`` or ``"hpull"``.
        init_timeout: Until all pods are ready.
        obj_timeout: For one shard.
        env: Environment variables of the pods.

    Raises:
        UsageError: A name or class that cannot be; other code under this name; too much to send.
        JobError: The cluster could not start it, or requires a token (the embedded one always does: pass the
            `LocalCluster` itself, or set ``AIS_AUTHN_TOKEN``); the message has the end of the log, if there is one.
        TransportError: The cluster cannot be reached.

    Example:
        >>> from torchdata_ais.jobs.etl import shard_etl
        >>> from torchdata_ais.local import LocalCluster
        >>> with LocalCluster(etl=True) as cluster:
        ...     ensure_etl(cluster, "no-change", shard_etl(lambda sample: sample))
        'no-change'
    """
    options = known_cluster(cluster)
    mark = fingerprint(server)
    with sdk_client(options) as client:
        etl = _named(client, name)
        running = _running(etl, options)
        if running is not None:
            other = running.get(_FINGERPRINT, "")
            if other == mark or not (other or replace_other):
                if not other:
                    logger.warning("the transform %r was made by other means: its code is not compared", name)
                _started(client, etl, options)
                return name
            if not replace_other:
                raise UsageError.at(
                    f"there is a transform {name!r} with other code",
                    todo=Remedy("take another name", "pass replace_other=True if nobody else uses it"),
                )
            _delete(etl, options)
        packages = list(dependencies)
        if not any(one.replace("_", "-").startswith(_PACKAGE) for one in packages):
            packages.append(_PACKAGE)
        _check_payload(server)
        _create(
            etl, server, options,
            dependencies=packages, comm_type=comm_type, init_timeout=init_timeout, obj_timeout=obj_timeout,
            **{**(env or {}), _FINGERPRINT: mark},
        )  # fmt: skip
    return name


@checked
def list_etls(cluster: Cluster) -> list[dict[str, Any]]:
    """Return name, stage and counts of each transform of the cluster.

    Returns:
        ``[{"name": str, "stage": str, "objects": int, "in_bytes": int, "out_bytes": int}, ...]``, by name.
    """
    options = known_cluster(cluster)
    with sdk_client(options) as client:

        def ask() -> list[dict[str, Any]]:
            return [
                {
                    "name": one.id,
                    "stage": one.stage,
                    "objects": int(one.obj_count),
                    "in_bytes": int(one.in_bytes),
                    "out_bytes": int(one.out_bytes),
                }
                for one in client.cluster().list_etls(_STAGES)
            ]

        rows = call(ask, options, "list of transforms", options.endpoint)
    return sorted(rows, key=lambda row: str(row["name"]))


@checked
def delete_etl(cluster: Cluster, name: str) -> None:
    """Stop a transform and take it away. One that is not there is fine."""
    options = known_cluster(cluster)
    with sdk_client(options) as client:
        etl = _named(client, name)
        if _running(etl, options) is not None:
            _delete(etl, options)


@checked
def etl_logs(cluster: Cluster, name: str, lines: int = 40) -> str:
    """Return the last log lines of the pods of a transform.

    Each target's come after its name.

    Raises:
        NotFoundError: The transform does not exist.
    """
    options = known_cluster(cluster)
    with sdk_client(options) as client:
        return logs_of(client, options, name, lines)


def logs_of(client: object, options: StoreOptions, name: str, lines: int) -> str:
    """See `etl_logs`."""
    etl = _named(client, name)

    def ask() -> str:
        parts = (
            "\n".join([f"[{entry.target_id}]", *entry.logs.splitlines()[-lines:]]) for entry in etl.logs()
        )
        return "\n".join(parts)

    return call(ask, options, f"log of {name}", options.endpoint)


def _named(client: Any, name: str) -> Any:
    try:
        return client.etl(name)
    except ValueError as error:
        raise UsageError.at(str(error), todo="use 6 to 32 of a-z, 0-9 and -, as in resize-224") from error


def _running(etl: Any, options: StoreOptions) -> dict[str, str] | None:
    """Return the environment of a transform, or None if it does not exist."""
    try:
        details = call(etl.view, options, f"transform {etl.name}", options.endpoint)
    except NotFoundError:
        return None
    runtime = getattr(details.init_msg, "runtime", None)
    return {item.name: item.value or "" for item in getattr(runtime, "env", None) or ()}


def _started(client: Any, etl: Any, options: StoreOptions) -> None:
    stages = ["Initializing", "Running"]
    infos = call(lambda: client.cluster().list_etls(stages), options, "list of transforms", options.endpoint)
    if not any(info.id == etl.name for info in infos):
        call(etl.start, options, f"start of {etl.name}", options.endpoint, answer_timeout=_CHANGE_S)


def _delete(etl: Any, options: StoreOptions) -> None:
    with suppress(NotFoundError):
        call(etl.stop, options, f"stop of {etl.name}", options.endpoint, answer_timeout=_CHANGE_S)
    with suppress(NotFoundError):
        call(etl.delete, options, f"removal of {etl.name}", options.endpoint, answer_timeout=_CHANGE_S)


def _check_payload(server: object) -> None:
    try:
        size = len(etl_payload(server))
    except Exception as error:
        raise UsageError.at(
            f"{getattr(server, '__name__', server)!r} cannot be sent to the cluster: {error}",
            todo="make what cannot be pickled inside the function",
        ) from error
    if size > _PAYLOAD_BYTES:
        raise UsageError.at(
            f"the function with all it refers to takes {size} bytes, and {_PAYLOAD_BYTES} can be sent",
            todo="load large data inside the function, from an object or a package",
        )


def _seconds_to_start(arguments: dict[str, Any]) -> float:
    """Return the seconds of `init_timeout`; check what the SDK would refuse."""
    if arguments["comm_type"] not in etl_ways():
        raise UsageError.at(
            f"comm_type={arguments['comm_type']!r}", todo=f"pass one of {', '.join(etl_ways())}"
        )
    try:
        seconds = {name: etl_seconds(arguments[name]) for name in ("init_timeout", "obj_timeout")}
    except ValueError as error:
        raise UsageError.at(str(error), todo='write init_timeout= and obj_timeout= as in "5m"') from error
    return seconds["init_timeout"]


def _create(etl: Any, server: object, options: StoreOptions, **arguments: object) -> None:
    """Make the transform, once: a second request would find the first result."""
    ready_s = _seconds_to_start(arguments)
    deadline = options.retry.deadline and max(options.retry.deadline, ready_s + 60.0)
    once = replace(options, retry=replace(options.retry, attempts=1, deadline=deadline))
    try:
        call(
            lambda: etl.init_class(**arguments)(server), once, f"start of {etl.name}", options.endpoint,
            answer_timeout=ready_s,
        )  # fmt: skip
    except AISError as error:
        if isinstance(error, TransportError) and error.status == HTTPStatus.CONFLICT:
            return  # it exists already: another program was quicker
        text = str(error.sentences)
        try:
            log = call(lambda: str(etl.logs()[0].logs[-2000:]), once, f"log of {etl.name}", options.endpoint)
            text += f"\n{log}"
        except AISError:
            logger.debug("no log of %s", etl.name)  # often there is none yet; the error itself is enough
        raise JobError.at(f"the transform {etl.name!r} could not be started: {text}") from error


@dataclass(frozen=True)
class TransformResult:
    """Result of an offline transform.

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
    source: object,
    target: object,
    *,
    ext: Mapping[str, str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    num_workers: int = 0,
    timeout: str = "5m",
    progress: OnProgress | None = None,
    stall_timeout: float = 600.0,
) -> TransformResult:
    """Transform all objects of a bucket, store the results, and wait.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        etl_name: The transform. (Arguments of requests are for reading: the server takes none here.)
        source: ``ais://bucket`` or ``ais://bucket/prefix``, or an SDK bucket.
        target: ``ais://bucket``, or ``ais://bucket/prefix`` for a text before each name; made if it is missing. Objects
            of these names are replaced.
        ext: New endings of names by the old ones, as in ``{"tgz": "tar"}``.
        on_error: ``"skip"`` continues after an object that fails; it is in the result, and logged as a warning. If all
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
        >>> from torchdata_ais.jobs.etl import ensure_etl, shard_etl
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
        # All of them: the transform cannot work, and the cause is not in single objects.
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
        with suppress(NotFoundError):  # before the first target has started
            done = call(written, options, f"job {job_id}", options.endpoint)
        finished = status.end_time != 0
        error = "" if goes_on else status.err  # of a running job, errors of objects
        if status.aborted:
            error = status.err or "it was aborted"
        return JobState(Progress("transform", min(done, total), total), finished, error if finished else "")

    return look


def _errors(client: Any, etl_name: str, job_id: str, options: StoreOptions) -> dict[str, str]:
    """Return the objects that failed, each with its error."""

    def ask() -> dict[str, str]:
        return {error.obj_name: error.msg for error in client.etl(etl_name).view(job_id).obj_errors or ()}

    try:
        return call(ask, options, f"transform {etl_name}", options.endpoint)
    except AISError:
        return {}


def _with_log(
    error: JobError, client: object, options: StoreOptions, etl_name: str, errors: dict[str, str]
) -> JobError:
    """Return the error with the first failed objects and the end of the log."""
    parts = [str(error.sentences)]
    parts += [f"{name}: {why}" for name, why in list(errors.items())[:3]]
    try:
        parts.append(f"log of {etl_name}:\n{logs_of(client, options, etl_name, 40)}")
    except AISError:
        logger.debug("no log of %s", etl_name)
    return JobError.at("\n".join(parts))
