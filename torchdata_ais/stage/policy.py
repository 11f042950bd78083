"""What a stage does about an error: raise it, or count it and go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from torchdata_ais.arguments import check_function
from torchdata_ais.errors import NEVER_SKIPPED, AISError, UsageError
from torchdata_ais.stage.stats import StageStats, text_of

OnError = Literal["raise", "warn", "skip"] | Callable[[Exception], bool]
"""``"raise"``; ``"warn"``: log and skip; ``"skip"``: skip; or a webdataset handler (True: go on, False: stop)."""

_RATE_AFTER = 100
_IN_A_ROW = 1000

logger = logging.getLogger("torchdata_ais")


class ErrorPolicy:
    """Decides whether a stage goes on after an error.

    Errors of the call, the program or the machine (`torchdata_ais.errors.NEVER_SKIPPED`) are always raised, and no
    handler is asked about them. Nothing ever sleeps.

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
        """Whether the limit is a share of the items."""
        return self.on_error != "raise" and isinstance(self.max_errors, float) and self.max_errors < 1

    def is_share_over(self, items: int, skipped: int, *, processes: int = 1, at_end: bool = False) -> bool:
        """Return whether so many of the items of so many processes are more than the share that may be given up."""
        return (at_end or items >= _RATE_AFTER * processes) and skipped > (self.max_errors or 0.0) * items

    def goes_on(self, error: Exception, stats: StageStats, stage: str) -> bool:
        """Return True to go on with the next item, False to end the stream; or raise `error`.

        Args:
            error: What happened.
            stats: Where it is counted.
            stage: The functional name of the stage, for the log.
        """
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
        """Raise if a share was allowed, and more was given up of a stream too short to tell before."""
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
        """Return what `repr` of a stage shows of it: nothing, where errors are raised."""
        return [] if self.on_error == "raise" else [repr(self)]

    def __repr__(self) -> str:
        function = getattr(self.on_error, "__name__", "handler")
        name = self.on_error if isinstance(self.on_error, str) else function
        limit = "" if self.max_errors is None else f", max_errors={self.max_errors}"
        return f"on_error={name!r}{limit}"
