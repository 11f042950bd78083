"""Health, nodes and jobs of the cluster."""

from __future__ import annotations

import resource
import tarfile
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import xxhash

from .http import Reply
from .jobs import BATCH_KIND, Job
from .names import HOST, SHARD_INDEXES, Node, index_name, new_id
from .problem import ReplyError, decode, not_implemented
from .routes import Call, route
from .state import Cluster
from .store import Object

AIS_VERSION = "5.0"


def _wanted(fields: Mapping[str, msgspec.Raw]) -> tuple[str, str]:
    """Return id and kind of the wanted job; Go takes names in any case."""
    known = {key.lower(): raw for key, raw in fields.items()}
    job_id, kind = (decode(known.get(name, b"null"), str | None, name) or "" for name in ("id", "kind"))
    return job_id, kind


class _Listed(msgspec.Struct):
    """Query for jobs."""

    kind: str | None = None
    show_active: bool | None = None


@route("proxy", "GET", "health", query="prr", sdk="Cluster.is_ready")
def health(call: Call) -> Reply:
    """The node answers, so it is up; the whole cluster came up with it."""
    up = str(time.time_ns() - call.cluster.started_ns)
    return Reply(200, {"Ais-Cluster-Uptime": up, "Ais-Node-Uptime": up})


@route("target", "GET", "health", query="prr")
def target_health(call: Call) -> Reply:  # noqa: ARG001
    """The target answers, so it is up."""
    return Reply()


def node_json(node: Node) -> dict[str, Any]:
    """A node of the cluster map; its three networks are one."""
    net = {"node_ip_addr": HOST, "daemon_port": str(node.port), "direct_url": node.url}
    return {
        "public_net": net,
        "intra_data_net": net,
        "intra_control_net": net,
        "daemon_type": node.role,
        "daemon_id": node.id,
        "flags": 2 if node.role == "proxy" else 0,
        "id_digest": node.digest,
    }


@route("proxy", "GET", "daemon", "smap", query="what", sdk="Cluster.get_info")
@route("target", "GET", "daemon", "smap", query="what")
def smap(call: Call) -> Reply:
    """The cluster map."""
    cluster = call.cluster
    proxy = node_json(cluster.proxy)
    return Reply.json(
        {
            "pmap": {cluster.proxy.id: proxy},
            "proxy_si": proxy,
            "tmap": {node.id: node_json(node) for node in cluster.targets},
            "uuid": cluster.uuid,
            "creation_time": cluster.created,
            "version": str(len(cluster.targets) + 1),
        }
    )


@route("proxy", "GET", "reverse", "node_status", query="what", sdk="Cluster.get_performance")
def node_status(call: Call) -> Reply:
    """Status of the node in header `Ais-Node-Id`, as measured by this process."""
    wanted = call.request.headers.get("ais-node-id", "")
    node = next((node for node in call.cluster.targets if node.id == wanted), None)
    if node is None:
        raise ReplyError(404, f'node "{wanted}" not found', "ErrNotFound")
    uptime = time.time_ns() - call.cluster.started_ns
    counts = {f"{method.lower()}.n": 0 for method in ("GET", "PUT", "HEAD", "DELETE")}
    for role, method, _, count in call.cluster.stats()["requests"]:
        if role == "target" and f"{method.lower()}.n" in counts:
            counts[f"{method.lower()}.n"] += count
    return Reply.json(
        {
            "snode": node_json(node),
            "tracker": {"up.ns.time": {"v": str(uptime)}, **{k: {"v": str(v)} for k, v in counts.items()}},
            "capacity": {},
            "rebalance_snap": None,
            "status": "online",
            "deployment": "embedded",
            "ais_version": AIS_VERSION,
            "build_time": "",
            "k8s_pod_name": "",
            "sys_info": {
                "pct_cpu_used": 0,
                "mem_used": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            },
            "smap_version": str(len(call.cluster.targets) + 1),
        }
    )


@route("proxy", "PUT", "cluster", "stop", query="frc", sdk="Job.abort")
def stop_job(call: Call) -> Reply:
    """Abort a job: its work ends before the next object."""
    for job in call.cluster.jobs.select(*_wanted(call.value(dict[str, msgspec.Raw]) or {})):
        job.abort()
    return Reply()


@route("proxy", "GET", "cluster", "status", query="what", sdk="Job.status, Job.wait")
def job_status(call: Call) -> Reply:
    """Result of one job."""
    job_id, kind = _wanted(call.message)
    job = call.cluster.jobs.get(job_id)
    if job is None:
        raise ReplyError(404, f"{call.node.tag}: x-{kind}[{job_id}] does not exist", "ErrNotFound")
    return Reply.plain_json(job.status())


@route("proxy", "GET", "cluster", "qryxstats", query="what", sdk="Job.get_details")
def job_details(call: Call) -> Reply:
    """Snapshots of a job on each target; all work counts for the first one."""
    job_id, kind = _wanted(call.message)
    jobs = call.cluster.jobs.select(job_id, kind)
    if not jobs:
        raise ReplyError(404, f'"x-{kind}[{job_id}]" not found')
    return Reply.json({call.cluster.targets[0].id: [job.snapshot() for job in jobs]})


@route("proxy", "GET", "cluster", "status_all", query="what", sdk="Cluster.list_jobs_status")
def all_jobs(call: Call) -> Reply:
    """Results of all jobs, or only of those that run."""
    wanted = call.body(_Listed)
    call.cluster.jobs.running()  # ends idle jobs
    jobs = call.cluster.jobs.select(kind=wanted.kind or "")
    return Reply.plain_json([job.status() for job in jobs if not (job.ended_ns and wanted.show_active)])


@route("proxy", "GET", "cluster", "running_all", query="what", sdk="Cluster.list_running_jobs")
def running_jobs(call: Call) -> Reply:
    """Running jobs: mostly that of GetBatch, as others end before the answer."""
    jobs = call.cluster.jobs.running(call.body(_Listed).kind or "")
    return Reply.json([f"{job.kind}[{job.id}]" for job in jobs])


@route("proxy", "PUT", "cluster", "start-maintenance", query="frc")
@route("proxy", "PUT", "cluster", "stop-maintenance", query="frc")
def maintenance(call: Call) -> Reply:
    """Refuse maintenance while the job of GetBatch runs, as a real cluster.

    Otherwise this cluster has none.
    """
    action = call.text("action")
    for job in call.cluster.jobs.running(BATCH_KIND):
        message = f"{call.node.tag}: x-{job.kind}[{job.id}] is currently running, cannot run {action!r} concurrently"
        raise ReplyError(409, message, "ErrLimitedCoexistence")
    raise not_implemented(f"action {action!r}")


_SEED = 1103515245
_MOST = 1 << 20


@route("proxy", "POST", "bucket", "index-shard")
def index_shards(call: Call) -> Reply:
    """Index the tars whose names begin with `prefix`, without compressed ones."""
    bucket = call.source
    wanted = call.fields(prefix="", num_workers=0, skip_verify=False)
    names = [name for name in bucket.names() if name.startswith(wanted["prefix"]) and name.endswith(".tar")]
    job = Job(new_id(), "index-shard", call.bucket)
    call.cluster.jobs.start(job, lambda: _index(call.cluster, call.bucket, names, job))
    return Reply.text(job.id)


def _index(cluster: Cluster, bucket: str, names: list[str], job: Job) -> None:
    """Index the shards; one that is not a tar ends the work of its target."""
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
    """Name, last header's offset and size of each regular member.

    Of equal names the first.
    """
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
