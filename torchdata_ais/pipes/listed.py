"""``.listed()`` and ``.unlisted()``: n items to one list, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.bound import MemoryBound
from torchdata_ais.stage.contract import Effect
from torchdata_ais.stage.lists import lists_of
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.slots import say_no_steps


@stage("listed")
class ListBatcher(Pipe[list[Any]]):
    """Put `batchsize` items into a list (``.listed(64)``), without making columns of them.

    Args:
        source: Pipe of anything.
        batchsize: Items a list.
        partial: Whether to yield the last list when it is shorter; each worker has one.

    Yields:
        Lists of items.

    Order:
        That of the source.

    Memory:
        `batchsize` items.

        >>> ListBatcher([], 64).memory_bound().text
        '64 items'

    Example:
        >>> list(ListBatcher(range(5), 2))
        [[0, 1], [2, 3], [4]]
    """

    resumable = True

    def __init__(self, source: Any, batchsize: int = 20, partial: bool = True) -> None:
        super().__init__(source)
        if batchsize < 1:
            raise UsageError.at(f"batchsize={batchsize}", todo="use at least 1")
        self._batchsize = batchsize
        self._partial = partial

    def memory_bound(self) -> MemoryBound:
        """Return what the stage holds at most in one process; see "Memory" above."""
        return MemoryBound(f"{self._batchsize} items")

    def effect(self) -> Effect:
        return Effect("batches", self._batchsize, self._partial, keeps_place=False)

    def arguments(self) -> str:
        return f"{self._batchsize}" if self._partial else f"{self._batchsize}, partial=False"

    def _items(self) -> Iterator[list[Any]]:
        yield from lists_of(self._source, self._batchsize, self._partial)


def listed(items: Iterable[Any], batchsize: int = 20, partial: bool = True) -> Iterator[list[Any]]:
    """Yield lists of `batchsize` items; the last one may be shorter, or is left out if `partial` is False."""
    if batchsize < 1:
        raise UsageError.at(f"batchsize={batchsize}", todo="use at least 1")
    yield from lists_of(items, batchsize, partial)


@stage("unlisted")
class Unlister(Pipe[Any]):
    """Yield the items of lists (``.unlisted()``): the reverse of ``.listed(n)``.

    Args:
        source: Pipe of lists.

    Yields:
        The items.

    Order:
        That of the source.

    Memory:
        One list.

    Raises:
        UsageError: An item is no list.

    Example:
        >>> list(Unlister([[0, 1], [], [2]]))
        [0, 1, 2]
    """

    gives = "more"

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        say_no_steps(self._source, "unlisted")

    def _items(self) -> Iterator[Any]:
        for items in self._source:
            if not isinstance(items, list):
                raise UsageError.at(
                    f"unlisted() was given an item of type {type(items).__name__}, not a list",
                    todo="for batches of columns use .unbatched()",
                )
            yield from items
