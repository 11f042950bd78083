"""An embedded AIStore cluster in a process of its own, and faults by rule; see `LocalCluster`."""

from __future__ import annotations

from .cluster import ClusterStats, LocalCluster, RequestRecord
from .coverage import coverage_table
from .server.actions import (
    Action,
    Bandwidth,
    Cut,
    DeadRedirect,
    Delay,
    DropEntry,
    EmptyEntry,
    EndBatch,
    FlipBit,
    NewVersion,
    Placeholder,
    Reset,
    Stall,
    Status,
    SwapEntries,
    WholeObject,
    WrongChecksum,
)
from .server.faults import Fault

__all__ = [
    "Action",
    "Bandwidth",
    "ClusterStats",
    "Cut",
    "DeadRedirect",
    "Delay",
    "DropEntry",
    "EmptyEntry",
    "EndBatch",
    "Fault",
    "FlipBit",
    "LocalCluster",
    "NewVersion",
    "Placeholder",
    "RequestRecord",
    "Reset",
    "Stall",
    "Status",
    "SwapEntries",
    "WholeObject",
    "WrongChecksum",
    "coverage_table",
]
