"""State of the cluster: nodes, store, jobs, faults and counters."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .etl import Etls
from .faults import FaultTable
from .http import Request
from .jobs import Jobs
from .names import HOST, SHARD_INDEXES, Node, new_id, object_uname, owner_of, shard_of
from .problem import hide_secret
from .store import Store

REQUESTS_KEPT = 100_000


class Cluster:
    """Everything the nodes of one cluster share; the proxy's port comes first.

    Ids of nodes live in the folder, too, so that a restarted cluster is the same one.
    """

    def __init__(
        self, root: Path, ports: Sequence[int], *, etl: bool, secret: str, python_path: list[str]
    ) -> None:
        self.root = root
        self.store = Store(root)
        self.jobs = Jobs()
        self.appends: dict[str, Path] = {}  # objects that grow, by their handles
        self.parts: dict[str, dict[int, Path]] = {}  # those of others, by the ids of their uploads
        self.faults = FaultTable()
        self.etls = Etls()
        self.etl_allowed = etl
        self.secret = secret
        self.python_path = python_path
        self.started_ns = time.time_ns()
        identity = _identity(root, len(ports) - 1)
        self.uuid: str = identity["uuid"]
        self.created: str = identity["created"]
        self.ports = frozenset(ports)
        self.proxy = Node("proxy", identity["proxy"], ports[0])
        # The folder knows more targets than there are now, if there were more before.
        targets = zip(identity["targets"], ports[1:], strict=False)
        self.targets = [Node("target", *target) for target in targets]
        self.dead = socket.socket()  # bound, but it does not listen: connections to its port are refused
        self.dead.bind((HOST, 0))
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._peak = 0
        self.forget_counts()

    def owner(self, bucket: str, name: str) -> Node:
        """The target that stores an object."""
        return owner_of(self.targets, object_uname(bucket, name))

    def holder(self, bucket: str, name: str) -> Node:
        """The target of an object: its owner, or that of the shard of an index.

        An index stays with its shard. The proxy does not know that, and a listing does not show such objects.
        """
        shard = shard_of(name) if bucket == SHARD_INDEXES else None
        return self.owner(bucket, name) if shard is None else self.owner(*shard)

    def location(self, bucket: str, name: str) -> str:
        """Location of an object in AIStore's form: target and disk."""
        return f"{self.owner(bucket, name).tag}:mp[{self.root}, local, ssd]"

    # -- answered requests

    def count(self, node: Node, request: Request, status: int, size: int) -> dict[str, Any]:
        """Count one answer; return its record, which is for `correct`."""
        record = {
            "node": node.id,
            "role": node.role,
            "method": request.method,
            "url": request.target,
            "status": status,
            "bytes_sent": size,
            "headers": hide_secret(request.headers, self.secret),
        }
        with self._lock:
            self._counts[node.role, request.method, status] += 1
            self._bytes_sent += size
            self._requests.append(record)
        return record

    def correct(self, record: dict[str, Any], size: int) -> None:
        """Set how many bytes of body really went out."""
        if record["bytes_sent"] != size:
            with self._lock:
                self._bytes_sent += size - record["bytes_sent"]
                record["bytes_sent"] = size

    def stats(self) -> dict[str, Any]:
        """The counters in JSON form."""
        with self._lock:
            rows = [[*key, count] for key, count in sorted(self._counts.items())]
            return {
                "requests": rows,
                "bytes_sent": self._bytes_sent,
                "connections": self._connections,
                "peak_requests": self._peak,
            }

    def connected(self) -> None:
        """Count a connection."""
        with self._lock:
            self._connections += 1

    @contextmanager
    def one_more(self, node: Node) -> Iterator[None]:
        """Count a request as under way at a node while the context lasts."""
        with self._lock:
            self._under_way[node.id] += 1
            self._peak = max(self._peak, self._under_way.total())
        try:
            yield
        finally:
            with self._lock:
                self._under_way[node.id] -= 1

    def under_way(self, node: Node) -> int:
        """Number of requests under way at a node."""
        return self._under_way[node.id]

    def requests(self) -> list[dict[str, Any]]:
        """The newest answered requests, oldest first."""
        with self._lock:
            return list(self._requests)

    def forget_counts(self) -> None:
        """Set all counters to zero."""
        with self._lock:
            self._counts: Counter[tuple[str, str, int]] = Counter()
            self._requests: deque[dict[str, Any]] = deque(maxlen=REQUESTS_KEPT)
            self._bytes_sent = self._connections = self._peak = 0

    def reset(self) -> None:
        """Reset to an empty cluster: no buckets, jobs or faults, counters at zero."""
        for part in (self.faults, self.store, self.jobs, self.etls):
            part.clear()
        self.forget_counts()


def _identity(root: Path, targets: int) -> dict[str, Any]:
    path = root / "cluster.json"
    identity: dict[str, Any] = {
        "uuid": new_id(),
        "created": time.strftime("%Y-%m-%d %H:%M:%S"),
        "proxy": new_id(8),
        "targets": [],
    }
    if path.exists():
        identity |= json.loads(path.read_text())
    ids = identity["targets"]
    ids += [new_id(8) for _ in range(targets - len(ids))]
    path.write_text(json.dumps(identity))
    return identity
