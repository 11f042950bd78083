"""``.rename()`` and ``.rename_keys()``: other names for fields, which are named or match patterns."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torchdata_ais.arguments import check_text
from torchdata_ais.errors import DuplicateFieldError, MissingFieldError, UsageError
from torchdata_ais.pipes.to_tuple import first_field
from torchdata_ais.samples import shown_fields
from torchdata_ais.stage.each_item import EachItem
from torchdata_ais.stage.place import keep_place, place_of, require_dict
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
            check_text(old if isinstance(old, (list, tuple)) else [old], "rename()")
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


@stage("rename_keys")
class KeyRenamer(EachItem[Any]):
    """Give the fields that match a pattern another name (``.rename_keys(image="*png", label="cls")``).

    A pattern (of `fnmatch`, in lower case) is compared with the field's name in lower case, without what stands
    before the last slash. Mind that ``*.jpg`` matches ``left.jpg``, but not ``jpg``.

    Args:
        source: Pipe of samples.
        *pairs: ``(new name, pattern)``.
        keep_unselected: Whether fields that match no pattern stay; ``__key__`` is such a field.
        must_match: Whether a pattern that matches no field is an error.
        duplicate_is_error: Whether two fields for one new name are an error; else the first is taken.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.
        **names: New name -> pattern; later ones are tried first, before `pairs`.

    Yields:
        New samples of the same class, fields in the order they had.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        MissingFieldError: A pattern matched nothing.
        DuplicateFieldError: Two fields would get one name.
        UsageError: An item is no dict.

    Example:
        >>> sample = {"__key__": "a", "left.png": 1, "cls": 2}
        >>> list(KeyRenamer([sample], image="*.png", keep_unselected=True))
        [{'__key__': 'a', 'image': 1, 'cls': 2}]
    """

    def __init__(
        self,
        source: Any,
        *pairs: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        **names: str,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise UsageError.at(
                    f"rename_keys() was given {pair!r:.80}", todo='write ("image", "*.png") or image="*.png"'
                )
            check_text(pair, "rename_keys()")
        check_text(names.values(), "rename_keys()")
        renamings = [(pattern, new) for new, pattern in [*pairs, *names.items()]]
        if not renamings:
            raise UsageError.at("rename_keys() was given no name", todo='write rename_keys(image="*png")')
        self._renamings = renamings
        self._keep_unselected = keep_unselected
        self._must_match = must_match
        self._duplicate_is_error = duplicate_is_error

    def _shown(self) -> list[str]:
        return [f"{new}={pattern!r}" for pattern, new in self._renamings]

    def _one(self, item: Any) -> dict[str, Any]:
        sample = require_dict(item, "rename_keys")
        result: dict[str, Any] = {}
        matched: set[str] = set()
        for field, value in sample.items():
            pattern, new = self._match(field)
            if pattern is not None:
                matched.add(pattern)
            elif not self._keep_unselected:
                continue
            if new not in result:
                result[new] = value
            elif self._duplicate_is_error:
                raise DuplicateFieldError.at(
                    f"two fields of the sample {sample.get('__key__')!r} would get the name {new!r}",
                    todo="make the pattern narrower, or take the first with duplicate_is_error=False",
                    **place_of(sample, field),
                )
        missing = [pattern for pattern, _ in self._renamings if pattern not in matched]
        if self._must_match and missing:
            raise MissingFieldError.at(
                f"no field of the sample {sample.get('__key__')!r} matches {missing}, there are {shown_fields(sample)}",
                todo="mend the pattern, or allow it with must_match=False",
                **place_of(sample, missing[0]),
            )
        return keep_place(result, sample)

    def _match(self, field: str) -> tuple[str | None, str]:
        name = field.rpartition("/")[2].lower()
        for pattern, new in reversed(self._renamings):
            if fnmatchcase(name, pattern):
                return pattern, new
        return None, field
