"""An embedded AIStore cluster in a process of its own, and faults by rule; see `LocalCluster`."""

from __future__ import annotations

from .cluster import ClusterStats, LocalCluster, RequestRecord
from .coverage import coverage_table
from .server.faults import (
    Action,
    Bandwidth,
    Cut,
    DeadRedirect,
    Delay,
    DropEntry,
    Fault,
    FlipBit,
    NewVersion,
    Reset,
    Stall,
    Status,
    WrongChecksum,
)

__all__ = [
    "Action",
    "Bandwidth",
    "ClusterStats",
    "Cut",
    "DeadRedirect",
    "Delay",
    "DropEntry",
    "Fault",
    "FlipBit",
    "LocalCluster",
    "NewVersion",
    "RequestRecord",
    "Reset",
    "Stall",
    "Status",
    "WrongChecksum",
    "coverage_table",
]
