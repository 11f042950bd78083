"""The sum of what several processes counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from torchdata_ais.errors import UsageError
from torchdata_ais.observe.collect import Report, StageCounts
from torchdata_ais.stage.stats import StageStats


def merge_reports(reports: Iterable[Report | dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of the reports of several processes that ran the same pipe: workers, or ranks.

    Raises:
        UsageError: There are none, or they are of different pipes.
    """
    plain: dict[str, Any] = msgspec.to_builtins(merged(reports))
    return plain


def merged(reports: Iterable[Report | dict[str, Any]]) -> Report:
    """Return the same as a report; see `merge_reports`."""
    parts = [typed(report) for report in reports]
    if not parts:
        raise UsageError.at("there is nothing to report yet", todo="iterate the loader first")
    names = [[counts.name for counts in part.stages] for part in parts]
    if any(other != names[0] for other in names):
        raise UsageError.at("the reports are of different pipes", todo="merge those of one loader")
    return Report(
        [_sum_of(column) for column in zip(*(part.stages for part in parts), strict=True)],
        sum(part.processes for part in parts),
        sum(part.wall_s for part in parts),
        sum(part.sending_s for part in parts),
        any(part.in_workers for part in parts),
        sum(_idle(part) for part in parts),
    )


def typed(report: Report | dict[str, Any]) -> Report:
    """Return a report as such, whether it was made plain or not."""
    return msgspec.convert(report, Report, from_attributes=True)


def _idle(report: Report) -> int:
    """Return how many processes had nothing to do; a worker reports with its first item, or at the end."""
    if report.idle is not None:
        return report.idle
    read = [counts.out for counts in report.stages if counts.reads]
    return int(bool(read) and not any(read))


def _sum_of(column: Sequence[StageCounts]) -> StageCounts:
    total = msgspec.structs.replace(column[0], stats=StageStats())
    for counts in column:
        total.stats.add(counts.stats)
    for name in ("out", "seconds", "wall_s"):
        setattr(total, name, sum(getattr(counts, name) for counts in column))
    return total
