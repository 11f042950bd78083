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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

from .faults import Fault
from .routes import load_routes
from .serving import listen, serve
from .state import Cluster

_PARENT_CHECK_S = 0.5


class RootInUseError(OSError):
    """The folder is that of a cluster that runs; the process that starts this one knows it by its name."""


def main() -> None:
    """Run until told to stop, or until the parent has gone."""
    os.umask(0o077)  # objects may be private
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops this process itself
    threading.stack_size(512 * 1024)
    config = json.loads(sys.stdin.readline())
    load_routes()
    root = Path(config["root"])
    threading.Thread(target=_end_with, args=(config["parent"], root, config["remove"]), daemon=True).start()
    try:
        _held = _lock(root)  # for as long as this process lives
        cluster = build(root, config)
    except OSError as error:
        _say({"error": str(error), "errno": error.errno, "name": type(error).__name__})
        _end(root, remove=config["remove"])
    _say({"proxy": cluster.proxy.port, "targets": [node.port for node in cluster.targets]})
    commands: dict[str, Callable[..., Any]] = {
        "stats": cluster.stats,
        "requests": cluster.requests,
        "add_fault": lambda fault: cluster.faults.add(Fault.from_json(fault)),
        "clear_faults": cluster.faults.clear,
        "fired": cluster.faults.fired,
        "reset": cluster.reset,
        "forget_counts": cluster.forget_counts,
    }
    for line in sys.stdin:
        arguments = json.loads(line)
        _say(commands[arguments.pop("do")](**arguments))
    cluster.etls.clear()
    _end(root, remove=config["remove"])


def build(root: Path, config: dict[str, Any]) -> Cluster:
    """Make the cluster of a configuration and let its nodes accept connections."""
    listeners = [listen(config["port"]), *(listen() for _ in range(config["targets"]))]
    ports = [listener.getsockname()[1] for listener in listeners]
    cluster = Cluster(
        root, ports, etl=config["etl"], secret=config["secret"], python_path=config["python_path"]
    )
    for fault in config["faults"]:
        cluster.faults.add(Fault.from_json(fault))
    for node, listener in zip((cluster.proxy, *cluster.targets), listeners, strict=True):
        serve(cluster, node, listener)
    return cluster


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _lock(root: Path) -> IO[str]:
    """Hold the folder: two clusters that write one journal would ruin it."""
    file = (root / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise RootInUseError(f"another cluster runs on {root}") from cause
    return file


def _end_with(parent: int, root: Path, remove: bool) -> None:
    """End the process when the parent is gone: a pipe alone is not enough, as forks of it hold it open."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    _end(root, remove=remove)


def _end(root: Path, *, remove: bool) -> NoReturn:
    """End the process at once, without waiting for connections; a temporary folder goes with it."""
    if remove:
        shutil.rmtree(root, ignore_errors=True)
    os._exit(0)
