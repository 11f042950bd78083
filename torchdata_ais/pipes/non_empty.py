"""``.non_empty()``: an empty stream is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.state import StageState


@stage("non_empty")
class NonEmpty(Pipe[Any]):
    """Pass items on, and raise if there are none at all (``.non_empty()``); each worker looks at its own.

    Args:
        source: Pipe of anything.

    Yields:
        The items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        UsageError: The source had no items.

    Example:
        >>> list(NonEmpty(range(3)))
        [0, 1, 2]
    """

    resumable = True
    gives = "each"

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._resumed = False

    def _items(self) -> Iterator[Any]:
        empty, self._resumed = not self._resumed, False
        for item in self._source:
            empty = False
            yield item
        if empty:
            raise UsageError.at(
                "the stream has no items at all, and .non_empty() makes that an error",
                todo="check what the sources match and what the stages before drop; use no more workers than shards",
            )

    def load_state(self, state: StageState, below: int) -> None:
        del state, below
        self._resumed = True  # the items may all have come before the checkpoint
