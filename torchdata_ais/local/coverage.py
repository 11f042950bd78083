"""Table of the embedded cluster's requests, from its route table."""

from __future__ import annotations

_PATHS = {
    "batch": "/v1/ml/moss[/bucket]",
    "bucket": "/v1/buckets/bucket",
    "buckets": "/v1/buckets",
    "cluster": "/v1/cluster",
    "daemon": "/v1/daemon",
    "etl": "/v1/etl/name",
    "etls": "/v1/etl",
    "health": "/v1/health",
    "object": "/v1/objects/bucket/object",
    "reverse": "/v1/reverse/daemon",
    "sort": "/v1/sort",
}


def coverage_table() -> str:
    """Return a Markdown table of the requests of a `LocalCluster`.

    All others get 501 or 400.

    Example:
        >>> print(coverage_table().splitlines()[2])
        | GET `/v1/buckets` | `list` | | Cluster.list_buckets |
    """
    from .server.routes import ROUTES, load_routes

    load_routes()
    lines = ["| request | action, `what` or parameter | query parameters | SDK |", "|---|---|---|---|"]
    rows = [row for row in ROUTES.values() if row.sdk]
    for row in sorted(rows, key=lambda row: (_PATHS[row.resource], row.method, row.key, row.role)):
        query = " ".join(f"`{name}`" for name in sorted(row.query - {"what"}))
        key = f"`{row.key}`" if row.key else ""
        cells = (f"{row.method} `{_PATHS[row.resource]}`", key, query, row.sdk)
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return "\n".join(lines) + "\n"
