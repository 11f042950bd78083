"""``.map_tuple()``: a function for each value of a tuple."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata_ais.arguments import check_function
from torchdata_ais.errors import UsageError
from torchdata_ais.stage.each_item import EachItem, shown_function
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage


@stage("map_tuple")
class TupleMapper(EachItem[Any]):
    """Apply the first function to the first value of each tuple, and so on (``.map_tuple(f, None, g)``).

    Args:
        source: Pipe of tuples or lists.
        *fs: Functions; None leaves the value as it is. Functions without a value and values without a function
            are passed over.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole tuple is skipped.
        max_errors: How many tuples to give up: a count, or a share of all.

    Yields:
        Tuples of the same length.

    Order:
        That of the source.

    Memory:
        One tuple.

    Raises:
        UsageError: An item is neither tuple nor list.
        Exception: Whatever a function raises.

    Example:
        >>> list(TupleMapper([(1, "a", 5)], float, None))
        [(1.0, 'a', 5)]
    """

    def __init__(
        self,
        source: Any,
        *fs: Callable[[Any], Any] | None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        for f in fs:
            if f is not None:
                check_function(f, 1, "map_tuple()")
        self._fs = fs

    def _shown(self) -> list[str]:
        return ["None" if f is None else shown_function(f) for f in self._fs]

    def _one(self, item: Any) -> tuple[Any, ...]:
        if not isinstance(item, (tuple, list)):
            raise UsageError.at(
                f"map_tuple was given an item of type {type(item).__name__}, not a tuple",
                todo="put .to_tuple() before it, or use .map_dict()",
            )
        values = list(item)
        for index, f in enumerate(self._fs[: len(values)]):
            if f is not None:
                values[index] = f(values[index])
        return tuple(values)
