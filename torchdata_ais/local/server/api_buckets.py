"""Buckets: create, list, head, rename, copy, remove, and their summaries."""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage
from typing import Any

import msgspec

from .api_groups import COPY_FIELDS, copy_all
from .fields import typed
from .files import DIGESTS
from .jobs import bucket_json
from .names import new_id
from .problem import ReplyError
from .reply import Reply
from .routes import Call, route
from .store import Bucket

_PROPS: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name("bucket_props.json").read_bytes())
"""AIStore's defaults. What is switched off there does not exist here."""


@route("proxy", "GET", "buckets", "list", sdk="Cluster.list_buckets")
def list_buckets(call: Call) -> Reply:
    """All buckets by name."""
    return Reply.json([bucket_json(name) for name in sorted(call.store.buckets)])


@route("proxy", "POST", "bucket", "create-bck", sdk="Bucket.create")
def create(call: Call) -> Reply:
    """Make a bucket; of its properties the kind of checksums and erasure coding can be set.

    Erasure coding changes the answer to a GET of a missing object. There are no slices.
    """
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
    """Properties and summary: 202 with the id of a job first, the answer when asked with that id."""
    props = _props_header(call.source)
    job_id = call.query.get("uuid", "")
    if not job_id:
        return Reply(202, props | {"Ais-Xaction-Id": new_id()})
    text = msgspec.json.encode(_summary(call, call.name, present=True)).decode()
    return Reply(200, props | {"Ais-Bucket-Summ": text, "Ais-Xaction-Id": job_id})


@route("proxy", "GET", "bucket", "summary-bck", sdk="Bucket.summary")
def summary(call: Call) -> Reply:
    """Count and size of the objects: 202 with the id of a job first, the answer when asked with that id."""
    wanted = call.fields(uuid="", prefix="", cached=True, present=True)
    if not wanted["uuid"]:
        return Reply.text(new_id(), status=202)
    return Reply.plain_json([_summary(call, wanted["prefix"], present=False)])


@route("proxy", "POST", "bucket", "copy-bck", query="bck_to", sdk="Bucket.copy")
def copy(call: Call) -> Reply:
    """Copy the objects with a prefix into another bucket, which is made if it is missing."""
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
