"""AIStore's job ``index-shard``: started, and waited for until all targets are done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import ReadError
from torchdata_ais.jobs import JobError, JobState, OnProgress, Progress, wait_for_job
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.pages import list_bucket
from torchdata_ais.store.sdk import call, job_id_in, sdk_client
from torchdata_ais.store.sdk_names import send_by
from torchdata_ais.urls import Location

_KIND = "index-shard"
_READ = 'use method="read"'
_NOT_ENDED = "0001-01-01"  # how Go writes a time that has not come


def check_unchunked(bucket: str, prefix: str, names: Iterable[str], options: StoreOptions) -> None:
    """Raise `JobError` if the job over this prefix would meet an object that is stored in parts.

    AIStore 5.0 stores the metadata of each shard again as that of an object in one piece, after it was indexed and when
    its index is dropped. The parts of a chunked object after the first are lost then.

    Args:
        bucket: The bucket of the job.
        prefix: The prefix of the job. All objects with it are listed, since the job takes them all.
        names: The shards to index; the listing must contain them.
        options: Endpoint, token, retries.
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
    """Have the targets index the shards of a bucket whose names begin with `prefix`; return what went wrong, or "".

    An object that is no tar ends the job on its target, so its end says nothing of any one shard.

    Raises:
        JobError: The cluster knows no such job.
        NotFoundError: No such bucket.
        ConnectError, AuthError, StallError: The cluster cannot be asked, or the job makes no progress.
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


def _start(client: Any, bucket: str, prefix: str, options: StoreOptions) -> str:
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


def _asked(client: Any, job_id: str, what: str, options: StoreOptions) -> Any:
    """Return what the cluster says of the job."""
    asked = {"path": "cluster", "params": {"what": what}, "json": {"id": job_id, "kind": _KIND}}
    return call(lambda: send_by(client, "GET", **asked).json(), options, f"job {job_id}", options.endpoint)
