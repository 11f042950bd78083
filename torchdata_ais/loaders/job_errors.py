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
        """Raise if the job has given up more than it may; asks nobody, but at the end where it looks so.

        Raises:
            AISError: It has; the text has stage, counts and the first error.
        """
        self._next = time.monotonic() + _EVERY_S
        if job is None:
            self._compare(self.counted(), "all workers", at_end=at_end)
            return
        ranks = f"all {job.ranks} ranks"
        if not at_end:
            # What this rank has just given up is not compared before the others have told what they saw meanwhile.
            counted = [
                Counted(now.items, then.skipped) for now, then in zip(job.job, job.before, strict=True)
            ]
            self._compare(counted, ranks)
        elif self._over(job.job) is not None:
            job.exchange_again()
            self._compare(job.job, ranks)

    def _compare(self, counted: list[Counted], whose: str, *, at_end: bool = False) -> None:
        over = self._over(counted, at_end=at_end)
        if over is not None:
            number, policy, (items, skipped) = over
            raise AISError(
                f"{self._names[number]}() met {skipped} errors in {items} items of {whose}, over "
                f"max_errors={policy.max_errors}; the first here: {self._first(number)}"
            )

    def _over(
        self, counted: list[Counted], *, at_end: bool = False
    ) -> tuple[int, ErrorPolicy, Counted] | None:
        """Return the first stage that has given up more than it may, with its limit and what it counted."""
        for (number, policy), (items, skipped) in zip(self._limits, counted, strict=False):
            if policy.is_share_over(items, skipped, processes=self._processes, at_end=at_end):
                return number, policy, Counted(items, skipped)
        return None

    def _first(self, number: int) -> str:
        examples = (text for stats in _stats_of(number, self._reports()) for text in stats.examples)
        return next(examples, "none: they came on other ranks")


def _stats_of(number: int, reports: list[Report]) -> list[StageStats]:
    """Return what the processes counted of a stage; one that has just begun has told of none."""
    return [report.stages[number].stats for report in reports if number < len(report.stages)]


def _share_of(stage: IterDataPipe[Any]) -> ErrorPolicy | None:
    policy = stage.error_policy() if isinstance(stage, Pipe) else None
    return policy if policy is not None and policy.is_share else None
