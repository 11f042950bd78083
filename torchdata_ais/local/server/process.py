"""The process of one cluster: built from one line of JSON, steered by lines of JSON, gone with its parent.

The parent holds the other ends of stdin and stdout. The first line in is the configuration, the first line
out the ports; each further line in is a command and gets one line back. The end of stdin, or a parent
process that is another than the one that started this, ends the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from . import (
    api_batch,
    api_buckets,
    api_cluster,
    api_dsort,
    api_etl,
    api_groups,
    api_index,
    api_listing,
    api_objects,
    api_upload,
)
from .faults import Fault
from .node import Node
from .state import Cluster

__all__ = ["main"]

APIS = (
    api_batch,
    api_buckets,
    api_cluster,
    api_dsort,
    api_etl,
    api_groups,
    api_index,
    api_listing,
    api_objects,
    api_upload,
)
_PARENT_CHECK_S = 0.5


class RootInUseError(OSError):
    """The folder is that of a cluster that runs; the process that starts this one knows it by its name."""


def main() -> None:
    """Run until told to stop, or until the parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops this process itself
    threading.stack_size(512 * 1024)
    config = json.loads(sys.stdin.readline())
    api_objects.mirror_object_routes()
    root = Path(config["root"])
    ending = _Ending(root if config["remove"] else None)
    threading.Thread(target=ending.watch, args=(config["parent"],), daemon=True).start()
    try:
        lock = _lock(root)
        cluster = build(root, config)
    except OSError as error:
        _say({"error": str(error), "errno": error.errno, "name": type(error).__name__})
        ending.now()
    _say({"proxy": cluster.proxy.port, "targets": [node.port for node in cluster.targets]})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            break
        _say(_obey(cluster, command))
    cluster.etls.clear()
    cluster.store.close()
    lock.close()
    ending.now()


def build(root: Path, config: dict[str, Any]) -> Cluster:
    """Make the cluster of a configuration and let its nodes accept connections."""
    cluster = Cluster(root, config["targets"], etl=config["etl"], secret=config["secret"])
    cluster.python_path = config["python_path"]
    cluster.proxy = Node(cluster, "proxy", cluster.proxy_id, config["port"])
    cluster.targets = [Node(cluster, "target", node_id) for node_id in cluster.target_ids]
    cluster.ports = frozenset(node.port for node in (cluster.proxy, *cluster.targets))
    for fault in config["faults"]:
        cluster.faults.add(Fault.from_json(fault))
    for node in (cluster.proxy, *cluster.targets):
        node.start()
    return cluster


def _obey(cluster: Cluster, command: dict[str, Any]) -> Any:
    what = command["do"]
    if what == "stats":
        return cluster.stats()
    if what == "requests":
        return cluster.requests()
    if what == "add_fault":
        return cluster.faults.add(Fault.from_json(command["fault"]))
    if what == "clear_faults":
        return cluster.faults.clear(command["number"])
    if what == "fault_counts":
        return list(cluster.faults.counts().items())
    if what == "reset":
        return cluster.reset()
    if what == "forget_counts":
        return cluster.forget_counts()
    raise ValueError(what)


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _lock(root: Path) -> IO[str]:
    """Hold the folder: two clusters that write one journal would ruin it."""
    root.mkdir(parents=True, exist_ok=True)
    file = (root / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise RootInUseError(f"another cluster runs on {root}") from cause
    return file


class _Ending:
    """How this process ends: at once, without waiting for connections, leaving no temporary folder."""

    def __init__(self, remove: Path | None) -> None:
        self._remove = remove

    def watch(self, parent: int) -> None:
        """End the process when the parent is gone: a pipe alone is not enough, as forks of it hold it open."""
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        self.now()

    def now(self) -> None:
        """End the process."""
        if self._remove is not None:
            shutil.rmtree(self._remove, ignore_errors=True)
        os._exit(0)
