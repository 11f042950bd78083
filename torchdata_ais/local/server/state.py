"""The one cluster of this process: its nodes, its store, its jobs, its faults, its counters."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .access import hide_secret
from .api_upload import Uploads
from .archive import ArchiveIndex
from .etl import Etls
from .faults import FaultTable
from .jobs import Jobs
from .names import new_id, object_uname, owner_of
from .store import Store

if TYPE_CHECKING:
    from .node import Node
    from .wire import Request

__all__ = ["Cluster"]

REQUESTS_KEPT = 100_000


class Cluster:
    """Everything the nodes of one cluster share.

    Args:
        root: Folder for data; ids of nodes live here too, so that a restarted cluster is the same one.
        targets: Number of targets.
        etl: Whether user code may be run for ETL.
        secret: What a request that makes or changes a transform must bring.
    """

    def __init__(self, root: Path, targets: int, *, etl: bool, secret: str) -> None:
        self.root = root
        self.store = Store(root)
        self.archives = ArchiveIndex()
        self.jobs = Jobs()
        self.uploads = Uploads()
        self.faults = FaultTable()
        self.etls = Etls()
        self.etl_allowed = etl
        self.secret = secret
        self.python_path: list[str] = []
        self.started_ns = time.time_ns()
        identity = _identity(root, targets)
        self.uuid: str = identity["uuid"]
        self.created: str = identity["created"]
        self.proxy_id: str = identity["proxy"]
        self.target_ids: list[str] = identity["targets"][:targets]
        self.proxy: Node
        self.targets: list[Node] = []
        self.ports: frozenset[int] = frozenset()
        self.dead_port = _dead_port()
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._bytes_sent = 0
        self._requests: deque[dict[str, Any]] = deque(maxlen=REQUESTS_KEPT)

    def owner(self, bucket: str, name: str) -> Node:
        """The target that stores an object."""
        return owner_of(self.targets, object_uname(bucket, name))

    def location(self, bucket: str, name: str) -> str:
        """Where an object is, in the form of AIStore: target and disk."""
        return f"{self.owner(bucket, name).tag}:mp[{self.root}, local, ssd]"

    def disk_bytes(self) -> int:
        """Size of the disk below the data."""
        return shutil.disk_usage(self.root).total

    def count(self, node: Node, request: Request, status: int, size: int) -> dict[str, Any]:
        """Count one answer with a body of so many bytes and return its record, for `correct`."""
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
            return {"requests": rows, "bytes_sent": self._bytes_sent}

    def requests(self) -> list[dict[str, Any]]:
        """The newest answered requests, oldest first."""
        with self._lock:
            return list(self._requests)

    def forget_counts(self) -> None:
        """Set all counters to zero."""
        with self._lock:
            self._counts.clear()
            self._requests.clear()
            self._bytes_sent = 0

    def reset(self) -> None:
        """Back to an empty cluster: no buckets, no jobs, no faults, counters at zero."""
        self.faults.clear()
        self.store.clear()
        self.jobs.clear()
        self.etls.clear()
        self.forget_counts()


def _identity(root: Path, targets: int) -> dict[str, Any]:
    path = root / "cluster.json"
    identity: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    identity.setdefault("uuid", new_id())
    identity.setdefault("created", time.strftime("%Y-%m-%d %H:%M:%S"))
    identity.setdefault("proxy", new_id(8))
    ids = identity.setdefault("targets", [])
    ids += [new_id(8) for _ in range(targets - len(ids))]
    path.write_text(json.dumps(identity))
    return identity


def _dead_port() -> socket.socket:
    """A socket that is bound but does not listen: connections to its port are refused."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock
