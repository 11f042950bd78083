"""Setup of a loader over ranks, and errors counted over the job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from torchdata_ais._util.world import World, WorldOptions
from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.loaders.epoch_runner import EpochRunner
from torchdata_ais.observe.collect import Report
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.job_counts import Counted, JobCounts, Replicas
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.ranks.rendezvous import begin_together, end_together, wait_for_turn
from torchdata_ais.ranks.start_heartbeat import Presence

_EVERY_S = 0.5


class JobErrors:
    """Limits on skipped samples, as a share of those seen by all processes.

    `reports` returns the last report of each process of this rank; `processes` are those of all ranks.
    """

    def __init__(
        self, pipe: IterDataPipe[object], reports: Callable[[], list[Report]], processes: int
    ) -> None:
        self._processes = processes
        stages = list(upstream(pipe))[::-1]
        found = [(number, _share_of(stage)) for number, stage in enumerate(stages)]
        self._limits = [(number, policy) for number, policy in found if policy is not None]
        self._names = [stage_of(stage).functional_name for stage in stages]
        self._reports = reports
        self._next = 0.0
        self.limited = bool(self._limits)

    def counted(self) -> list[Counted]:
        """Return the counts of this rank's processes, of each stage with a limit."""
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
        """Raise `AISError` if the job has skipped more than it may.

        Sends no request, except at the end where the limit seems to be exceeded.
        """
        self._next = time.monotonic() + _EVERY_S
        if job is None:
            self._compare(self.counted(), "all workers", at_end=at_end)
            return
        ranks = f"all {job.ranks} ranks"
        if not at_end:
            # This rank's new skips are not compared before the others have reported theirs of the same time.
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
        """Return the first stage above its limit, its limit and its counts."""
        for (number, policy), (items, skipped) in zip(self._limits, counted, strict=False):
            if policy.is_share_over(items, skipped, processes=self._processes, at_end=at_end):
                return number, policy, Counted(items, skipped)
        return None

    def _first(self, number: int) -> str:
        examples = (text for stats in _stats_of(number, self._reports()) for text in stats.examples)
        return next(examples, "none: they came on other ranks")


def _stats_of(number: int, reports: list[Report]) -> list[StageStats]:
    """Return the counts of a stage in processes that have reported some."""
    return [report.stages[number].stats for report in reports if number < len(report.stages)]


def _share_of(stage: IterDataPipe[object]) -> ErrorPolicy | None:
    policy = stage.error_policy() if isinstance(stage, Pipe) else None
    return policy if policy is not None and policy.is_share else None


class RankSetup:
    """This rank among the others.

    Attributes:
        listing: The listing; None before the ranks have met.
        ranks: All ranks; None where there is one, or they cannot reach each other.
        replicas: Compares batches with the processes that get the same, if there are any.
        counts: The counts that ranks exchange in training; None without other ranks.
        errors: Limits on the job's skipped samples, if a stage has one.
    """

    def __init__(self, options: WorldOptions) -> None:
        self._options = options
        self._world: World | None = None
        self._presence: Presence | None = None
        self.listing: Listing | None = None
        self.ranks: Ranks | None = None
        self.replicas: Replicas | None = None
        self.counts: JobCounts | None = None
        self.errors: JobErrors | None = None

    @property
    def world(self) -> World:
        """This rank and the number of ranks, updated until they have met."""
        return self._world or self._options.find()

    @property
    def digest(self) -> str:
        """The digest of the listing, once the ranks have met."""
        return "" if self.listing is None else self.listing.digest

    @contextlib.contextmanager
    def awaited(self, loader: object) -> Iterator[None]:
        """Report to the other ranks that `loader` is being made, or its error.

        The loader is not kept alive.
        """
        if self._presence is None and self.listing is None:
            with contextlib.suppress(UsageError):  # it is raised where the world is needed
                world = self._options.find()
                if world.members[1] > 1 and world.store is not None:
                    self._presence = Presence(loader, world)
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise
        if self._presence is not None:
            self._presence.goes_on()

    def failed(self, error: Exception) -> None:
        """Let the other ranks know of an error before they have met."""
        if self._presence is not None:
            self._presence.failed(error)

    def join(self, pipe: IterDataPipe[object], runner: EpochRunner, epoch: int) -> None:
        """List the sources of `pipe` and meet the other ranks, the first time."""
        if self.listing is None:
            self._leave_presence()
            world, timeout_s = self._options.find(), self._options.rank_timeout_s
            try:
                if world.size > 1:
                    runner.check(world)
                settings = runner.settings(epoch)
            except Exception as error:
                end_together(world, error, timeout_s)
                raise
            self.listing, self.ranks = begin_together(pipe, world, settings, timeout_s)
            self._world = world
            wait_for_turn(world, runner.workers, self._options.start_spread_s, self.ranks)
            every = self._options.replica_check
            processes = world.size * runner.workers
            errors = JobErrors(pipe, runner.reports, processes)
            if errors.limited and processes > 1:
                self.errors = errors
            if self.ranks is not None:
                if world.processes and every is not None:
                    self.replicas = Replicas(self.ranks, world, every)
                self.counts = JobCounts(self.ranks, errors.counted, self.replicas)
            runner.warn_after_listing()

    def close(self) -> None:
        """Leave."""
        self._leave_presence()
        if self.ranks is not None:
            self.ranks.close()

    def _leave_presence(self) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.end()
