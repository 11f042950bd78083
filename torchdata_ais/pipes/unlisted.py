"""``.unlisted()``: lists to their items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.slots import say_no_steps


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
