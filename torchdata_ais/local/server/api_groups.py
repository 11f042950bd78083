"""Operations on groups of objects."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from .archive import File, opened, packed, wanted_extension
from .files import file_blocks
from .http import Reply
from .jobs import Job
from .names import check_bucket_name, check_object_name
from .problem import ReplyError, not_implemented, object_missing
from .routes import Call, route
from .store import Object

_RANGE = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")
MAX_NAMES = 10_000_000  # as AIStore
MAX_RANGES = 16


def is_range(template: str) -> bool:
    """Report whether the template is a range; without braces it is a prefix."""
    if "{" in template and "}" in template:
        return True
    if "@" in template or "%" in template:
        raise not_implemented(f"template {template!r:.200} (only ranges in braces)")
    return False


_FORMAT = re.compile(r"([^%]*)%(?:0([0-9]{1,3}))?d([^%]*)")


def endless(template: str) -> Iterator[str]:
    """Yield the names of a range template, or without end of ``shard-%06d``."""
    match = _FORMAT.fullmatch(template)
    if match is None:
        if not is_range(template):
            raise ReplyError(400, f'prefix-only template not supported (prefix: "{template:.200}")')
        yield from expand(template)
        return
    head, width, tail = match.groups()
    for number in itertools.count():
        yield f"{head}{number:0{int(width or 1)}d}{tail}"


def expand(template: str) -> Iterator[str]:
    """Return the names of a range template lazily: there may be millions."""
    texts, ranges = [], []
    total = 1
    for index, piece in enumerate(_RANGE.split(template)):
        if index % 2 == 0:
            texts.append(piece)
            continue
        ranges.append(_numbers(piece, template))
        total *= len(ranges[-1][0])
        if total > MAX_NAMES:
            raise ReplyError(400, f"parsed-template: too many values (more than {MAX_NAMES} max)")
    if len(ranges) > MAX_RANGES:
        raise _invalid(template, f"more than {MAX_RANGES} ranges")
    return _names(texts, ranges)


def _names(texts: list[str], ranges: list[tuple[range, int]]) -> Iterator[str]:
    if not ranges:
        yield texts[0]
        return
    numbers, width = ranges[0]
    for number in numbers:
        begin = f"{texts[0]}{number:0{width}d}"
        for rest in _names(texts[1:], ranges[1:]):
            yield begin + rest


def _numbers(text: str, template: str) -> tuple[range, int]:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise _invalid(template, "expecting e.g. 'prefix-{0001..0010..1}-suffix'")
    first, last, step = match.groups()
    if int(first) > int(last):
        raise _invalid(template, "'start' cannot be greater than 'end'")
    if step is not None and not int(step):
        raise _invalid(template, "'step' is non-positive")
    return range(int(first), int(last) + 1, int(step or 1)), min(len(first), len(last))


def _invalid(template: str, why: str) -> ReplyError:
    return ReplyError(400, f"invalid 'bash' template \"{template:.200}\" ({why})")


GROUP_FIELDS: dict[str, Any] = {"objnames": list[str], "template": "", "coer": False, "num_workers": 0}
COPY_FIELDS: dict[str, Any] = {
    "prefix": "",
    "prepend": "",
    "dry_run": False,
    "force": False,
    "latest_ver": False,
    "num_workers": 0,
}


class BucketRef(msgspec.Struct):
    """A bucket in the JSON of a request."""

    name: str | None = None
    provider: str | None = None
    namespace: dict[str, str | None] | None = None


def _entries(call: Call, wanted: dict[str, Any]) -> Iterator[tuple[str, Object | None]]:
    """Yield names and objects of a list, a range, a prefix, or (empty) all."""
    names = wanted["objnames"]
    template = wanted["template"]
    if names is not None and template:
        raise ReplyError(400, "objnames and template cannot be given together")
    if names is None and (template in ("", "*") or not is_range(template)):
        for entry in call.source.with_prefix("" if template == "*" else template):
            yield entry.name, entry
        return
    objects = call.source.objects
    for name in expand(template) if names is None else names:
        yield name, objects.get(name)


def run_on_group(call: Call, job: Job, wanted: dict[str, Any]) -> Iterator[Object]:
    """Yield the objects that exist.

    A missing one of a list is an error of the job; one of a range is not.
    """
    for name, entry in _entries(call, wanted):
        if entry is not None:
            yield entry
        elif wanted["objnames"] is not None:
            job.errors.append(object_missing(call.cluster.targets[0].tag, call.bucket, name).message)
            if not wanted["coer"]:
                return


@route("proxy", "DELETE", "bucket", "delete-listrange", sdk="ObjectGroup.delete")
def delete_group(call: Call) -> Reply:
    """Remove the objects of the group that exist."""
    wanted = call.fields(**GROUP_FIELDS)
    with call.cluster.jobs.run("delete-listrange", bucket=call.bucket) as job:
        for _, entry in _entries(call, wanted):  # missing ones need not be deleted
            if entry is not None and call.store.delete(call.bucket, entry.name):
                job.add(entry.size)
    return Reply.text(job.id)


@route("proxy", "POST", "bucket", "copy-listrange", sdk="ObjectGroup.copy")
def copy_group(call: Call) -> Reply:
    """Copy the objects of the group into another bucket."""
    wanted = call.fields(**GROUP_FIELDS | COPY_FIELDS, tobck=BucketRef)
    to = call.store.bucket(bucket_of(wanted["tobck"])).name
    with call.cluster.jobs.run("copy-listrange", call.bucket, call.bucket, to, prefix="tco-") as job:
        copy_all(call, job, run_on_group(call, job, wanted), to, wanted)
    return Reply.text(job.id)


def copy_all(call: Call, job: Job, entries: Iterable[Object], to: str, wanted: dict[str, Any]) -> None:
    """Copy objects into a bucket; `wanted` are the `COPY_FIELDS`."""
    for entry in entries:
        name = wanted["prepend"] + entry.name
        check_object_name(name)
        if not wanted["dry_run"]:
            call.store.copy(entry, to, name)
        job.add(entry.size)


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
@route("proxy", "POST", "bucket", "prefetch-listrange", sdk="ObjectGroup.prefetch")
def evict_or_prefetch(call: Call) -> Reply:
    """Only remote buckets can be evicted or prefetched, and there are none."""
    what = "prefetch-listrange" if call.request.method == "POST" else "evict-remote-bck"
    raise ReplyError(400, f"{what}: expecting remote bucket (have ais://{call.bucket})", "ErrNotRemoteBck")


@route("proxy", "PUT", "bucket", "archive", sdk="ObjectGroup.archive")
def archive_group(call: Call) -> Reply:
    """Put the objects of the group into an archive; `aate` appends to a tar."""
    wanted = call.fields(**GROUP_FIELDS, archname="", isbn=False, aate=False, mime="", tobck=BucketRef)
    to = bucket_of(wanted["tobck"]) if wanted["tobck"] else call.bucket
    name = wanted["archname"]
    check_object_name(name)
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    unknown = ReplyError(400, f'unknown filename extension ("{name}", "{suffix}")', "errUnknownFileExt")
    ext = wanted_extension(name, wanted["mime"], unknown)
    before = call.store.bucket(to).objects.get(name) if wanted["aate"] else None
    if before is not None and ext != ".tar":
        raise not_implemented(f"appending to an archive in {ext}")
    with call.cluster.jobs.run("archive", call.bucket, call.bucket, to) as job:
        now = int(time.time())
        files: list[File] = []
        if before is not None:
            with opened(call.store, before) as archive:
                files += archive.copied(archive.files, now)
        for entry in run_on_group(call, job, wanted):
            job.add(entry.size)
            path = f"{call.bucket}/{entry.name}" if wanted["isbn"] else entry.name
            files.append(File(path, entry.size, file_blocks(call.store.path(entry)), now))
        if not job.errors or wanted["coer"]:
            call.store.put(to, name, packed(ext, files))
    return Reply.text(job.id)
