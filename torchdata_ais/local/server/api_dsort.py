"""Distributed sort."""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from .api_groups import BucketRef, bucket_of, endless, expand, is_range
from .archive import EXTENSIONS, File, Member, extension_of, find_names, opened, packed
from .http import Reply
from .jobs import Job, bucket_json, rfc3339
from .names import check_object_name, new_id
from .problem import Int, ReplyError, not_implemented, typed
from .routes import Call, route
from .store import Bucket, Object

KINDS = ("", "alphanumeric", "none", "md5", "shuffle", "content")
CONTENT_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "string": str}


class _Names(msgspec.Struct):
    """Selection of the shards to sort."""

    template: str | None = None
    objnames: list[str] | None = None


class Algorithm(msgspec.Struct):
    """Order of the sort."""

    kind: str | None = None
    decreasing: bool | None = None
    seed: str | Int | None = None
    extension: str | None = None
    content_key_type: str | None = None


_KNOWN: dict[str, Any] = {
    "input_bck": BucketRef,
    "output_bck": BucketRef,
    "input_extension": "",
    "output_extension": "",
    "input_format": _Names,
    "output_format": "",
    "output_shard_size": str | int,
    "algorithm": Algorithm,
    # Settings of the real one's resources: the result does not depend on them.
    "description": msgspec.Raw,
    "max_mem_usage": msgspec.Raw,
    "extract_concurrency_max_limit": msgspec.Raw,
    "create_concurrency_max_limit": msgspec.Raw,
    "dsorter_type": msgspec.Raw,
}


@dataclass
class Spec:
    """A request after all checks."""

    source: str
    to: str
    shards: list[Object]
    extension: str
    names: str
    shard_bytes: int
    algorithm: Algorithm


def parse_spec(call: Call) -> Spec:
    """Return the request after all checks."""
    spec = typed(call.message, "dsort", _KNOWN)
    if spec["input_bck"] is None or not spec["input_bck"].name:
        raise _bad("input_bck", "missing source bucket")
    source = bucket_of(spec["input_bck"])
    to = bucket_of(spec["output_bck"]) if spec["output_bck"] and spec["output_bck"].name else source
    bucket = call.store.bucket(source)
    call.store.bucket(to)
    size = _parse_size(str(spec["output_shard_size"] or "0"))
    if not size:
        raise not_implemented("dsort without output_shard_size")
    algorithm = spec["algorithm"] or Algorithm()
    _check_algorithm(algorithm)
    extension = spec["input_extension"]
    shards = list(_inputs(spec["input_format"] or _Names(), extension, bucket))
    output = spec["output_format"]
    out_ext = extension_of(output) or spec["output_extension"] or extension or ".tar"
    if out_ext not in EXTENSIONS:
        raise _bad("output_extension", f"invalid extension, expecting one of: {list(EXTENSIONS)}")
    if out_ext == ".tar.lz4":
        raise not_implemented("archives in .tar.lz4")
    check_object_name(next(endless(output)))  # refuse a bad template now
    return Spec(source, to, shards, out_ext, output, size, algorithm)


def _check_algorithm(algorithm: Algorithm) -> None:
    if (algorithm.kind or "") not in KINDS:
        raise _bad("algorithm", f"invalid algorithm, expecting one of: {list(KINDS)}")
    if algorithm.kind == "content" and not (algorithm.extension or "").startswith("."):
        raise _bad("algorithm", "algorithm: invalid extension")
    if (algorithm.content_key_type or "string") not in CONTENT_KINDS:
        raise _bad("algorithm", f"invalid content_key_type, expecting one of: {list(CONTENT_KINDS)}")


def _bad(field: str, why: str) -> ReplyError:
    return ReplyError(400, f'[dsort] parse-spec: "{field}" {why}', "wrapError")


def _inputs(wanted: _Names, extension: str, bucket: Bucket) -> Iterator[Object]:
    template = wanted.template or ""
    if not wanted.objnames and not is_range(template):
        yield from (entry for entry in bucket.with_prefix(template) if entry.name.endswith(extension))
        return
    for name in wanted.objnames or expand(template):
        entry = bucket.objects.get(name if extension_of(name) else name + extension)
        if entry is not None:
            yield entry


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)I?B?", re.IGNORECASE)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _bad("output_shard_size", f'invalid size "{text:.100}"')
    return int(float(match.group(1)) * 1024 ** " KMGT".index(match.group(2).upper() or " "))


@dataclass
class _Record:
    """One sample: its key and its files, each with its shard."""

    key: str
    shard: Object
    files: list[Member]


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
        return Reply.plain_json([_info(jobs[position]) for position in found_at])
    return Reply.plain_json({call.cluster.targets[0].id: _info(_job(call, "%!s(<nil>): "))})


@route("proxy", "DELETE", "sort", "abort", query="uuid", sdk="Dsort.abort")
def abort(call: Call) -> Reply:
    """End a job (``sort/abort``) before its next shard; written shards stay."""
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
    """Yield the records of each new shard, which the last record fills."""
    batch: list[_Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += sum(file.size for file in record.files)
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


def _content_key(call: Call, record: _Record, algorithm: Algorithm) -> object:
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
            **({"errors": job.errors} if job.errors else {}),
        },
        "aborted": job.aborted,
        "archived": False,
    }
