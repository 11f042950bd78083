"""Statistics of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import msgspec

from torchdata_ais.errors import UsageError
from torchdata_ais.observe.collect import Report, Reporting, StageCounts, report_of
from torchdata_ais.observe.stats_text import advice, prometheus, table, table_html
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import IterDataPipe


def merge_reports(reports: Iterable[Report | dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of the reports of workers or ranks with the same pipe."""
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
        ranks=sorted({rank for part in parts for rank in part.ranks}),
        world=max(part.world for part in parts),
    )


def typed(report: Report | dict[str, Any]) -> Report:
    """Return a report as such, whether it was made plain or not."""
    return msgspec.convert(report, Report, from_attributes=True)


def _idle(report: Report) -> int:
    """Return how many processes were idle: with a report, and no item read."""
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


T = TypeVar("T")


@dataclass
class StageReport:
    """Counts of one stage in all processes; the others as in `StageStats`.

    Attributes:
        text: The stage with its arguments.
        sources: The stages it reads from, by their index in `Stats.stages`.
        metered: Whether its items and its time are known. Those of torch's own stages are not: their time counts as
            that of the next stage.
        unmetered_above: The names of torch's stages whose time counts as this stage's, but for the shuffle and the
            sharding filter, which take none.
        items: Items given out.
        taken: Items taken from the stages it reads from, as far as those are counted.
        seconds: Time the stage took for its items, upstream stages included.
        own_s: The part of it that the stage itself worked.
        wait_s: The part of it that it waited: for upstream stages, and for bytes of the cluster.
        network_s: The part of that which was for bytes.
        blocked_s: Time without a request for an item: by the training loop, in the end.
        first_byte_ms: Milliseconds until the first byte of an object came, on average; None if none was read.
        first_byte_max_ms: The same at most.
        held_max: Bytes held at most, a process, summed over processes.
    """

    name: str
    text: str
    sources: list[int]
    metered: bool
    unmetered_above: list[str] = field(default_factory=list)
    items: int = 0
    taken: int = 0
    bytes: int = 0
    seconds: float = 0.0
    own_s: float = 0.0
    wait_s: float = 0.0
    network_s: float = 0.0
    blocked_s: float = 0.0
    retries: int = 0
    refetched: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    unverified: dict[str, int] = field(default_factory=dict)
    opened: int = 0
    first_byte_ms: float | None = None
    first_byte_max_ms: float | None = None
    held: int = 0
    held_max: int = 0


class Stats:
    """Counts of the stages of a pipeline.

    `print` shows a table and a sentence that names the bottleneck.

    Args:
        report: The merged report of all processes, of `merge_reports`.

    Attributes:
        stages: One `StageReport` a stage, the first stage first.
        processes: How many processes ran the pipe.
        wall_s: Seconds the pipe was iterated, on average over the processes; pauses between epochs do not count.
        sending_s: Seconds the workers spent handing items over to the main process, all together.
        in_workers: Whether the pipe ran in worker processes.
        idle: How many of these had nothing to read.
        ranks: The ranks that are counted here; empty where there is one only.
        world: How many ranks there are.
    """

    def __init__(self, report: Report | dict[str, Any]) -> None:
        self._report = report = typed(report)
        self.processes = report.processes
        self.wall_s = report.wall_s / max(1, report.processes)
        self.sending_s = report.sending_s
        self.in_workers = report.in_workers
        self.idle = report.idle or 0
        self.ranks = report.ranks
        self.world = report.world
        self.stages = [_stage(counts, report) for counts in report.stages]

    @property
    def skipped(self) -> dict[str, int]:
        """Error class -> items given up, over all stages."""
        total: dict[str, int] = {}
        for stage in self.stages:
            for name, count in stage.skipped.items():
                total[name] = total.get(name, 0) + count
        return total

    @property
    def busy_s(self) -> float:
        """Seconds all processes together had to do with the pipe."""
        return self._report.wall_s

    @property
    def advice(self) -> str:
        """The bottleneck and its remedy, in one sentence."""
        sentence = advice(self.stages, self.busy_s, self.sending_s, in_workers=self.in_workers)
        if self.in_workers and self.idle:
            sentence += (
                f"; {self.idle} of {self.processes} workers got no shard: more workers help only with more, smaller "
                "shards"
            )
        return sentence

    def __getitem__(self, name: str) -> StageReport:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"no stage {name!r}; there are {[stage.name for stage in self.stages]}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `merge_reports` joins, as those of ranks."""
        plain: dict[str, Any] = msgspec.to_builtins(self._report)
        return plain

    def to_prometheus(self, **labels: str) -> str:
        """Return the counters in Prometheus's text form.

        Args:
            **labels: Put on every line, e.g. ``rank="0"``.
        """
        return prometheus(self.stages, labels)

    def __str__(self) -> str:
        return table(self.stages, self.processes, self.wall_s, self._sentence())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.stages, self.processes, self.wall_s, self._sentence())

    def _sentence(self) -> str:
        """Return the advice, and what ranks it is about."""
        if len(self.ranks) == self.world or not self.ranks:
            return self.advice
        which = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))} of {self.world}"
        return f"{self.advice}. These are the counts of {which}: merge_reports() adds up those of all ranks"


def stats(loader: object) -> Stats:
    """Return the counts of the stages of `loader`, summed over its workers.

    They are those of this rank.
    Counting costs less than a hundredth of the time and is always on. Workers report with their items, at most once a
    second, and at the end of an epoch.

    Args:
        loader: An `ais_loader`, a DataLoader2, or a pipe that is iterated in this process.

    Returns:
        A `Stats`: print it. For all ranks: gather ``stats(loader).to_dict()`` (``all_gather_object``) and print
        ``Stats(merge_reports(reports))``.

    Raises:
        UsageError: It is torch's DataLoader with workers, which return nothing but items; or not a loader.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode()
        >>> len(list(pipe))
        6
        >>> report = stats(pipe)
        >>> report["decode"].items, report["load_tar"].retries, report.skipped
        (6, 0, {})
    """
    if isinstance(loader, Reporting):
        return Stats(merged(loader.stats_reports()))
    if isinstance(loader, IterDataPipe):
        return Stats(report_of(loader))
    service = getattr(loader, "reading_service", None)
    if hasattr(loader, "datapipe") and hasattr(loader, "reading_service"):
        return _of_dataloader2(loader, service)
    pipe = _pipe_of(loader)
    if pipe is None:
        raise UsageError.at(
            f"this is neither a loader nor a pipe, but a {type(loader).__name__}",
            todo="pass the loader you iterate",
        )
    if getattr(loader, "num_workers", 0):
        raise UsageError.at(
            "the workers of torch's DataLoader bring back nothing but items, no counts",
            todo="use ais_loader(pipe, num_workers=N) or DataLoader2 with this package's "
            "MultiProcessingReadingService; or measure with num_workers=0",
        )
    return Stats(report_of(pipe))


def with_stats(
    items: Iterable[T], loader: object, call: Callable[[Stats], object], every_s: float = 60.0
) -> Iterator[T]:
    """Yield `items`, and call `call` with the stats of `loader` between them.

    That is every `every_s` seconds, if an item came, and after the last item.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples()
        >>> len(list(with_stats(pipe, pipe, lambda report: print(report["group_samples"].items))))
        6
        6
    """
    due = monotonic() + every_s
    for item in items:
        yield item
        if monotonic() >= due:
            call(stats(loader))
            due = monotonic() + every_s
    call(stats(loader))


def _of_dataloader2(loader: Any, service: object) -> Stats:
    if isinstance(service, Reporting):
        return Stats(merged(service.stats_reports()))
    if getattr(service, "num_workers", 0):
        raise UsageError.at(
            f"{type(service).__module__}.{type(service).__name__} brings back no counts of its workers",
            todo="use torchdata_ais.MultiProcessingReadingService, which takes the same arguments",
        )
    return Stats(report_of(loader.datapipe))


def _pipe_of(loader: object) -> IterDataPipe[object] | None:
    """Return the pipe under one of torch's loaders or datasets."""
    dataset = getattr(loader, "dataset", loader)
    for attribute in ("_pipe", "_datapipe"):  # of as_dataset, and of torch's wrapper of pipes
        dataset = getattr(dataset, attribute, dataset)
    return dataset if isinstance(dataset, IterDataPipe) else None


_COUNTED = (
    *("bytes", "retries", "refetched", "skipped", "examples", "unverified"),
    *("held", "held_max", "opened"),
)


def _stage(counts: StageCounts, report: Report) -> StageReport:
    known = counts.stats
    stage = StageReport(
        counts.name,
        counts.text,
        counts.sources,
        counts.metered,
        items=counts.out,
        taken=counts.taken(report.stages),
        **{name: getattr(known, name) for name in _COUNTED},
    )
    if known.opened:
        stage.first_byte_ms = 1000 * known.first_byte_s / known.opened
        stage.first_byte_max_ms = 1000 * known.first_byte_max_s
    if counts.metered:
        stage.unmetered_above = _unmetered_above(counts, report.stages)
        above = min(_metered_above(counts, report.stages), counts.seconds)
        stage.seconds = counts.seconds
        stage.network_s = min(known.wait_s, stage.seconds - above)
        stage.wait_s = above + stage.network_s
        stage.own_s = stage.seconds - stage.wait_s
        stage.blocked_s = max(0.0, report.wall_s - stage.seconds)
    return stage


def _metered_above(counts: StageCounts, stages: Sequence[StageCounts]) -> float:
    """Return the time of the nearest measured stages upstream."""
    above = (stages[index] for index in counts.sources)
    return sum(one.seconds if one.metered else _metered_above(one, stages) for one in above)


def _unmetered_above(counts: StageCounts, stages: Sequence[StageCounts]) -> list[str]:
    names = []
    for source in (stages[index] for index in counts.sources):
        if not source.metered:
            names += _unmetered_above(source, stages)
            if source.name not in ("shuffle", "sharding_filter", "IterableWrapper"):
                names.append(source.name)
    return names
