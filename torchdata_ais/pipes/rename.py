"""``.rename()``: other names for fields."""

from __future__ import annotations

from typing import Any

from torchdata_ais.arguments import check_text
from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.pipes.to_tuple import first_field
from torchdata_ais.stage.each_item import EachItem
from torchdata_ais.stage.place import keep_place, require_dict
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage


@stage("rename")
class Renamer(EachItem[Any]):
    """Give fields other names (``.rename(image="jpg;png", label="cls")``).

    Args:
        source: Pipe of samples.
        keep: Whether the fields not named stay. False leaves nothing but the new ones: ``__key__``, too, is gone
            unless it is named.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.
        **names: New name -> old name, or alternatives ``"jpg;png"``; the first that is there counts.

    Yields:
        New samples of the same class: the fields kept, then the new ones. All alternatives are left out, also
        those not taken. A field that has a new name already is replaced.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        MissingFieldError: None of the alternatives is there.
        UsageError: An item is no dict.

    Example:
        >>> list(Renamer([{"__key__": "a", "png": 1, "cls": 2}], image="jpg;png"))
        [{'__key__': 'a', 'cls': 2, 'image': 1}]
    """

    def __init__(
        self,
        source: Any,
        *,
        keep: bool = True,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        **names: str,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        for old in names.values():
            check_text(
                [old] if isinstance(old, str) or not isinstance(old, (list, tuple)) else old, "rename()"
            )
        specs = {new: old if isinstance(old, str) else ";".join(old) for new, old in names.items()}
        if not specs:
            raise UsageError.at("rename() was given no name", todo='write rename(image="jpg;png")')
        self._specs = specs
        self._old = {name for spec in specs.values() for name in spec.split(";")}
        self._keep = keep

    def _shown(self) -> list[str]:
        return ([] if self._keep else ["keep=False"]) + [f"{new}={old!r}" for new, old in self._specs.items()]

    def _one(self, item: Any) -> dict[str, Any]:
        sample = require_dict(item, "rename")
        result = {name: value for name, value in sample.items() if self._keep and name not in self._old}
        try:
            result.update({new: first_field(sample, spec) for new, spec in self._specs.items()})
        except MissingFieldError as error:
            named = [(new, old) for new, old in self._specs.items() if new in sample and old not in sample]
            if not named:
                raise
            swapped = ", ".join(f'{old}="{new}"' for new, old in named)
            raise error.noting(f"write rename({swapped}): the new name comes first") from None
        return keep_place(result, sample)
