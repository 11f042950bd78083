"""``.select()``: keep the items a function says yes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata_ais.arguments import check_function
from torchdata_ais.stage.each_item import DROPPED, EachItem, shown_function
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage


@stage("select")
class Selector(EachItem[Any]):
    """Keep the items for which a function is true (``.select(predicate)``).

    Args:
        source: Pipe of anything.
        predicate: Function of an item.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many items to give up: a count, or a share of all.

    Yields:
        The items chosen, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        Exception: Whatever `predicate` raises.

    Example:
        >>> list(Selector(range(5), lambda x: x % 2 == 0))
        [0, 2, 4]
    """

    gives = "fewer"

    def __init__(
        self,
        source: Any,
        predicate: Callable[[Any], Any],
        *,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        check_function(predicate, 1, "select()")
        self._predicate = predicate

    def _shown(self) -> list[str]:
        return [shown_function(self._predicate)]

    def _one(self, item: Any) -> Any:
        return item if self._predicate(item) else DROPPED
