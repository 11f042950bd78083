"""``.extract_keys()``: samples to tuples of the fields that match patterns."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torchdata_ais.arguments import check_text
from torchdata_ais.errors import DuplicateFieldError, MissingFieldError, UsageError
from torchdata_ais.samples import shown_fields
from torchdata_ais.stage.each_item import EachItem
from torchdata_ais.stage.place import place_of, require_dict
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage


@stage("extract_keys")
class KeyExtractor(EachItem[Any]):
    """Pick the fields that match patterns as a tuple (``.extract_keys("*.jpg;*.png", "*.cls")``).

    Args:
        source: Pipe of samples.
        *patterns: Patterns of `fnmatch`, with alternatives by ``;``, compared with the field's name as it is and
            with a dot before it: ``*.jpg`` matches ``jpg`` as well as ``left.jpg``.
        duplicate_is_error: Whether two fields for one pattern are an error; else the first is taken.
        ignore_missing: Whether a pattern that matches no field is passed over: the tuple is shorter then.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.

    Yields:
        Tuples, one value a pattern. The sample's place in the data set is lost from here on.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        MissingFieldError: A pattern matched nothing.
        DuplicateFieldError: A pattern matched two fields.
        UsageError: An item is no dict.

    Example:
        >>> list(KeyExtractor([{"__key__": "a", "png": 1, "cls": 2}], "*.jpg;*.png", "cls"))
        [(1, 2)]
    """

    keeps_place = False

    def __init__(
        self,
        source: Any,
        *patterns: str | Sequence[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        if not patterns:
            raise UsageError.at(
                "extract_keys() was given no pattern", todo='write extract_keys("*.jpg;*.png", "*.cls")'
            )
        for pattern in patterns:
            check_text(pattern if isinstance(pattern, (list, tuple)) else [pattern], "extract_keys()")
        self._patterns = [
            tuple(pattern.split(";")) if isinstance(pattern, str) else tuple(pattern) for pattern in patterns
        ]
        self._duplicate_is_error = duplicate_is_error
        self._ignore_missing = ignore_missing

    def _shown(self) -> list[str]:
        return [repr(";".join(alternatives)) for alternatives in self._patterns]

    def _one(self, item: Any) -> tuple[Any, ...]:
        sample = require_dict(item, "extract_keys")
        found = [self._find(sample, alternatives) for alternatives in self._patterns]
        return tuple([sample[field] for field in found if field is not None])

    def _find(self, sample: dict[str, Any], alternatives: tuple[str, ...]) -> str | None:
        matches = [
            field
            for field in sample
            if any(
                fnmatchcase("." + field, pattern) or fnmatchcase(field, pattern) for pattern in alternatives
            )
        ]
        if len(matches) == 1 or (matches and not self._duplicate_is_error):
            return matches[0]
        if not matches and self._ignore_missing:
            return None
        shown = ";".join(alternatives)
        key = sample.get("__key__")
        if matches:
            raise DuplicateFieldError.at(
                f"the fields {matches} of the sample {key!r} all match {shown!r}",
                todo="make the pattern narrower, or take the first with duplicate_is_error=False",
                **place_of(sample, shown),
            )
        raise MissingFieldError.at(
            f"no field of the sample {key!r} matches {shown!r}, there are {shown_fields(sample)}",
            todo="mend the pattern, or allow it with ignore_missing=True",
            **place_of(sample, shown),
        )
