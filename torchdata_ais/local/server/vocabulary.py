"""What AIStore knows: the paths, actions and questions of its API. What is not served of it is 501, the rest 400.

Taken from `api/apc` of AIStore 5.0 (``urlpaths.go``, ``actmsg.go``, ``query.go``) and its ``docs/http_api.md``.
"""

from __future__ import annotations

__all__ = ["ACTIONS", "is_known_path"]

# By the first part of the path after /v1: the parts that may follow. Others are names of buckets, transforms, nodes.
_PATHS: dict[str, frozenset[str]] = {
    "buckets": frozenset(),
    "objects": frozenset(),
    "health": frozenset(),
    "download": frozenset(("abort", "remove")),
    "etl": frozenset(),
    "ml": frozenset(("moss",)),
    "sort": frozenset(
        ("init", "start", "list", "abort", "shards", "records", "metrics", "finished_ack", "remove")
    ),
    "cluster": frozenset(
        [
            "proxy", "daemon", "join-by-admin", "autoreg", "keepalive", "set-config", "attach", "detach",
            "enable-bend", "disable-bend", "load-x509",
        ]
    ),
    "daemon": frozenset(
        [
            "proxy", "mountpaths", "join-by-admin", "primary-force", "set-config", "enable-bend", "disable-bend",
            "load-x509",
        ]
    ),
    "reverse": frozenset(("daemon",)),
    # Between the nodes of a real cluster, which has networks of its own for that.
    "ec": frozenset(), "ic": frozenset(), "metasync": frozenset(), "notifs": frozenset(),
    "objstream": frozenset(), "txn": frozenset(), "vote": frozenset(("init", "proxy", "result", "primary-stopping")),
    "xactions": frozenset(),
    # Access control, and its own server.
    "tokens": frozenset(), "users": frozenset(), "clusters": frozenset(), "roles": frozenset(),
    "public-key": frozenset(), "rotate-key": frozenset(),
}  # fmt: skip

_BESIDE_V1 = frozenset(("s3", "gs", "az", "ais", "metrics", ".well-known"))


def is_known_path(path: str) -> bool:
    """Whether a path is one of AIStore's API, served here or not.

    >>> is_known_path("/v1/download/abort"), is_known_path("/v1/nonsense"), is_known_path("/v2/buckets")
    (True, False, False)
    """
    first, *rest = path.strip("/").split("/")
    if first != "v1":
        return first in _BESIDE_V1
    if not rest or rest[0] not in _PATHS:
        return False
    follow = _PATHS[rest[0]]
    return not follow or len(rest) == 1 or rest[1] in follow


ACTIONS = frozenset(
    [
        "create-bck", "destroy-bck", "set-bprops", "reset-bprops", "summary-bck", "ec-encode", "ec-get", "ec-put",
        "ec-resp", "copy-bck", "etl-bck", "etl-inline", "dsort", "download", "blob-download", "make-n-copies",
        "put-copies", "rechunk", "index-shard", "summary-shard", "rebalance", "move-bck", "resilver", "election",
        "lru", "cleanup-store", "evict-remote-bck", "list", "load-lom-cache", "new-primary", "promote", "rename-obj",
        "revoke-token", "mpt-upload", "mpt-complete", "mpt-abort", "reset-stats", "reset-config", "set-config",
        "rotate-logs", "reload-creds", "clear-lcache", "shutdown", "copy-listrange", "delete-listrange",
        "etl-listrange", "evict-listrange", "prefetch-listrange", "archive", "attach", "detach", "enable-bend",
        "disable-bend", "start-maintenance", "stop-maintenance", "shutdown-node", "decommission-node",
        "decommission", "admin-join-target", "self-join-target", "admin-join-proxy", "self-join-proxy",
        "keepalive-update", "watch-xaction", "ic-merge-own-tbl", "reg-global-xaction", "check-lock", "get-batch",
        "create-inventory", "destroy-inventory", "show-inventory", "attach-mp", "enable-mp", "detach-mp",
        "disable-mp", "rescan-mp", "fshc-mp", "start", "stop", "add-remote-bck", "head-bck-with-bprops", "rm-unsafe",
        "start-gfn", "stop-gfn", "self-initiated-removal", "primary-force", "bump-metasync", "open-ec-streams",
        "close-ec-streams", "recover",
        # what=
        "smap", "bmd", "config", "cluster_config", "backends", "node_stats", "node_status", "software_version",
        "disk", "metrics", "mountpaths", "remote", "smapvote", "sysinfo", "target_ips", "log", "status",
        "status_all", "getxstats", "qryxstats", "running_all", "snode", "ic_bundle", "tls_certificate",
        "stats",  # so called in docs/http_api.md
        # below /v1/etl/name
        "logs", "health", "details",
    ]
)  # fmt: skip
"""Actions and questions that AIStore knows: those without a route are 501, others 400 as on a real node."""
