"""Counts and times of the stages of a pipe in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from torchdata_ais.observe.diagnosis.batch_records import Recorded
from torchdata_ais.pipes.base.each_item import none_returned
from torchdata_ais.pipes.base.meter import StageStats, items_of, meter_of
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import parents, upstream


class StageCounts(msgspec.Struct):
    """Counts of one stage, in one process or in several.

    Attributes:
        sources: The stages it reads from, by their index.
        reads: Whether it reads shards or objects.
        metered: Whether it was measured.
        out: Items given out.
        seconds: Time spent in it and in the stages upstream.
        wall_s: Time from its first item to its last.
    """

    name: str
    text: str
    sources: list[int]
    reads: bool
    metered: bool
    out: int
    seconds: float
    wall_s: float
    stats: StageStats

    def taken(self, stages: Sequence[StageCounts]) -> int:
        """Return how many items it took, of `stages` to which it belongs."""
        return max(self.stats.items, *(stages[source].out for source in self.sources), 0)


Counts = dict[str, tuple[int, int]]
"""Items that each stage took and returned, by its name and arguments, the first stage first."""


class Report(msgspec.Struct):
    """Counts of the stages of a pipe, the first stage first.

    Attributes:
        wall_s: Seconds the processes were at it, all together.
        sending_s: Seconds of it that handing items over took.
        in_workers: Whether these were worker processes.
        idle: How many had nothing to read; None where that is to be seen from the stages.
        recorded: The records of batches, where requested.
        ranks, world: Of which ranks, empty where there are no others; how many there are.
    """

    stages: list[StageCounts]
    processes: int = 1
    wall_s: float = 0.0
    sending_s: float = 0.0
    in_workers: bool = False
    idle: int | None = None
    recorded: Recorded | None = None
    ranks: list[int] = []
    world: int = 1

    def of_rank(self, rank: int, world: int) -> Report:
        """Return this report as that of a rank."""
        self.ranks, self.world = [rank] if world > 1 else [], world
        return self

    def after(self, before: Report | None) -> Report:
        """Return this report, with the unread records of the one `before`."""
        self.recorded = Recorded.joined([None if before is None else before.take(), self.recorded])
        return self

    def take(self) -> Recorded | None:
        """Take the records out."""
        recorded, self.recorded = self.recorded, None
        return recorded


@runtime_checkable
class Reporting(Protocol):
    """A loader or reading service, which collects the counts of its workers."""

    def stats_reports(self) -> list[Report]:
        """Return the last report of each process."""


def report_of(pipe: IterDataPipe[object]) -> Report:
    """Return the counts in this process of `pipe` and the stages upstream."""
    while stage_of(pipe).hidden:
        pipe = parents(pipe)[0]
    stages = list(upstream(pipe))[::-1]
    index = {id(part): number for number, part in enumerate(stages)}
    counts = [_counts(part, [index[id(source)] for source in parents(part)]) for part in stages]
    for one in counts:
        # Whole runs go from load_tar to group_samples by a shorter way than torch's, which counts items.
        for above in (counts[number] for number in one.sources):
            if above.metered and len(one.sources) == 1:
                above.out = max(above.out, one.stats.items)
    return Report(counts, wall_s=next((one.wall_s for one in reversed(counts) if one.metered), 0.0))


def restart(pipe: IterDataPipe[object]) -> None:
    """Reset all counters: a forked process inherits its parent's counts."""
    for part in upstream(pipe):
        vars(part).pop("_meter", None)
        if isinstance(part, Pipe):
            part.stats = StageStats()


def _counts(pipe: IterDataPipe[object], sources: list[int]) -> StageCounts:
    stage, meter = stage_of(pipe), meter_of(pipe, keep=False)
    return StageCounts(
        stage.functional_name or type(pipe).__name__,
        stage.describe(),
        sources,
        stage.reads > 0,
        meter.begun,
        items_of(pipe, meter),
        meter.seconds,
        meter.wall_s,
        StageStats().add(stage.counts()),  # as it is now
    )


def counts_of(reports: Iterable[Report]) -> Counts:
    """Return the counts of the measured stages over all processes."""
    return added(
        {stage.text: (stage.taken(report.stages), stage.out) for stage in report.stages if stage.metered}
        for report in reports
    )


def added(counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts of several processes, or ranks.

    Example:
        >>> added([{"select(f)": (3, 2)}, {"select(f)": (4, 0)}])
        {'select(f)': (7, 2)}
    """
    found: Counts = {}
    for one in counts:
        for text, (taken, given) in one.items():
            before = found.get(text, (0, 0))
            found[text] = before[0] + taken, before[1] + given
    return found


def since(before: Counts, after: Counts) -> Counts:
    """Return what was counted between two moments."""
    return added([after, {text: (-taken, -given) for text, (taken, given) in before.items()}])


def first_empty(counts: Counts) -> str:
    """Return the sentence for the first stage that returned none of its items.

    Example:
        >>> first_empty({"load_tar": (3, 9), "map_sample(f)": (9, 0)})
        'map_sample(f) took 9 items and returned none'
    """
    for text, (taken, given) in counts.items():
        if taken > 0 and given <= 0:
            return none_returned(text, taken)
    return ""
