"""ETL: make, list, stop and apply transforms. Off without ``etl=True``."""

from __future__ import annotations

import base64
import hmac
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .api_groups import COPY_FIELDS, GROUP_FIELDS, BucketRef, bucket_of, run_on_group
from .etl import Etl, Etls, parse_seconds, read_message
from .http import Reply
from .jobs import Job
from .names import check_object_name, new_id, parse_uname
from .problem import ReplyError, check_secret, object_missing
from .routes import Call, route
from .store import Object

OBJECT_TIMEOUT_S = 45.0
WORKERS, MOST_WORKERS = 4, 64


def _allowed(call: Call, *, to_change: bool = False) -> Etls:
    """Return the transforms; to change them, check the secret of this start."""
    if not call.cluster.etl_allowed:
        message = "cannot use ETL in a build without ETL support - operation not supported"
        raise ReplyError(501, message, "ErrUnsupp")
    if to_change:
        check_secret(call.request, call.cluster.secret)
    return call.cluster.etls


@route("proxy", "PUT", "etls", sdk="Etl.init_class")
def init(call: Call) -> Reply:
    """Start a worker with the class of the request."""
    etls = _allowed(call, to_change=True)
    message = read_message(call.message)
    log = call.cluster.root / f"etl-{message['name']}.log"
    etl = Etl(message, log, call.cluster.targets[0].url, call.cluster.python_path)
    etls.add(call.node.tag, etl)
    try:
        log.write_bytes(b"")
        etl.start()
    except BaseException:
        etls.remove(etl.name)
        raise
    return Reply.text(etl.job_id)


@route("proxy", "GET", "etls", sdk="Cluster.list_etls")
def list_etls(call: Call) -> Reply:
    """All transforms that run."""
    return Reply.json(
        [
            {
                "id": etl.name,
                "xaction_id": etl.job_id,
                "stage": "Running" if etl.process else "Stopped",
                "obj_count": etl.objects,
                "in_bytes": etl.in_bytes,
                "out_bytes": etl.out_bytes,
            }
            for etl in _allowed(call)
        ]
    )


def _one(call: Call, *, to_change: bool = False) -> Etl:
    return _allowed(call, to_change=to_change).get(call.node.tag, call.name.partition("/")[0])


@route("proxy", "GET", "etl", query="uuid", sdk="Etl.view")
def view(call: Call) -> Reply:
    """The request that made a transform, and the errors of an offline job."""
    etl = _one(call)
    job = call.cluster.jobs.get(call.query.get("uuid", ""))
    return Reply.json({"init_msg": etl.message, "obj_errors": job.object_errors if job else []})


@route("proxy", "POST", "etl", "start", sdk="Etl.start")
def start(call: Call) -> Reply:
    """Start a worker that was stopped."""
    etl = _one(call, to_change=True)
    if etl.process is None:
        etl.start()
    return Reply()


@route("proxy", "POST", "etl", "stop", sdk="Etl.stop")
def stop(call: Call) -> Reply:
    """End the worker, keep the transform."""
    _one(call, to_change=True).stop()
    return Reply()


@route("proxy", "DELETE", "etl", sdk="Etl.delete")
def delete(call: Call) -> Reply:
    """Forget a transform that was stopped."""
    etl = _one(call, to_change=True)
    if etl.process is not None:
        raise ReplyError(400, f"{call.node.tag}: etl job {etl.name} is running; stop it first")
    call.cluster.etls.remove(etl.name)
    return Reply()


@route("proxy", "GET", "etl", "logs", sdk="Etl.logs")
def logs(call: Call) -> Reply:
    """The worker's output, as that of the first target."""
    text = base64.b64encode(_one(call).log.read_bytes()).decode()
    return Reply.json([{"target_id": call.cluster.targets[0].id, "logs": text}])


@route("target", "GET", "etl", "_object")
def get_for_worker(call: Call) -> Reply:
    """The object, for a worker that pulls, with the secret in the path."""
    etls = _allowed(call)
    parts = call.name.split("/", 3)
    if len(parts) < 4:
        raise ReplyError(400, f"URL {call.request.path!r:.200} is too short")
    _, name, secret, uname = parts
    if not hmac.compare_digest(etls.get(call.node.tag, name).secret.encode(), secret.encode()):
        raise ReplyError(401, "unrecognized ETL secret")
    bucket, object_name = parse_uname(uname)
    entry = call.store.bucket(bucket).objects.get(object_name)
    if entry is None:
        raise object_missing(call.node.tag, bucket, object_name)
    return Reply(200, {"Content-Type": "application/octet-stream"}, call.store.open(entry))


def _stages(name: str, pipeline: str | list[str] | None) -> list[str]:
    more = pipeline.split(",") if isinstance(pipeline, str) else pipeline or []
    return [stage for stage in (name, *more) if stage]


def get_transformed(call: Call, entry: Object) -> Reply:
    """Answer a GET with the transformed object, of unknown length."""
    etls = _allowed(call)
    stages = _stages(call.query.get("etl_name", ""), call.query.get("etl_pipeline", ""))
    args = call.query.get("etl_args", "")
    path = call.store.path(entry)
    blocks = etls.run(call.node.tag, stages, call.bucket, entry, path, args, OBJECT_TIMEOUT_S)
    return Reply(200, {"Content-Type": "application/octet-stream"}, blocks, chunked=True)


# -- many objects


FIELDS: dict[str, Any] = {
    **COPY_FIELDS,
    "id": "",
    "pipeline": str | list[str],
    "request_timeout": str | int,
    "ext": dict[str, str],
    "coer": False,
}


@route("proxy", "POST", "bucket", "etl-bck", query="bck_to", sdk="Bucket.transform, Bucket.inspect")
def transform_bucket(call: Call) -> Reply:
    """Put the transformed objects with a prefix into another bucket."""
    _allowed(call)
    to = call.other_bucket()
    wanted = call.fields(**FIELDS)
    source = call.source
    if to not in call.store.buckets:
        call.store.create_bucket(to)
    job = Job(new_id(), "etl-bck", to, call.bucket, to)
    return _start(call, job, wanted, source.with_prefix(wanted["prefix"]))


@route("proxy", "POST", "bucket", "etl-listrange", sdk="ObjectGroup.transform, ObjectGroup.inspect")
def transform_group(call: Call) -> Reply:
    """Put the transformed objects of the group into another bucket."""
    _allowed(call)
    wanted = call.fields(**GROUP_FIELDS | FIELDS, tobck=BucketRef)
    to = call.store.bucket(bucket_of(wanted["tobck"])).name
    job = Job(f"tco-{new_id()}", "etl-listrange", call.bucket, call.bucket, to)
    return _start(call, job, wanted, run_on_group(call, job, wanted))


def _start(call: Call, job: Job, wanted: dict[str, Any], objects: Iterator[Object]) -> Reply:
    etls = call.cluster.etls
    stages = _stages(wanted["id"], wanted["pipeline"])
    for name in stages or [""]:
        etls.get(call.node.tag, name)

    def one(entry: Object) -> None:
        if job.aborted:
            return
        timeout_s = parse_seconds(wanted["request_timeout"], OBJECT_TIMEOUT_S)
        path = call.store.path(entry)
        try:
            blocks = etls.run(call.node.tag, stages, job.source, entry, path, "", timeout_s)
            if wanted["dry_run"]:
                deque(blocks, maxlen=0)
            else:
                call.store.put(job.to, _renamed(entry.name, wanted), blocks)
            job.add(entry.size)
        except Exception as error:  # noqa: BLE001  any failure is this object's, and the job's to report
            status = error.status if isinstance(error, ReplyError) else 500
            job.object_errors.append({"obj_name": entry.name, "msg": str(error), "ecode": status})
            job.errors.append(str(error))
            if not wanted["coer"]:
                job.aborted = True

    def work() -> None:
        workers = min(MOST_WORKERS, max(1, wanted["num_workers"] or WORKERS))
        with ThreadPoolExecutor(workers) as pool:
            pool.map(one, objects)

    return Reply.text(call.cluster.jobs.start(job, work).id)


def _renamed(name: str, wanted: dict[str, Any]) -> str:
    stem, dot, ext = name.rpartition(".")
    changed = (wanted["ext"] or {}).get(ext)
    if dot and changed is not None:
        name = f"{stem}.{changed.lstrip('.')}"
    name = f"{wanted['prepend']}{name}"
    check_object_name(name)
    return name
