"""``max_errors=`` as a share, counted over the whole job: all workers of all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torchdata_ais.errors import AISError
from torchdata_ais.observe.collect import Report
from torchdata_ais.ranks.job_counts import Counted, JobCounts
from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.pipe import IterDataPipe, Pipe
from torchdata_ais.stage.policy import ErrorPolicy
from torchdata_ais.stage.stats import StageStats
from torchdata_ais.stage.upstream import upstream

_EVERY_S = 0.5


class JobErrors:
    """What the stages of a pipe may give up, as a share of what those of all processes have seen.

    Args:
        pipe: The last stage.
        reports: Returns the last report of each process of this rank.
        processes: How many processes there are, of all ranks.

    Attributes:
        limited: Whether any stage has such a limit.
    """

    def __init__(self, pipe: IterDataPipe[Any], reports: Callable[[], list[Report]], processes: int) -> None:
        self._processes = processes
        stages = list(upstream(pipe))[::-1]
        found = [(number, _share_of(stage)) for number, stage in enumerate(stages)]
        self._limits = [(number, policy) for number, policy in found if policy is not None]
        self._names = [stage_of(stage).functional_name for stage in stages]
        self._reports = reports
        self._next = 0.0
        self.limited = bool(self._limits)

    def counted(self) -> list[Counted]:
        """Return what this rank's processes have counted, of each stage with a limit."""
        reports = self._reports()
        each = [_stats_of(number, reports) for number, _ in self._limits]
        return [
            Counted(sum(stats.items for stats in found), sum(sum(stats.skipped.values()) for stats in found))
            for found in each
        ]

    def look_round(self, job: JobCounts | None) -> None:
        """Call `check` if that has not been done for half a second."""
        if time.monotonic() >= self._next:
            self.check(job)

    def check(self, job: JobCounts | None, *, at_end: bool = False) -> None:
        """Raise if the job has given up more than it may; asks nobody.

        Raises:
            AISError: It has; the text has stage, counts and the first error.
        """
        self._next = time.monotonic() + _EVERY_S
        counted = self.counted() if job is None else job.job
        for (number, policy), (items, skipped) in zip(self._limits, counted, strict=False):
            if policy.is_share_over(items, skipped, processes=self._processes, at_end=at_end and job is None):
                whose = "all workers" if job is None else f"all {job.ranks} ranks"
                raise AISError(
                    f"{self._names[number]}() met {skipped} errors in {items} items of {whose}, over "
                    f"max_errors={policy.max_errors}; the first here: {self._first(number)}"
                )

    def _first(self, number: int) -> str:
        examples = (text for stats in _stats_of(number, self._reports()) for text in stats.examples)
        return next(examples, "none: they came on other ranks")


def _stats_of(number: int, reports: list[Report]) -> list[StageStats]:
    """Return what the processes counted of a stage; one that has just begun has told of none."""
    return [report.stages[number].stats for report in reports if number < len(report.stages)]


def _share_of(stage: IterDataPipe[Any]) -> ErrorPolicy | None:
    policy = stage.error_policy() if isinstance(stage, Pipe) else None
    return policy if policy is not None and policy.is_share else None
