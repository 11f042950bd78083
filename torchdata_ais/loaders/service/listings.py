"""Whether all workers have listed the same objects: their parts of the epoch fit together only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchdata_ais.errors import ObjectChangedError

__all__ = ["check_listings"]


def check_listings(reports: Mapping[int, Mapping[str, Any]], newest: int) -> None:
    """Compare what worker `newest` has listed with what the others have.

    Each worker takes every n-th shard of a listing of its own. An object that came or went between two of them shifts
    the parts against each other: some shards are then read twice, others by nobody.

    Args:
        reports: The last report of each worker, see `report_of`.
        newest: The worker whose report has just come.

    Raises:
        ObjectChangedError: They differ.
    """
    ours = _listings(reports[newest])
    for worker, report in reports.items():
        for (place, mine), (_, other) in zip(ours, _listings(report), strict=False):
            if mine["pass"] != other["pass"]:
                continue  # the report is of an earlier epoch
            for (count, digest), (other_count, other_digest) in zip(
                mine["sources"], other["sources"], strict=False
            ):
                if digest != other_digest:
                    raise ObjectChangedError.at(
                        f"{place}: worker {newest} was given {count} objects, worker {worker} {other_count}, and not "
                        "the same: the bucket changed meanwhile. Shards of this epoch may come twice, or not at all",
                        todo="begin the epoch anew when nothing writes to the bucket, or name the shards with a "
                        "template (ais://bucket/s-{000..099}.tar), which needs no listing",
                    )


def _listings(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(stage["text"], stage["listed"]) for stage in report["stages"] if "listed" in stage]
