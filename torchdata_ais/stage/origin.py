"""Where an error of somebody else's code comes from: the sample at work, and their part of the traceback."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

from torchdata_ais.errors import AISError, noted
from torchdata_ais.shown import value_text
from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.place import place_in

_E = TypeVar("_E", bound=BaseException)

_OURS = ("torchdata_ais.", "torchdata.", "torch.utils.data.")
_RUNS = ("torchdata_ais.stage.", "torchdata_ais.loaders.", "torchdata_ais.workers.", "torchdata_ais.dataloader2.",
         "torchdata_ais.webdataset.pipeline", "torchdata_ais.webdataset.utils", *_OURS[1:])  # fmt: skip
"""Modules that run stages, and are not what a stage does."""


def note_place(error: Exception, item: Any, stage: Stage | None, place: dict[str, Any]) -> None:
    """Add to the traceback of an error of a user's function which stage called it, with what, and for which sample.

    The error keeps its class and arguments. Python 3.10 does not print notes, but the counts of a stage do.

    Args:
        error: Nothing is added to one of this package, which says so itself, or to one that was here before.
        item: What the function was given, or stands in; None if that is not known.
        stage: The stage.
        place: ``url`` and ``key`` of the sample at work, where the item does not know them.
    """
    if isinstance(error, AISError) or getattr(error, "__notes__", None):
        return
    place = place_in(item) or place
    if isinstance(item, Mapping) and "__url__" in item:
        place = {"url": item["__url__"], **place}
    known = [f"{name} {place[name]!r}" for name in ("key", "url") if place.get(name) is not None]
    given = f", which was given {value_text(item)}" if item is not None and not place_in(item) else ""
    where = f"in .{stage.functional_name}(){given}" if stage is not None else ""
    if sample := f"in the sample with {', '.join(known)}" if known else "":
        where = f"{where}, {sample}" if where else sample
    if where:
        noted(error, where)


def trimmed(error: _E) -> _E:
    """Return the same error without the way it came up through stages and loaders, which would hide it in 60 lines.

    What is kept begins with the first frame that is none of ours: the user's function. An error of ours, or of C code,
    keeps the frames of the stage itself.
    """
    if isinstance(error, AISError):
        return error.with_traceback(None)  # it says what and where by itself
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    names = [str(frame.tb_frame.f_globals.get("__name__")) for frame in frames]
    first = next((index for index, name in enumerate(names) if not name.startswith(_OURS)), None)
    if first is not None:
        return error.with_traceback(frames[first])
    kept = [frame for frame, name in zip(frames, names, strict=True) if not name.startswith(_RUNS)]
    for frame in reversed(kept or frames[-1:]):
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return error.with_traceback(trace)
