"""Health, the cluster map, node status, and the states of jobs."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from .fields import decode
from .jobs import BATCH_KIND
from .nodes import HOST, Node
from .problem import ReplyError, not_implemented
from .reply import Reply
from .routes import Call, route

AIS_VERSION = "5.0"


class _Wanted:
    """Which job is asked about; Go takes the names in any case."""

    def __init__(self, fields: Mapping[str, msgspec.Raw]) -> None:
        known = {key.lower(): raw for key, raw in fields.items()}
        self.id, self.kind = (
            decode(known.get(name, b"null"), str | None, name) or "" for name in ("id", "kind")
        )

    def __str__(self) -> str:
        return f"x-{self.kind}[{self.id}]"


class _Listed(msgspec.Struct):
    """Which jobs are asked for."""

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
    """A node as the cluster map shows it. All three of its networks are the one that exists."""
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
    """Status of the node named in the header `Ais-Node-Id`, with what this process can measure."""
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
    wanted = _Wanted(call.value(dict[str, msgspec.Raw]) or {})
    for job in call.cluster.jobs.select(wanted.id, wanted.kind):
        job.abort()
    return Reply()


@route("proxy", "GET", "cluster", "status", query="what", sdk="Job.status, Job.wait")
def job_status(call: Call) -> Reply:
    """How one job ended."""
    wanted = _Wanted(call.message)
    job = call.cluster.jobs.get(wanted.id)
    if job is None:
        raise ReplyError(404, f"{call.node.tag}: {wanted} does not exist", "ErrNotFound")
    return Reply.plain_json(job.status())


@route("proxy", "GET", "cluster", "qryxstats", query="what", sdk="Job.get_details")
def job_details(call: Call) -> Reply:
    """What each target did for a job. All of it is booked on the first one."""
    wanted = _Wanted(call.message)
    jobs = call.cluster.jobs.select(wanted.id, wanted.kind)
    if not jobs:
        raise ReplyError(404, f'"{wanted}" not found')
    return Reply.json({call.cluster.targets[0].id: [job.snapshot() for job in jobs]})


@route("proxy", "GET", "cluster", "status_all", query="what", sdk="Cluster.list_jobs_status")
def all_jobs(call: Call) -> Reply:
    """How all jobs ended, or only those that have not."""
    wanted = call.body(_Listed)
    call.cluster.jobs.running()  # ends what is idle
    jobs = call.cluster.jobs.select(kind=wanted.kind or "")
    return Reply.plain_json([job.status() for job in jobs if not (job.ended_ns and wanted.show_active)])


@route("proxy", "GET", "cluster", "running_all", query="what", sdk="Cluster.list_running_jobs")
def running_jobs(call: Call) -> Reply:
    """Mostly none, as short work is done before its request is answered; that of GetBatch stays for a while."""
    jobs = call.cluster.jobs.running(call.body(_Listed).kind or "")
    return Reply.json([f"{job.kind}[{job.id}]" for job in jobs])


@route("proxy", "PUT", "cluster", "start-maintenance", query="frc")
@route("proxy", "PUT", "cluster", "stop-maintenance", query="frc")
def maintenance(call: Call) -> Reply:
    """Refuse it while the job of GetBatch is there, as a real cluster does. There is no maintenance here otherwise."""
    action = call.text("action")
    for job in call.cluster.jobs.running(BATCH_KIND):
        message = f"{call.node.tag}: x-{job.kind}[{job.id}] is currently running, cannot run {action!r} concurrently"
        raise ReplyError(409, message, "ErrLimitedCoexistence")
    raise not_implemented(f"action {action!r}")
