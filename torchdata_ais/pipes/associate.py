"""``.associate()``: data kept elsewhere, joined by the key."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torchdata_ais.arguments import check_function
from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.stage.each_item import EachItem, shown_function
from torchdata_ais.stage.place import place_of, require_dict
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage


class _Table:
    """Holds a mapping out of torch's sight: it would pickle a large one at each look at the graph."""

    def __init__(self, extras: Mapping[str, Mapping[str, Any]]) -> None:
        self.extras = extras

    def __call__(self, key: str) -> Mapping[str, Any]:
        return self.extras.get(key, {})


@stage("associate")
class Associator(EachItem[Any]):
    """Add fields found by the sample's key (``.associate({"a": {"caption": "a cat"}})``).

    Args:
        source: Pipe of samples.
        associator: Mapping from key to a mapping of fields, or a function that returns one. A key that is not in
            the mapping adds nothing.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.

    Yields:
        New samples of the same class with the fields added; a field of the same name is replaced.

    Order:
        That of the source.

    Memory:
        One sample, and the mapping in each worker.

    Raises:
        MissingFieldError: A sample without ``__key__``.
        UsageError: An item is no dict, or `associator` neither mapping nor function.

    Example:
        >>> list(Associator([{"__key__": "a"}, {"__key__": "b"}], {"a": {"caption": "a cat"}}))
        [{'__key__': 'a', 'caption': 'a cat'}, {'__key__': 'b'}]
    """

    def __init__(
        self,
        source: Any,
        associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]],
        *,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        if callable(associator):
            check_function(associator, 1, "associate()")
            self._extras: Callable[[str], Mapping[str, Any]] = associator
        elif isinstance(associator, Mapping):
            self._extras = _Table(associator)
        else:
            raise UsageError.at(
                f"associate() was given a {type(associator).__name__}",
                todo="pass a mapping or a function of the key",
            )

    def _shown(self) -> list[str]:
        table = self._extras
        return [f"{len(table.extras)} keys" if isinstance(table, _Table) else shown_function(table)]

    def _one(self, item: Any) -> dict[str, Any]:
        sample = require_dict(item, "associate")
        if "__key__" not in sample:
            raise MissingFieldError.at(
                f"a sample without __key__ cannot be associated, it has {sorted(sample)}",
                todo="put .associate() before the stage that drops the key",
                **place_of(sample, "__key__"),
            )
        result = copy.copy(sample)
        result.update(self._extras(sample["__key__"]))
        return result
