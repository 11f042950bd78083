"""What a cluster has counted: its answers, bytes and connections, and each request by itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClusterStats:
    """Counters of a cluster since its start or the last reset.

    Attributes:
        requests: Number of answers by (role of the node, method, status).
        bytes_sent: Bytes of all bodies sent.
        connections: Connections that were accepted.
        peak_requests: How many requests were under way at the same time, at most, at all nodes together.
    """

    requests: dict[tuple[str, str, int], int]
    bytes_sent: int
    connections: int = 0
    peak_requests: int = 0

    def count(self, method: str | None = None, status: int | None = None, role: str | None = None) -> int:
        """Number of requests with this method, status and role; `None` counts all."""
        return sum(
            number
            for (row_role, row_method, row_status), number in self.requests.items()
            if method in (None, row_method) and status in (None, row_status) and role in (None, row_role)
        )


@dataclass(frozen=True)
class RequestRecord:
    """One answered request: which node, what was asked, what it got."""

    node: str
    role: str
    method: str
    url: str
    status: int
    bytes_sent: int
    headers: dict[str, str] = field(repr=False)
