"""Operations on groups of objects, given by names or by a template: delete, copy, archive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from .archive import TAR_END, contents, extension_of, tar_member, tgz_of, zip_of
from .jobs import Job
from .names import check_bucket_name, check_object_name
from .problem import ReplyError, bucket_missing, not_implemented, object_missing
from .reply import Reply
from .routes import Call, route
from .store import Object
from .template import expand, is_range

__all__ = ["SELECTION", "BucketRef", "bucket_of", "run_on_group", "select"]

SELECTION: dict[str, Any] = {"objnames": list[str], "template": ""}


class BucketRef(msgspec.Struct):
    """A bucket in the JSON of a request."""

    name: str | None = None
    provider: str | None = None
    namespace: dict[str, str | None] | None = None


def select(call: Call, wanted: dict[str, Any]) -> Iterator[str]:
    """Yield the names that a request means: a list, a range, all with a prefix, or (empty) all."""
    names = wanted["objnames"]
    template = wanted["template"]
    if names is not None and template:
        raise ReplyError(400, "objnames and template cannot be given together")
    if names is not None:
        yield from names
    elif template not in ("", "*") and is_range(template):
        yield from expand(template)
    else:
        prefix = "" if template == "*" else template
        bucket = call.cluster.store.bucket(call.bucket)
        yield from [name for name in bucket.names() if name.startswith(prefix)]


def run_on_group(call: Call, job: Job, wanted: dict[str, Any]) -> Iterator[Object]:
    """Yield the objects that exist; a missing one of a list is an error of the job, of a range it is none."""
    bucket = call.cluster.store.bucket(call.bucket)
    for name in select(call, wanted):
        entry = bucket.objects.get(name)
        if entry is not None:
            yield entry
        elif wanted["objnames"] is not None:
            job.errors.append(object_missing(call.cluster.targets[0].tag, call.bucket, name).message)
            if not wanted.get("coer"):
                return


@route("proxy", "DELETE", "bucket", "delete-listrange", sdk="ObjectGroup.delete")
def delete_group(call: Call) -> Reply:
    """Remove the objects of the group that exist."""
    call.cluster.store.bucket(call.bucket)
    wanted = call.fields(**SELECTION, coer=False, num_workers=0)
    with call.cluster.jobs.run("delete-listrange", bucket=call.bucket) as job:
        for entry in run_on_group(call, job, {**wanted, "coer": True}):
            if call.cluster.store.delete(call.bucket, entry.name):
                job.add(entry.size)
        job.errors.clear()  # what is not there need not be deleted
    return Reply.text(job.id)


@route("proxy", "POST", "bucket", "copy-listrange", sdk="ObjectGroup.copy")
def copy_group(call: Call) -> Reply:
    """Copy the objects of the group into another bucket."""
    store = call.cluster.store
    store.bucket(call.bucket)
    wanted = call.fields(
        **SELECTION,
        prefix="",
        prepend="",
        dry_run=False,
        force=False,
        latest_ver=False,
        tobck=BucketRef,
        coer=False,
        num_workers=0,
    )
    to = bucket_of(wanted["tobck"])
    if to not in store.buckets:
        raise bucket_missing(to)
    with call.cluster.jobs.run(
        "copy-listrange", bucket=call.bucket, source=call.bucket, to=to, prefix="tco-"
    ) as job:
        for entry in run_on_group(call, job, wanted):
            check_object_name(wanted["prepend"] + entry.name)
            if not wanted["dry_run"]:
                store.copy(entry, to, wanted["prepend"] + entry.name)
            job.add(entry.size)
    return Reply.text(job.id)


def bucket_of(value: BucketRef | None) -> str:
    """The name in a bucket's JSON form."""
    bucket = value or BucketRef()
    if bucket.provider not in ("ais", "", None):
        raise not_implemented(f"provider {bucket.provider!r:.100}")
    if bucket.namespace and any(bucket.namespace.values()):
        raise not_implemented(f"namespace {bucket.namespace!r:.100}")
    check_bucket_name(bucket.name or "")
    return bucket.name or ""


@route("proxy", "DELETE", "bucket", "evict-listrange", sdk="ObjectGroup.evict")
@route("proxy", "DELETE", "bucket", "evict-remote-bck", query="keep_bck_md", sdk="Bucket.evict")
def evict(call: Call) -> Reply:
    """Only remote buckets can be evicted, and there are none."""
    raise _not_remote(call, "evict-remote-bck")


@route("proxy", "POST", "bucket", "prefetch-listrange", sdk="ObjectGroup.prefetch")
def prefetch(call: Call) -> Reply:
    """Only remote buckets can be prefetched, and there are none."""
    raise _not_remote(call, "prefetch-listrange")


def _not_remote(call: Call, what: str) -> ReplyError:
    call.cluster.store.bucket(call.bucket)
    return ReplyError(400, f"{what}: expecting remote bucket (have ais://{call.bucket})", "ErrNotRemoteBck")


@route("proxy", "PUT", "bucket", "archive", sdk="ObjectGroup.archive")
def archive_group(call: Call) -> Reply:
    """Put the objects of the group into one archive, new or (`aate`, tar only) with what is in it already."""
    store = call.cluster.store
    store.bucket(call.bucket)
    wanted = call.fields(
        **SELECTION, archname="", isbn=False, aate=False, coer=False, mime="", tobck=BucketRef, num_workers=0
    )
    to = bucket_of(wanted["tobck"]) if wanted["tobck"] else call.bucket
    name = wanted["archname"]
    check_object_name(name)
    ext = _archive_extension(name, wanted["mime"])
    before = store.bucket(to).objects.get(name) if wanted["aate"] else None
    if before is not None and ext != ".tar":
        raise not_implemented(f"appending to an archive in {ext}")
    with call.cluster.jobs.run("archive", bucket=call.bucket, source=call.bucket, to=to) as job:
        files = list(_files(call, job, wanted))
        if not job.errors or wanted["coer"]:
            old = _files_of(call, before) if before is not None else []
            store.put(to, name, [_pack(ext, old + files)])
    return Reply.text(job.id)


def _archive_extension(name: str, mime: str) -> str:
    ext = extension_of(mime if mime.startswith(".") else f".{mime}") if mime else extension_of(name)
    if not ext:
        suffix = "." + name.rpartition(".")[2] if "." in name else ""
        raise ReplyError(400, f'unknown filename extension ("{name}", "{suffix}")', "errUnknownFileExt")
    if ext == ".tar.lz4":
        raise not_implemented("archives in .tar.lz4")
    return ext


def _files(call: Call, job: Job, wanted: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for entry in run_on_group(call, job, wanted):
        content = call.cluster.store.path(entry).read_bytes()
        job.add(len(content))
        yield (f"{call.bucket}/{entry.name}" if wanted["isbn"] else entry.name), content


def _files_of(call: Call, entry: Object) -> list[tuple[str, bytes]]:
    with call.cluster.store.path(entry).open("rb") as file:
        archive = call.cluster.archives.load(file.fileno(), entry.file, entry.name)
        names = [name for name, _, _ in archive.files]
        return list(zip(names, contents(file.fileno(), archive, archive.files), strict=True))


def _pack(ext: str, files: list[tuple[str, bytes]]) -> bytes:
    if ext == ".zip":
        return zip_of(files)
    if ext != ".tar":
        return tgz_of(files)
    now = int(time.time())
    return b"".join([*(tar_member(name, content, now) for name, content in files), TAR_END])
