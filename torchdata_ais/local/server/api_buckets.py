"""Buckets and listings."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from shutil import disk_usage
from typing import Any

import msgspec

from .api_groups import COPY_FIELDS, copy_all
from .archive import Member, NotAnArchiveError, extension_of, opened
from .faults import DropEntry
from .files import DIGESTS
from .http import Reply
from .jobs import bucket_json
from .names import SHARD_INDEXES, check_prefix, new_id
from .problem import ReplyError, not_implemented, number, typed
from .routes import Call, route
from .store import Bucket, Object

# AIStore's defaults. Features that are off by default do not exist here.
_PROPS: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name("bucket_props.json").read_bytes())


@route("proxy", "GET", "buckets", "list", sdk="Cluster.list_buckets")
def list_buckets(call: Call) -> Reply:
    """All buckets by name."""
    return Reply.json([bucket_json(name) for name in sorted(call.store.buckets)])


@route("proxy", "POST", "bucket", "create-bck", sdk="Bucket.create")
def create(call: Call) -> Reply:
    """Make a bucket with a kind of checksums and erasure coding (no slices)."""
    wanted = call.fields(checksum=dict[str, msgspec.Raw], ec=dict[str, msgspec.Raw])
    kind = typed(wanted["checksum"] or {}, "checksum", {"type": "xxhash2"})["type"]
    if kind not in DIGESTS:
        raise ReplyError(400, f"invalid checksum type {kind!r:.100}")
    sizes = dict.fromkeys(("objsize_limit", "data_slices", "parity_slices", "disk_only"), msgspec.Raw)
    ec = typed(wanted["ec"] or {}, "ec", {"enabled": False, **sizes})["enabled"]
    call.store.create_bucket(call.bucket, kind, ec)
    return Reply()


@route("proxy", "DELETE", "bucket", "destroy-bck", sdk="Bucket.delete")
def destroy(call: Call) -> Reply:
    """Remove a bucket and its objects."""
    call.store.drop_bucket(call.bucket)
    return Reply()


@route("proxy", "POST", "bucket", "move-bck", query="bck_to", sdk="Bucket.rename")
def rename(call: Call) -> Reply:
    """Give the bucket another name."""
    to = call.other_bucket()
    if to == call.bucket:
        raise ReplyError(400, f'cannot rename bucket "ais://{to}" to itself ("ais://{to}")')
    with call.cluster.jobs.run("move-bck", bucket=to, source=call.bucket, to=to) as job:
        call.store.rename_bucket(call.bucket, to)
    return Reply.text(job.id)


@route("proxy", "HEAD", "bucket", sdk="Bucket.head")
def head(call: Call) -> Reply:
    """The bucket's properties, in a header."""
    return Reply(200, _props_header(call.source))


@route("proxy", "HEAD", "bucket", "bsumm_remote", query="bsumm_remote presence uuid", sdk="Bucket.info")
def info(call: Call) -> Reply:
    """Properties and summary; the first answer is 202 with the id of a job."""
    props = _props_header(call.source)
    job_id = call.query.get("uuid", "")
    if not job_id:
        return Reply(202, props | {"Ais-Xaction-Id": new_id()})
    text = msgspec.json.encode(_summary(call, call.name, present=True)).decode()
    return Reply(200, props | {"Ais-Bucket-Summ": text, "Ais-Xaction-Id": job_id})


@route("proxy", "GET", "bucket", "summary-bck", sdk="Bucket.summary")
def summary(call: Call) -> Reply:
    """Count and size of the objects; first 202 with the id of a job."""
    wanted = call.fields(uuid="", prefix="", cached=True, present=True)
    if not wanted["uuid"]:
        return Reply.text(new_id(), status=202)
    return Reply.plain_json([_summary(call, wanted["prefix"], present=False)])


@route("proxy", "POST", "bucket", "copy-bck", query="bck_to", sdk="Bucket.copy")
def copy(call: Call) -> Reply:
    """Copy the objects with a prefix into a bucket, made if it is missing."""
    source = call.source
    to = call.other_bucket()
    wanted = call.fields(**COPY_FIELDS)
    if to == call.bucket and not wanted["prepend"]:
        raise ReplyError(400, f'cannot copy-bck bucket "ais://{to}" onto itself')
    if to not in call.store.buckets and not wanted["dry_run"]:
        call.store.create_bucket(to)
    with call.cluster.jobs.run("copy-bck", bucket=to, source=call.bucket, to=to) as job:
        copy_all(call, job, source.with_prefix(wanted["prefix"]), to, wanted)
    return Reply.text(job.id)


def _summary(call: Call, prefix: str, *, present: bool) -> dict[str, Any]:
    bucket = call.source
    sizes = [entry.size for name, entry in list(bucket.objects.items()) if name.startswith(prefix)]
    total = sum(sizes)
    return {
        **bucket_json(bucket.name),
        "ObjCount": {"obj_count_present": str(len(sizes)), "obj_count_remote": "0"},
        "ObjSize": {
            "obj_min_size": min(sizes, default=0),
            "obj_avg_size": total // len(sizes) if sizes else 0,
            "obj_max_size": max(sizes, default=0),
        },
        "TotalSize": {
            "size_on_disk": str(total),
            "size_all_present_objs": str(total),
            "size_all_remote_objs": "0",
            "total_disks_size": str(disk_usage(call.cluster.root).total),
        },
        "used_pct": 0,
        "is_present": present,
    }


def _props_header(bucket: Bucket) -> dict[str, str]:
    set_ones = {
        "checksum": {**_PROPS["checksum"], "type": bucket.checksum},
        "ec": {**_PROPS["ec"], "enabled": bucket.ec},
    }
    props = {**_PROPS, **set_ones, "bid": str(bucket.bid | 1 << 63), "created": str(bucket.created_ns)}
    return {"Ais-Bucket-Props": msgspec.json.encode(props).decode()}


PAGE_SIZE = 10_000

CACHED, ARCH_DIR, NAME_ONLY, NAME_SIZE, BUCKET_PRESENT = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 6
SUPPORTED_FLAGS = CACHED | ARCH_DIR | NAME_ONLY | NAME_SIZE | BUCKET_PRESENT

ENTRY_CACHED, ENTRY_IN_ARCHIVE, ENTRY_IS_ARCHIVE, ENTRY_CHUNKED = 1 << 6, 1 << 7, 1 << 9, 1 << 13

Entry = dict[str, Any]


@route(
    "proxy",
    "GET",
    "bucket",
    "list",
    sdk="Bucket.list_objects, .list_objects_iter, .list_all_objects, .list_urls",
)
def list_objects(call: Call) -> Reply:
    """One page: at most `pagesize` entries after the token, sorted by name."""
    bucket = call.source
    wanted = call.fields(
        prefix="",
        pagesize=0,
        uuid="",
        props="",
        continuation_token="",
        flags=int | str,
        start_after="",
    )
    flags = number(str(wanted["flags"] or 0), "list-objects flags")
    if flags & ~SUPPORTED_FLAGS:
        raise not_implemented(f"list-objects flags {flags & ~SUPPORTED_FLAGS:#x}")
    prefix = wanted["prefix"]
    check_prefix(prefix)
    after = max(wanted["continuation_token"], wanted["start_after"])
    size = wanted["pagesize"] or PAGE_SIZE
    if size < 0:
        raise ReplyError(400, f"bad list-objects request: invalid pagesize {size}")
    props = _props(wanted["props"], flags)
    if flags & ARCH_DIR:
        rows = _expanded(call, bucket, prefix, after, props)
    else:
        cluster = call.cluster
        rows = (
            _entry(call, entry, props)
            for entry in bucket.with_prefix(prefix, after)
            if call.bucket != SHARD_INDEXES
            or cluster.holder(call.bucket, entry.name) is cluster.owner(call.bucket, entry.name)
        )
    page = list(islice(rows, size + 1))
    token = page[size - 1]["n"] if len(page) > size else ""
    del page[size:]
    for drop in call.plan.all(DropEntry):
        victim = next((index for index, row in enumerate(page) if fnmatchcase(row["n"], drop.name)), None)
        if victim is not None:
            del page[victim]
    uuid = wanted["uuid"] or new_id()
    if call.request.headers.get("accept") == "application/msgpack":
        body = {"UUID": uuid, "ContinuationToken": token, "Entries": page, "Flags": 0}
        return Reply(200, {"Content-Type": "application/msgpack"}, msgspec.msgpack.encode(body))
    entries = [
        {LONG_KEYS[key]: str(value) if key == "s" else value for key, value in row.items()} for row in page
    ]
    return Reply.json({"uuid": uuid, "continuation_token": token, "entries": entries, "flags": 0})


def _props(text: str, flags: int) -> frozenset[str]:
    """The properties wanted; as in AIStore, unknown ones are ignored."""
    if flags & NAME_ONLY:
        return frozenset()
    if flags & NAME_SIZE or not text:
        return frozenset(("size",))
    return frozenset(item.strip() for item in text.split(","))


# By property: its key in an entry, and its value; empty ones are left out.
PROPS: dict[str, tuple[str, Callable[[Call, Object], Any]]] = {
    "checksum": ("cs", lambda _, entry: entry.checksum),
    "atime": (
        "a",
        lambda _, entry: time.strftime("%d %b %y %H:%M UTC", time.gmtime(entry.atime_ns // 1_000_000_000)),
    ),
    "version": ("v", lambda _, entry: str(entry.version)),
    "location": ("t", lambda call, entry: call.cluster.location(call.bucket, entry.name)),
    "custom": ("m", lambda _, entry: _custom(entry.custom)),
    "size": ("s", lambda _, entry: entry.size),
    "copies": ("c", lambda *_: 1),
}
# Keys of an entry in JSON by those in msgpack.
LONG_KEYS = {"n": "name", "f": "flags", **{key: prop for prop, (key, _) in PROPS.items()}}


def _entry(call: Call, entry: Object, props: frozenset[str]) -> Entry:
    wanted = ((key, tell(call, entry)) for prop, (key, tell) in PROPS.items() if prop in props)
    flags = ENTRY_CACHED | (ENTRY_CHUNKED if entry.parts else 0)
    return {"n": entry.name, **{key: value for key, value in wanted if value}, "f": flags}


def _custom(custom: dict[str, str]) -> str:
    pairs = " ".join(f"{key}:{value}" for key, value in sorted(custom.items()))
    return f"[{pairs}]" if pairs else ""


def _expanded(call: Call, bucket: Bucket, prefix: str, after: str, props: frozenset[str]) -> Iterable[Entry]:
    """Objects and the files in archives, sorted together."""
    rows: list[Entry] = []
    for entry in bucket.with_prefix(prefix):
        row = _entry(call, entry, props)
        rows.append(row)
        if not extension_of(entry.name):
            continue
        row["f"] |= ENTRY_IS_ARCHIVE
        for name, _, size in _files_in(call, entry):
            inner: Entry = {"n": f"{entry.name}/{name}"}
            if "size" in props and size:
                inner["s"] = size
            inner["f"] = ENTRY_CACHED | ENTRY_IN_ARCHIVE
            rows.append(inner)
    rows.sort(key=lambda row: row["n"])
    return rows[bisect_right(rows, after, key=lambda row: row["n"]) if after else 0 :]


def _files_in(call: Call, entry: Object) -> tuple[Member, ...]:
    """Contents of an archive; nothing if an object has only the name of one."""
    try:
        with opened(call.store, entry) as archive:
            return archive.files
    except (FileNotFoundError, NotAnArchiveError):
        return ()
