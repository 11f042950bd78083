"""``.map_dict()`` and ``.map_tuple()``: functions of single fields of a sample, or values of a tuple."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torchdata_ais.arguments import check_function
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.to_tuple import first_field
from torchdata_ais.stage.each_item import EachItem, shown_function
from torchdata_ais.stage.place import require_dict
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage


@stage("map_dict")
class DictMapper(EachItem[Any]):
    """Apply functions to fields of each sample (``.map_dict(jpg=augment, cls=int)``).

    Args:
        source: Pipe of samples.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole sample is skipped, and the
            one taken in is as it was.
        max_errors: How many samples to give up: a count, or a share of all.
        **fs: Field -> function of its value; for a field such as ``seg.png`` write ``**{"seg.png": f}``.

    Yields:
        New samples of the same class, with the fields in the same order.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        MissingFieldError: Names key, URL and the fields there are.
        UsageError: No function given; an item is no dict.
        Exception: Whatever a function raises.

    Example:
        >>> list(DictMapper([{"__key__": "a", "cls": "3"}], cls=int))
        [{'__key__': 'a', 'cls': 3}]
    """

    def __init__(
        self,
        source: Any,
        *,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        **fs: Callable[[Any], Any],
    ) -> None:
        super().__init__(source, on_error, max_errors)
        if not fs:
            raise UsageError.at("map_dict() was given no function", todo="write map_dict(cls=int)")
        for name, f in fs.items():
            check_function(f, 1, f"map_dict({name}=)")
        self._fs = fs

    def _shown(self) -> list[str]:
        return [f"{name}={shown_function(f)}" for name, f in self._fs.items()]

    def _one(self, item: Any) -> dict[str, Any]:
        result = copy.copy(require_dict(item, "map_dict"))
        for name, f in self._fs.items():
            result[name] = f(result[name] if name in result else first_field(item, name))
        return result


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
