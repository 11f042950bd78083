"""What the stages of a pipe counted and measured in one process."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec

from torchdata_ais.observe.diagnosis.batch_records import Recorded
from torchdata_ais.pipes.base.meter import StageStats, items_of, meter_of
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import parents, upstream


class StageCounts(msgspec.Struct):
    """What one stage did, in one process or in several.

    Attributes:
        name: The name it is chained by.
        text: The stage with its arguments.
        sources: The stages it reads from, by their index.
        reads: Whether it reads shards or objects.
        metered: Whether it was measured.
        out: Items given out.
        seconds: Time spent in it and in the stages above it.
        wall_s: Time from its first item to its last.
        stats: What it counted.
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


class Report(msgspec.Struct):
    """What the stages of a pipe did, the first stage first.

    Attributes:
        stages: One a stage.
        processes: In how many processes.
        wall_s: Seconds they were at it, all together.
        sending_s: Seconds of it that handing items over took.
        in_workers: Whether these were worker processes.
        idle: How many had nothing to read; None where that is to be seen from the stages.
        recorded: The records of batches that go along, where somebody wants them.
    """

    stages: list[StageCounts]
    processes: int = 1
    wall_s: float = 0.0
    sending_s: float = 0.0
    in_workers: bool = False
    idle: int | None = None
    recorded: Recorded | None = None

    def after(self, before: Report | None) -> Report:
        """Return this report, with the records that nobody has taken from the one `before`."""
        self.recorded = Recorded.joined([None if before is None else before.take(), self.recorded])
        return self

    def take(self) -> Recorded | None:
        """Take the records out."""
        recorded, self.recorded = self.recorded, None
        return recorded


@runtime_checkable
class Reporting(Protocol):
    """What knows of its worker processes what their pipes counted: a loader, or a reading service."""

    def stats_reports(self) -> list[Report]:
        """Return the last report of each process."""


def report_of(pipe: IterDataPipe[Any]) -> Report:
    """Return what `pipe`, the last stage, and the stages above it did in this process."""
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


def restart(pipe: IterDataPipe[Any]) -> None:
    """Let every stage count from zero: a forked process begins with what its parent had counted."""
    for part in upstream(pipe):
        vars(part).pop("_meter", None)
        if isinstance(part, Pipe):
            part.stats = StageStats()


def _counts(pipe: IterDataPipe[Any], sources: list[int]) -> StageCounts:
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
