"""What the stages of a pipe counted and measured in one process, as plain values that travel."""

from __future__ import annotations

from typing import Any

from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.stage.meter import Meter, items_of
from torchdata_ais.stage.pipe import IterDataPipe, Pipe, parents, upstream

__all__ = ["name_of", "report_of", "restart"]


def name_of(pipe: Any) -> str:
    """Return how a stage is chained: its functional name, or its class's name.

    Example:
        >>> from torchdata_ais.pipes import Shuffler
        >>> name_of(Shuffler([], 10)), name_of(Shuffler([], 10).batch(2))
        ('shuffled', 'batch')
    """
    name: str = getattr(type(pipe), "functional_name", "")
    return name or _core_names().get(type(pipe)) or type(pipe).__name__.removesuffix("IterDataPipe")


def report_of(pipe: IterDataPipe[Any]) -> dict[str, Any]:
    """Return what `pipe` and the stages above it did in this process.

    Args:
        pipe: The last stage.

    Returns:
        ``{"stages": [...], "processes": 1, "wall_s": float, "sending_s": 0.0}``; the stages from the first to the
        last, each with its name, what `Pipe.counts` gave, the indices of its sources, and what was measured.
    """
    while getattr(pipe, "hidden", False):
        pipe = parents(pipe)[0]
    stages = list(upstream(pipe))[::-1]
    index = {id(part): number for number, part in enumerate(stages)}
    entries = [_entry(part, [index[id(source)] for source in parents(part)]) for part in stages]
    for part, entry in zip(stages, entries, strict=True):
        # Whole runs go from load_tar to group_samples by a shorter way than torch's, which counts items.
        (source, *_) = [*parents(part), None]
        if isinstance(part, TarSampleGrouper) and isinstance(source, AISFileLoader):
            above = entries[index[id(source)]]
            above["out"] = max(above["out"], entry["items"])
    wall_s = next((entry["wall_s"] for entry in reversed(entries) if entry["metered"]), 0.0)
    return {"stages": entries, "processes": 1, "wall_s": wall_s, "sending_s": 0.0}


def restart(pipe: IterDataPipe[Any]) -> None:
    """Let every stage count from zero: a forked process begins with what its parent had counted."""
    for part in upstream(pipe):
        vars(part).pop("_meter", None)
        stats = vars(part).get("stats")
        if stats is not None and isinstance(part, Pipe):
            vars(part)["stats"] = type(stats)()


def _entry(pipe: Any, sources: list[int]) -> dict[str, Any]:
    meter = vars(pipe).get("_meter")
    entry: dict[str, Any] = {
        "name": name_of(pipe),
        "text": repr(pipe) if isinstance(pipe, Pipe) else name_of(pipe),
        "sources": sources,
        "metered": False,
        "out": 0,
        "seconds": 0.0,
        "wall_s": 0.0,
    }
    if isinstance(meter, Meter):
        entry["metered"] = meter.begun
        entry["out"] = items_of(pipe, meter)
        entry["seconds"], entry["wall_s"] = meter.seconds, meter.wall_s
    if isinstance(pipe, Pipe):
        entry.update(pipe.counts())
    return entry


def _core_names() -> dict[Any, str]:
    """Return torch's own stages -> the names they are chained by."""
    functions: dict[str, Any] = IterDataPipe.functions
    named = ((getattr(function, "args", (None,))[0], name) for name, function in functions.items())
    return {
        kind: name for kind, name in named if isinstance(kind, type) and kind.__module__.startswith("torch.")
    }
