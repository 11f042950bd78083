"""Error policy of a stage, and the origin of a sample."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

from torchdata_ais._util.arguments import check_function
from torchdata_ais._util.formatting import value_text
from torchdata_ais.errors import NEVER_SKIPPED, AISError, UsageError, noted
from torchdata_ais.errors.text import short_name
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.meter import StageStats, text_of
from torchdata_ais.samples import Fields, Sample

OnError = Literal["raise", "warn", "skip"] | Callable[[Exception], bool]
"""``"raise"``; ``"warn"``: log and skip; ``"skip"``: skip; or a webdataset handler (True: go on, False: stop)."""

_RATE_AFTER = 100
_IN_A_ROW = 1000

logger = logging.getLogger("torchdata_ais")


class ErrorPolicy:
    """Decides whether a stage continues after an error.

    Errors of the call, the program or the machine (`torchdata_ais.errors.NEVER_SKIPPED`) are always raised, and no
    handler is called for them. Nothing ever sleeps.

    Args:
        on_error: See `OnError`. ``"warn"`` and ``"skip"`` log the first error of a class in full and count the
            rest; ``"warn"`` logs at level WARNING, ``"skip"`` at INFO.
        max_errors: How many items may be given up: a count, in one process; or a share of the items seen (a float
            below 1, looked at from the 100th item on and at the end), in one process, and under `ais_loader` in all
            workers of all ranks together (from a hundred items for each of them on). One more raises the error
            itself. None: any number.

    Attributes:
        by_job: Whether the loader compares the share, for all processes. Here is then only seen that a thousand items
            in a row were given up, for of those the loader does not hear.
    """

    def __init__(self, on_error: OnError = "raise", max_errors: float | None = None) -> None:
        if not callable(on_error) and on_error not in ("raise", "warn", "skip"):
            raise UsageError.at(
                f"on_error={on_error!r} is no policy",
                todo='use "raise", "warn", "skip" or a function (error) -> bool',
            )
        if callable(on_error):
            check_function(on_error, 1, "on_error=")
        is_number = isinstance(max_errors, (int, float)) and not isinstance(max_errors, bool)
        if max_errors is not None and not (is_number and max_errors >= 0):
            raise UsageError.at(
                f"max_errors={max_errors!r}",
                todo="use a count such as 10, a share such as 0.01, or None for any number",
            )
        self.on_error = on_error
        self.max_errors = max_errors
        self.by_job = False
        self._good, self._given_up_at_good = -1, 0

    @property
    def is_share(self) -> bool:
        """True if the limit is a share of the items."""
        return self.on_error != "raise" and isinstance(self.max_errors, float) and self.max_errors < 1

    def is_share_over(self, items: int, skipped: int, *, processes: int = 1, at_end: bool = False) -> bool:
        """Return whether more than the allowed share of the items was given up."""
        return (at_end or items >= _RATE_AFTER * processes) and skipped > (self.max_errors or 0.0) * items

    def goes_on(self, error: Exception, stats: StageStats, stage: str) -> bool:
        """Return whether to continue with the next item, or raise `error`."""
        if self.on_error == "raise" or isinstance(error, NEVER_SKIPPED):
            raise error
        go_on = True
        if callable(self.on_error):
            go_on = bool(self.on_error(error))
        elif type(error).__name__ not in stats.skipped:
            level = logging.WARNING if self.on_error == "warn" else logging.INFO
            logger.log(level, "%s skips after %s", stage, text_of(error))
        stats.skip(error)
        if self._is_over(stats):
            what = f"{self._too_many(stats, stage)}; the last: "
            if isinstance(error, AISError):
                raise type(error)(what + error.what, todo=error.todo, place=error.place) from error
            raise AISError.at(f"{what}{error}") from error
        return go_on

    def at_end(self, stats: StageStats, stage: str) -> None:
        """Raise if more than the share of a stream was given up, however short."""
        if self.on_error != "raise" and self._is_over(stats, at_end=True):
            raise AISError(f"{self._too_many(stats, stage)}; the first: {stats.examples[0]}")

    def _is_over(self, stats: StageStats, *, at_end: bool = False) -> bool:
        limit = self.max_errors
        count = sum(stats.skipped.values())
        if limit is None or not count:
            return False
        if self.is_share:
            if self.by_job:
                return not at_end and self._in_a_row(stats.items, count) > _IN_A_ROW
            return self.is_share_over(stats.items, count, at_end=at_end)
        return count > limit

    def _in_a_row(self, items: int, skipped: int) -> int:
        """Return how many items were given up since the last good one."""
        if items - skipped > self._good:
            self._good, self._given_up_at_good = items - skipped, skipped - 1
        return skipped - self._given_up_at_good

    def _too_many(self, stats: StageStats, stage: str) -> str:
        count = sum(stats.skipped.values())
        return f"{stage}() met {count} errors in {stats.items} items, over max_errors={self.max_errors}"

    def shown(self) -> list[str]:
        """Return the text for a stage's `repr`: empty if errors are raised."""
        return [] if self.on_error == "raise" else [repr(self)]

    def __repr__(self) -> str:
        function = getattr(self.on_error, "__name__", "handler")
        name = self.on_error if isinstance(self.on_error, str) else function
        limit = "" if self.max_errors is None else f", max_errors={self.max_errors}"
        return f"on_error={name!r}{limit}"


def keep_place(result: Fields, sample: object) -> Fields:
    """Return `result` as a `Sample` with the origin of `sample`, if any.

    Example:
        >>> keep_place({"cls": 1}, Sample({"cls": b"1"}, place=7)).place
        7
    """
    if not isinstance(sample, Sample):
        return result
    if not isinstance(result, Sample):
        return sample.renewed(result)
    if result.place < 0:
        result.place = sample.place
    return result


def place_of(sample: Mapping[str, object], field: str | None = None) -> dict[str, Any]:
    """Return the origin of `sample` or a field, for an error's ``[at]`` line.

    Example:
        >>> place_of({"__key__": "a", "cls": 3}, "cls")
        {'field': 'cls', 'key': 'a', 'url': None, 'offset': None}
    """
    offset = getattr(sample, "offset", -1)
    return {
        "field": field,
        "key": sample.get("__key__"),
        "url": url if isinstance(url := sample.get("__url__"), str) else None,  # of a batch there are many
        "offset": None if offset < 0 else offset,
    }


def place_in(item: object) -> dict[str, Any]:
    """Return ``url`` and ``key`` of `item`, if it is a sample.

    Example:
        >>> place_in({"__key__": "a", "cls": 3}), place_in(3)
        ({'url': None, 'key': 'a'}, {})
    """
    if not isinstance(item, Mapping) or not isinstance(item.get("__key__"), str):
        return {}
    return {"url": item.get("__url__"), "key": item["__key__"]}


def require_dict(sample: object, stage: str) -> Fields:
    """Return `sample`; raise `UsageError` if it is not a dict."""
    if isinstance(sample, dict):
        return sample
    raise UsageError.at(
        f"{stage}() was given an item of type {type(sample).__name__}, not a dict",
        todo=f"put .{stage}() before .to_tuple() and .batched(), behind .group_samples()",
    )


_E = TypeVar("_E", bound=BaseException)

_OURS = ("torchdata_ais.", "torchdata.", "torch.utils.data.")
_RUNS = ("torchdata_ais.pipes.base.", "torchdata_ais.loaders.", "torchdata_ais.workers.", "torchdata_ais.dataloader2.",
         "torchdata_ais.webdataset.pipeline", "torchdata_ais.webdataset.utils", *_OURS[1:])  # fmt: skip
"""Modules that run stages, and are not what a stage does."""


def note_place(error: Exception, item: object, stage: Stage | None, place: dict[str, Any]) -> None:
    """Add stage, argument and sample to the traceback of a user's error.

    The error keeps its class and arguments. Nothing is added to one of this package, which says so itself, or to one
    that was here before. Python 3.10 does not print notes, but the counts of a stage do. The `item` is the argument of
    the function, or its container; `place` is that of the sample at work, where the item does not know it.
    """
    if isinstance(error, AISError) or getattr(error, "__notes__", None):
        return
    place = place_in(item) or place
    if isinstance(item, Mapping) and "__url__" in item:
        place = {"url": item["__url__"], **place}
    known = [
        f"{name} {short_name(str(place[name]))!r}" for name in ("key", "url") if place.get(name) is not None
    ]
    given = f", which was given {value_text(item)}" if item is not None and not place_in(item) else ""
    where = f"in .{stage.functional_name}(){given}" if stage is not None else ""
    if sample := f"in the sample with {', '.join(known)}" if known else "":
        where = f"{where}, {sample}" if where else sample
    if where:
        noted(error, where)


def trimmed(error: _E) -> _E:
    """Return the same error without the frames of stages and loaders.

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
