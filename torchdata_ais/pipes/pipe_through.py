"""``.pipe_through()``: a generator function as a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.each_item import shown_function
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage


@stage("pipe_through")
class PipeThrough(Pipe[Any]):
    """Make a stage of a function from an iterator to an iterator (``.pipe_through(f)``): webdataset's ``.pipe``.

    Args:
        source: Pipe of anything.
        f: Function, for example a generator function, called once an epoch with an iterator over the items; more
            arguments with `functools.partial`.

    Yields:
        What the iterable that `f` returns yields. It may drop, repeat and reorder; a checkpoint cannot see through
        it, so a loader asked for its state names this stage.

    Order:
        As `f` makes it.

    Memory:
        What `f` holds.

    Raises:
        UsageError: `f` is no function, or returned nothing to iterate.
        Exception: Whatever `f` raises; the epoch is over then.

    Example:
        >>> def pairs(items):
        ...     for item in items:
        ...         yield item, next(items)
        >>> list(PipeThrough(range(4), pairs))
        [(0, 1), (2, 3)]
    """

    def __init__(self, source: Any, f: Callable[[Iterator[Any]], Iterable[Any]]) -> None:
        super().__init__(source)
        if not callable(f):
            raise UsageError.at(
                f"pipe_through() was given a {type(f).__name__}", todo="pass a function of an iterator"
            )
        self._f = f

    def arguments(self) -> str:
        return shown_function(self._f)

    def _items(self) -> Iterator[Any]:
        made = self._f(iter(self._source))
        if not hasattr(made, "__iter__"):
            raise UsageError.at(
                f"{shown_function(self._f)} returned a {type(made).__name__}, nothing to iterate",
                todo="make it a generator function (yield the items), or use .map_sample() for one item at a time",
            )
        yield from made
