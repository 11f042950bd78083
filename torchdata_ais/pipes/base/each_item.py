"""Base classes of stages that handle one item at a time."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator
from multiprocessing import parent_process
from typing import Any, ClassVar

from torch.utils.data import get_worker_info

from torchdata_ais._util.formatting import count_text
from torchdata_ais.pipes.base.contract import Effect, Gives
from torchdata_ais.pipes.base.pipe import Pipe, T_co
from torchdata_ais.pipes.base.policy import ErrorPolicy, OnError, note_place
from torchdata_ais.pipes.base.upstream import at_work

_log = logging.getLogger("torchdata_ais")

DROPPED: object = object()
"""What `EachItem._one` returns to leave an item out."""


class EachItem(Pipe[T_co]):
    """Base of stages that make at most one item of each input, holding none."""

    resumable = True
    gives: ClassVar[Gives] = "each"
    certain_after: ClassVar[int] = 0
    """After how many items without a result that is logged; 0: at the end of an iteration."""

    def __init__(self, source: object, on_error: OnError, max_errors: float | None) -> None:
        super().__init__(source)
        self._policy = ErrorPolicy(on_error, max_errors)

    def _one(self, item: object) -> object:
        """Return what becomes of `item`, or `DROPPED`."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Prepare an iteration."""

    def _shown(self) -> list[str]:
        """Return the arguments to show in `repr`, error policy apart."""
        return []

    def effect(self) -> Effect:
        effect = super().effect()
        return effect if self._policy.on_error == "raise" else effect._replace(gives="fewer")

    def arguments(self) -> str:
        return ", ".join(self._shown() + self._policy.shown())

    def identity(self) -> str:
        return ", ".join(self._shown())

    def _items(self) -> Iterator[Any]:
        self._begin()
        one, stats = self._one, self.stats
        dropped = 0  # before the first that is returned; -1 after it
        for item in self._source:
            stats.items += 1
            self._busy = item
            try:
                result = one(item)
            except Exception as error:  # noqa: BLE001 - functions of the user may raise anything
                note_place(error, item, self, at_work(self._source))
                if not self._policy.goes_on(error, stats, self.functional_name):
                    return
                continue
            if result is not DROPPED:
                dropped = -1
                yield result
            elif dropped >= 0:
                dropped += 1
                if dropped == self.certain_after:
                    _log.warning("%s: is a return missing?", none_returned(self.describe(), dropped))
        # Our loaders count those of their workers, torch's DataLoader does not.
        counted = parent_process() is not None and get_worker_info() is None
        if dropped > 0 and not 0 < self.certain_after <= dropped and not counted:
            _log.warning("%s", none_returned(self.describe(), dropped))
        self._policy.at_end(stats, self.functional_name)


class Unchanged(Pipe[Any]):
    """Base of the stages that pass all items on as they are."""

    resumable = True
    gives = "each"

    def _items(self) -> Iterator[object]:
        yield from self._source


def none_returned(stage: str, taken: int) -> str:
    """Return the sentence for a stage that returned none of its items.

    Example:
        >>> none_returned("select(f)", 7)
        'select(f) took 7 items and returned none'
    """
    return f"{stage} took {count_text(taken, 'item')} and returned none"


def shown_function(function: object) -> str:
    """Return a function's name for `repr`; its own might show an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def lists_of(items: Iterable[object], size: int, partial: bool) -> Iterator[list[Any]]:
    """Yield lists of `size` items; the last may be shorter if `partial`.

    Example:
        >>> list(lists_of("abc", 2, True)), list(lists_of("abc", 2, False))
        ([['a', 'b'], ['c']], [['a', 'b']])
    """
    rows: list[Any] = []
    for item in items:
        rows.append(item)
        if len(rows) == size:
            yield rows
            rows = []
    if rows and partial:
        yield rows
