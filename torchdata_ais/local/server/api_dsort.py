"""Distributed sort, done by one process: samples of many shards put in another order into new shards."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .archive import File, Member, extension_of, opened, packed
from .dsort_spec import CONTENT_KINDS, Algorithm, Spec, parse_spec
from .jobs import Job, bucket_json, rfc3339
from .names import new_id
from .problem import ReplyError
from .reply import Reply
from .routes import Call, route
from .search import find_names
from .store import Object
from .template import endless


@dataclass
class _Record:
    """One sample: its key and its files, each with the shard it lies in."""

    key: str
    shard: Object
    files: list[Member]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@route("proxy", "POST", "sort", sdk="Dsort.start")
def start(call: Call) -> Reply:
    """Check the spec, then sort."""
    spec = parse_spec(call)
    job = Job(f"srt-{new_id()}", "dsort", spec.source, spec.source, spec.to)
    call.cluster.jobs.start(job, lambda: _sort(call, spec, job))
    return Reply.text(job.id)


@route("proxy", "GET", "sort", query="uuid regex", sdk="Dsort.get_job_info, Dsort.wait")
def info(call: Call) -> Reply:
    """One job by target, or all jobs."""
    if "uuid" not in call.query:
        jobs = call.cluster.jobs.select(kind="dsort")
        found_at = find_names(call.query.get("regex", ""), [job.id for job in jobs])
        found = [_info(jobs[position]) for position in found_at]
        return Reply.plain_json(found)
    return Reply.plain_json({call.cluster.targets[0].id: _info(_job(call, "%!s(<nil>): "))})


@route("proxy", "DELETE", "sort", "abort", query="uuid", sdk="Dsort.abort")
def abort(call: Call) -> Reply:
    """Abort a job (``sort/abort``): its work ends before the next shard. What was written stays."""
    _job(call).abort()
    return Reply()


def _job(call: Call, before: str = "") -> Job:
    asked = call.query.get("uuid", "")
    job = call.cluster.jobs.get(asked)
    if job is None or job.kind != "dsort":
        raise ReplyError(404, f"{before}[dsort] {asked} does not exist")
    return job


def _sort(call: Call, spec: Spec, job: Job) -> None:
    records = [record for shard in spec.shards for record in _records(call, shard, job)]
    _order(call, records, spec.algorithm)
    names = endless(spec.names)
    for batch in _batches(records, spec.shard_bytes):
        if job.aborted:
            return
        name = next(names, None)
        if name is None:
            raise ValueError("number of shards to be created exceeds expected number of shards")
        full = name if extension_of(name) else name + spec.extension
        call.store.put(spec.to, full, packed(spec.extension, _files(call, batch)))
        job.created += 1


def _batches(records: list[_Record], shard_bytes: int) -> Iterator[list[_Record]]:
    """Yield the records of each new shard, which ends with the record that fills it."""
    batch: list[_Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.size
        if size >= shard_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _records(call: Call, shard: Object, job: Job) -> list[_Record]:
    found: dict[str, _Record] = {}
    with opened(call.store, shard) as archive:
        for file in archive.files:
            key = _key(file.name)
            found.setdefault(key, _Record(key, shard, [])).files.append(file)
        job.add(sum(file.size for file in archive.files))
        job.files += len(archive.files)
    return list(found.values())


def _key(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _order(call: Call, records: list[_Record], algorithm: Algorithm) -> None:
    kind = algorithm.kind or "alphanumeric"
    if kind == "shuffle":
        random.Random(int(algorithm.seed or time.time_ns())).shuffle(records)
    elif kind != "none":
        keys: dict[str, Callable[[_Record], Any]] = {
            "alphanumeric": lambda record: record.key,
            "md5": lambda record: hashlib.md5(record.key.encode(), usedforsecurity=False).hexdigest(),
            "content": lambda record: _content_key(call, record, algorithm),
        }
        records.sort(key=keys[kind], reverse=bool(algorithm.decreasing))


def _content_key(call: Call, record: _Record, algorithm: Algorithm) -> Any:
    extension = algorithm.extension or ""
    file = next((file for file in record.files if file.name == record.key + extension), None)
    if file is None:
        raise ValueError(f"{record.shard.name}: {record.key} has no {extension}")
    with opened(call.store, record.shard) as archive:
        content = next(archive.read([file]))
    return CONTENT_KINDS[algorithm.content_key_type or "string"](content.decode().strip())


def _files(call: Call, records: list[_Record]) -> Iterator[File]:
    for record in records:
        with opened(call.store, record.shard) as archive:
            yield from archive.copied(record.files)


def _info(job: Job) -> dict[str, Any]:
    done = bool(job.ended_ns)
    elapsed = (job.ended_ns or time.time_ns()) - job.started_ns
    phase = {
        "started_time": rfc3339(job.started_ns),
        "end_time": rfc3339(job.ended_ns),
        "elapsed": elapsed,
        "running": not done,
        "finished": done,
    }
    idle = {"total_ms": "0", "count": "0", "min_ms": "9223372036854775807", "max_ms": "0", "avg_ms": "0"}
    errors = {"errors": job.errors} if job.errors else {}
    return {
        "id": job.id,
        "src-bck": bucket_json(job.source),
        "dst-bck": bucket_json(job.to),
        "started_time": rfc3339(job.started_ns),
        "finish_time": rfc3339(job.ended_ns),
        "started_meta_sorting": elapsed,
        "started_shard_creation": 0,
        "finished_shard_creation": 0,
        "loc-objs": str(job.objects),
        "loc-bytes": str(job.bytes),
        "Metrics": {
            "local_extraction": {
                **phase,
                "total_count": str(job.objects),
                "extracted_count": str(job.objects),
                "extracted_size": str(job.bytes),
                "extracted_record_count": str(job.files),
                "extracted_to_disk_count": "0",
                "extracted_to_disk_size": "0",
            },
            "meta_sorting": {**phase, "sent_stats": idle, "recv_stats": idle},
            "shard_creation": {
                **phase,
                "to_create": str(job.created),
                "created_count": str(job.created),
                "moved_shard_count": "0",
            },
            "aborted": job.aborted,
            "archived": False,
            **errors,
        },
        "aborted": job.aborted,
        "archived": False,
    }
