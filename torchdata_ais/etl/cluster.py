"""Transforms on a cluster: made if they are missing, their logs, taken away."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from torchdata_ais.arguments import checked
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import AISError, NotFoundError, TransportError, UsageError
from torchdata_ais.etl.make import fingerprint
from torchdata_ais.jobs import JobError, known_cluster
from torchdata_ais.store import Cluster, StoreOptions
from torchdata_ais.store.sdk import call, sdk_client
from torchdata_ais.store.sdk_names import etl_payload, etl_seconds, etl_ways

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
    server: Any,
    *,
    replace_other: bool = False,
    dependencies: Sequence[str] = (),
    comm_type: str = "hpush",
    init_timeout: str = "5m",
    obj_timeout: str = "5m",
    env: Mapping[str, str] | None = None,
) -> str:
    """See to it that a transform runs on the cluster, and return its name.

    Made if it is missing, started if it was stopped, left alone if it runs with the same code.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        name: 6 to 32 of ``a-z 0-9 -``.
        server: What `shard_etl` returns, or any server class of the SDK.
        replace_other: Replace a transform of this name that runs other code. Otherwise that is an error. (Compared is
            the source text of the function and its settings, not what the function calls.)
        dependencies: Packages for the pods to install. This package is always among them; name it yourself to say
            where it comes from (``"torchdata-ais @ https://..."``).
        comm_type: How shards reach the pods: ``"hpush"`` or ``"hpull"``.
        init_timeout: Until all pods are ready.
        obj_timeout: For one shard.
        env: Environment variables of the pods.

    Raises:
        UsageError: A name or class that cannot be; other code under this name; too much to send.
        JobError: The cluster could not start it, or asks for a token (the embedded one always does: pass the
            `LocalCluster` itself, or set ``AIS_AUTHN_TOKEN``); the message has the end of the log, if there is one.
        TransportError: The cluster cannot be asked.

    Example:
        >>> from torchdata_ais.etl import shard_etl
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
    """Return name, stage, and what went through, of each transform of the cluster.

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
    """Return the last lines that the pods of a transform have logged, each target's after its name.

    Raises:
        NotFoundError: There is no such transform.
    """
    options = known_cluster(cluster)
    with sdk_client(options) as client:
        return logs_of(client, options, name, lines)


def logs_of(client: Any, options: StoreOptions, name: str, lines: int) -> str:
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
    """Return the environment of a transform, or None if there is none of this name."""
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


def _check_payload(server: Any) -> None:
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
    """Return the seconds of `init_timeout`, with the other arguments looked at.

    Raises:
        UsageError: One that the SDK would refuse.
    """
    if arguments["comm_type"] not in etl_ways():
        raise UsageError.at(
            f"comm_type={arguments['comm_type']!r}", todo=f"pass one of {', '.join(etl_ways())}"
        )
    try:
        seconds = {name: etl_seconds(arguments[name]) for name in ("init_timeout", "obj_timeout")}
    except ValueError as error:
        raise UsageError.at(str(error), todo='write init_timeout= and obj_timeout= as in "5m"') from error
    return seconds["init_timeout"]


def _create(etl: Any, server: Any, options: StoreOptions, **arguments: Any) -> None:
    """Make the transform. Not repeated: the second request would find what the first has begun."""
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
            return  # there is one already: somebody else was quicker
        text = str(error.sentences)
        try:
            log = call(lambda: str(etl.logs()[0].logs[-2000:]), once, f"log of {etl.name}", options.endpoint)
            text += f"\n{log}"
        except AISError:
            logger.debug("no log of %s", etl.name)  # often there is none yet; the error itself says enough
        raise JobError.at(f"the transform {etl.name!r} could not be started: {text}") from error
