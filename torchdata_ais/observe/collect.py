"""What the stages of a pipe counted and measured in one process, as plain values that travel."""

from __future__ import annotations

from typing import Any

from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.meter import items_of, meter_of
from torchdata_ais.stage.pipe import IterDataPipe, Pipe, parents, upstream
from torchdata_ais.stage.stats import StageStats

__all__ = ["report_of", "restart"]


def report_of(pipe: IterDataPipe[Any]) -> dict[str, Any]:
    """Return what `pipe` and the stages above it did in this process.

    Args:
        pipe: The last stage.

    Returns:
        ``{"stages": [...], "processes": 1, "wall_s": float, "sending_s": 0.0}``; the stages from the first to the
        last, each with its name, what `Stage.counts` gave, the indices of its sources, and what was measured.
    """
    while stage_of(pipe).hidden:
        pipe = parents(pipe)[0]
    stages = list(upstream(pipe))[::-1]
    index = {id(part): number for number, part in enumerate(stages)}
    entries = [_entry(part, [index[id(source)] for source in parents(part)]) for part in stages]
    for entry in entries:
        # Whole runs go from load_tar to group_samples by a shorter way than torch's, which counts items.
        for above in (entries[number] for number in entry["sources"]):
            if above["metered"] and len(entry["sources"]) == 1:
                above["out"] = max(above["out"], entry["items"])
    wall_s = next((entry["wall_s"] for entry in reversed(entries) if entry["metered"]), 0.0)
    return {"stages": entries, "processes": 1, "wall_s": wall_s, "sending_s": 0.0}


def restart(pipe: IterDataPipe[Any]) -> None:
    """Let every stage count from zero: a forked process begins with what its parent had counted."""
    for part in upstream(pipe):
        vars(part).pop("_meter", None)
        if isinstance(part, Pipe):
            part.stats = StageStats()


def _entry(pipe: IterDataPipe[Any], sources: list[int]) -> dict[str, Any]:
    stage, meter = stage_of(pipe), meter_of(pipe)
    return {
        "name": stage.functional_name or type(pipe).__name__,
        "text": stage.describe(),
        "sources": sources,
        "reads": stage.reads > 0,
        "metered": meter.begun,
        "out": items_of(pipe, meter),
        "seconds": meter.seconds,
        "wall_s": meter.wall_s,
        **stage.counts(),
    }
