"""The job ``index-shard``: what is in each tar of a bucket, written to the bucket ``.sys-shardidx``."""

from __future__ import annotations

import tarfile

import xxhash

from .jobs import Job
from .names import SHARD_INDEXES, index_name, new_id
from .reply import Reply
from .routes import Call, route
from .state import Cluster
from .store import Object

_SEED = 1103515245
_MOST = 1 << 20


@route("proxy", "POST", "bucket", "index-shard")
def index_shards(call: Call) -> Reply:
    """Index the tars whose names begin with `prefix`. Compressed ones are passed over."""
    bucket = call.source
    wanted = call.fields(prefix="", num_workers=0, skip_verify=False)
    names = [name for name in bucket.names() if name.startswith(wanted["prefix"]) and name.endswith(".tar")]
    job = Job(new_id(), "index-shard", call.bucket)
    call.cluster.jobs.start(job, lambda: _index(call.cluster, call.bucket, names, job))
    return Reply.text(job.id)


def _index(cluster: Cluster, bucket: str, names: list[str], job: Job) -> None:
    """Index the shards of each target in turn. One that is no tar ends the work of its target, as on a real one."""
    if SHARD_INDEXES not in cluster.store.buckets:
        cluster.store.create_bucket(SHARD_INDEXES)
    for target in cluster.targets:
        for name in names:
            if job.aborted:
                return
            shard = cluster.store.bucket(bucket).objects.get(name)
            if shard is None or cluster.owner(bucket, name) is not target:
                continue
            try:
                members = _members(cluster, shard)
            except (tarfile.TarError, OSError, ValueError):
                job.errors.append("shard index: tar reader failure: archive/tar: invalid tar header")
                break
            made = cluster.store.put(SHARD_INDEXES, index_name(bucket, name), [_encoded(shard, members)])
            made.version = 0  # objects of a system bucket have none
            # As AIStore 5.0: the shard's metadata note the index, and are stored as those of an object in one piece.
            cluster.store.store_as_one_piece(bucket, shard)
            job.add(shard.size)


def _members(cluster: Cluster, shard: Object) -> list[tuple[bytes, int, int]]:
    """Name, offset of the last header and size of each regular member; of equal names the first."""
    found: dict[bytes, tuple[int, int]] = {}
    with cluster.store.path(shard).open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for item in tar:
            if item.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and len(found) < _MOST:
                name = item.name.encode("utf-8", "surrogateescape")
                found.setdefault(name, (item.offset_data - tarfile.BLOCKSIZE, item.size))
    return [(name, *place) for name, place in found.items()]


def _encoded(shard: Object, members: list[tuple[bytes, int, int]]) -> bytes:
    payload = bytearray()
    for text in (shard.kind.encode(), shard.checksum.encode()):
        payload += _uvarint(len(text)) + text
    payload += _uvarint(shard.size) + _uvarint(len(members))
    for name, offset, size in members:
        payload += _uvarint(len(name)) + name + _uvarint(offset) + _uvarint(size)
    digest = xxhash.xxh64_intdigest(bytes(payload), _SEED)
    return b"\x01\x00\x01" + digest.to_bytes(8, "big") + payload


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
