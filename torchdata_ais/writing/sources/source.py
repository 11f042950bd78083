"""What every layout gives: items in a fixed order, which can be chosen from, begun anywhere, and loaded as samples."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torchdata_ais.writing.classes import other_numbers
from torchdata_ais.writing.sources.tally import Tally


class LeftOut(NamedTuple):
    """What a conversion did not take, and why.

    Attributes:
        reason: Why, in a few words.
        number: How many.
        first: The first of them: a path, a row, or what an error said.

    Example:
        >>> LeftOut("no picture by its name", 3, "notes.txt").number
        3
    """

    reason: str
    number: int
    first: str


def left_out(tally: Tally[str]) -> list[LeftOut]:
    """Return what was counted by reasons, in the order of the first of each."""
    return [LeftOut(reason, count, first) for reason, (count, first) in tally.items()]


class Source(ABC):
    """Items in a fixed order.

    Attributes:
        unit: What progress counts.
        total: How many of them.
        digest: Changes when the source does: a resumed conversion must meet the same.
        notes: What the manifest shall say about it.
        left_out: What lies there and is no item.
        load: Turns an item into a sample; a picklable function, for other processes to call.
        by_class: Whether the items stand class after class.
    """

    def __init__(self, unit: str, total: int, digest: str, load: Callable[[Any], dict[str, Any]]) -> None:
        self.unit, self.total, self.digest, self.load = unit, total, digest, load
        self.notes: dict[str, Any] = {}
        self.left_out: list[LeftOut] = []
        self.by_class = False

    @abstractmethod
    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(cursor, item)``; a cursor is a JSON value that stands for the place after its item."""

    @abstractmethod
    def done(self, cursor: Any) -> int:
        """Return how many units are over at a cursor."""

    @abstractmethod
    def chosen(self, positions: Callable[[int], Sequence[int]]) -> Source:
        """Return a source of some of the items: `positions` gives which ones, in which order, of so many."""

    def number_by(self, classes: Sequence[str]) -> None:
        """Have `load` number the classes as they stand in `classes`.

        Raises:
            UsageError: Their numbers stand in the source itself.
        """
        numbered = getattr(self.load, "numbered", None)
        if numbered is None:
            raise other_numbers()
        self.load = numbered(classes)

    def check_files(self) -> None:  # noqa: B027 - most have looked at theirs
        """Raise if a file that an item names is not there."""


class ListSource(Source):
    """Items that are few enough to be listed; the cursor is a position.

    Args:
        unit: What progress counts.
        items: All of them, or what gives them by number.
        digest: See `Source`.
        load: See `Source`.
    """

    def __init__(
        self, unit: str, items: Sequence[Any], digest: str, load: Callable[[Any], dict[str, Any]]
    ) -> None:
        super().__init__(unit, len(items), digest, load)
        self._items = items
        self._positions: Sequence[int] = range(len(items))

    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(position after it, item)``."""
        begin = cursor or 0
        yield from enumerate(self._take(self._positions[begin:]), begin + 1)

    def _take(self, positions: Sequence[int]) -> Iterator[Any]:
        return (self._items[position] for position in positions)

    def done(self, cursor: Any) -> int:
        """Return the position."""
        return int(cursor or 0)

    def chosen(self, positions: Callable[[int], Sequence[int]]) -> ListSource:
        """Return some of the items."""
        found = copy.copy(self)
        found._positions = positions(len(self._items))
        found.total = len(found._positions)
        return found
