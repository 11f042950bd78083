""".to_tuple(), .extract_keys(), .rename() and .rename_keys()."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torchdata_ais._util.arguments import check_text, did_you_mean
from torchdata_ais.codecs import IMAGE_EXTENSIONS
from torchdata_ais.errors import DuplicateFieldError, MissingFieldError, UsageError
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.pipes.base.each_item import EachItem
from torchdata_ais.pipes.base.policy import OnError, keep_place, place_of, require_dict
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.samples import Fields, shown_fields

_MISSING: object = ...  # what help() can show


def first_field(sample: Mapping[str, object], spec: str) -> Any:
    """Return the first field of `sample` that `spec` names.

    Example:
        >>> first_field({"png": 1}, "jpg;png")
        1
    """
    for name in spec.split(";"):
        value = sample.get(name, _MISSING)
        if value is not _MISSING:
            return value
    raise MissingFieldError.at(
        f"the sample {sample.get('__key__')!r:.200} has no field {spec!r}, only {shown_fields(sample)}",
        todo=Remedy(
            _instead(sample, spec),
            in_programs(", give a value for it with missing=, or skip with on_error='skip'"),
        ),
        **place_of(sample, spec),
    )


_USUAL = {"label": "cls", "target": "cls", "class": "cls", "caption": "txt", "text": "txt"}


def _instead(sample: Mapping[str, object], spec: str) -> str:
    """Return alternatives for `spec`, if that is a picture of another format."""
    wanted = spec.split(";")
    plain = wanted[0].strip("., ").lower()
    if plain != wanted[0] and plain in sample:
        return f"did you mean {plain}? Else name alternatives with ;"
    ends = [field for field in sample if any(field.endswith("." + name) for name in wanted)]
    if len(ends) > 1:
        return f"name one of them, such as {ends[0]!r}; if keys have dots: a key ends at the first, so write - for them"
    images = [field for field in sample if field.rpartition(".")[2] in IMAGE_EXTENSIONS]
    if images and any(name.rpartition(".")[2] in IMAGE_EXTENSIONS for name in wanted):
        return f'write "{spec};{images[0]}" for pictures of either kind'
    near = [images[0]] if images and wanted[0] in ("image", "img", "picture", "images") else []
    near += [_USUAL[name] for name in wanted if _USUAL.get(name) in sample]
    fields = (one for one in sample if one[:2] != "__")
    hint = f"Did you mean {near[0]}?" if near else did_you_mean(wanted[0], fields)
    return f"{hint} Else name alternatives with ;" if hint else "name alternatives with ;"


@stage("to_tuple")
class TupleMaker(EachItem[tuple[Any, ...]]):
    """Pick fields of each sample as a tuple (``.to_tuple("jpg;png", "cls")``).

    Args:
        source: Pipe of samples.
        *specs: Field names, with alternatives ``"jpg;png"``; ``"__key__"`` works, too. One string with spaces is
            several: ``"jpg;png cls"``.
        missing: Value for a field that is not there; without it, that is an error.
        missing_is_error: webdataset's switch: False gives None for a missing field.
        none_is_error: webdataset's other switch: whether a field that is None is an error, too.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.

    Yields:
        Tuples, one value a spec. The sample's place in the data set is lost from here on.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        MissingFieldError: Names key, URL and the fields there are.

    Example:
        >>> list(TupleMaker([{"__key__": "a", "png": 1, "cls": 2}], "jpg;png cls"))
        [(1, 2)]
    """

    keeps_place = False
    passes_on = True

    def __init__(
        self,
        source: object,
        *specs: str,
        missing: object = _MISSING,
        missing_is_error: bool = True,
        none_is_error: bool = False,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        check_text(specs, "to_tuple()")
        if len(specs) == 1:
            specs = tuple(specs[0].split())
        if not specs:
            raise UsageError.at("to_tuple() was given no field", todo='write to_tuple("jpg;png", "cls")')
        self._specs = specs
        self._default: object = missing if missing_is_error else None
        self._none_is_error = none_is_error

    def _shown(self) -> list[str]:
        return [repr(spec) for spec in self._specs]

    def arguments(self) -> str:
        return self.identity()

    def _items(self) -> Iterator[tuple[object, ...]]:
        specs, stats, other = self._specs, self.stats, self._other
        none_is_error = self._none_is_error
        for sample in self._source:
            stats.items += 1
            try:
                picked = tuple([sample[spec] if spec in sample else other(sample, spec) for spec in specs])
                if none_is_error:
                    self._refuse_none(sample, picked)
            except (MissingFieldError, AttributeError, TypeError) as error:
                if not isinstance(sample, Mapping):
                    raise _no_sample(sample) from None
                if not self._policy.goes_on(error, self.stats, "to_tuple"):
                    return
                continue
            yield picked
        self._policy.at_end(self.stats, "to_tuple")

    def _other(self, sample: Mapping[str, object], spec: str) -> object:
        """Return the value for a spec that is not itself a field of the sample."""
        try:
            return first_field(sample, spec)
        except MissingFieldError:
            if self._default is _MISSING:
                raise
            return self._default

    def _refuse_none(self, sample: Mapping[str, object], picked: tuple[object, ...]) -> None:
        for spec, value in zip(self._specs, picked, strict=True):
            if value is None:
                raise MissingFieldError.at(
                    f"the field {spec!r} of the sample {sample.get('__key__')!r} is None",
                    todo="allow it with none_is_error=False",
                    **place_of(sample, spec),
                )


def _no_sample(item: object) -> UsageError:
    return UsageError.at(
        f"to_tuple() was given an item of type {type(item).__name__}, not a sample (a dict)",
        todo="put .group_samples() before it, and .to_tuple() only once; .map_tuple() changes tuples",
    )


@stage("extract_keys")
class KeyExtractor(EachItem[Any]):
    """Pick the fields that match patterns as a tuple (``.extract_keys()``).

    For example ``.extract_keys("*.jpg;*.png", "*.cls")``.

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
        UsageError: An item is not a dict.

    Example:
        >>> list(KeyExtractor([{"__key__": "a", "png": 1, "cls": 2}], "*.jpg;*.png", "cls"))
        [(1, 2)]
    """

    keeps_place = False

    def __init__(
        self,
        source: object,
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

    def _one(self, item: object) -> tuple[object, ...]:
        sample = require_dict(item, "extract_keys")
        found = [self._find(sample, alternatives) for alternatives in self._patterns]
        return tuple([sample[field] for field in found if field is not None])

    def _find(self, sample: Fields, alternatives: tuple[str, ...]) -> str | None:
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
        UsageError: An item is not a dict.

    Example:
        >>> list(Renamer([{"__key__": "a", "png": 1, "cls": 2}], image="jpg;png"))
        [{'__key__': 'a', 'cls': 2, 'image': 1}]
    """

    def __init__(
        self,
        source: object,
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

    def _one(self, item: object) -> Fields:
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
    """Rename fields that match a pattern (``.rename_keys(image="*png")``).

    A pattern (of `fnmatch`, in lower case) is compared with the field's name in lower case, without the part
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
        UsageError: An item is not a dict.

    Example:
        >>> sample = {"__key__": "a", "left.png": 1, "cls": 2}
        >>> list(KeyRenamer([sample], image="*.png", keep_unselected=True))
        [{'__key__': 'a', 'image': 1, 'cls': 2}]
    """

    def __init__(
        self,
        source: object,
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

    def _one(self, item: object) -> Fields:
        sample = require_dict(item, "rename_keys")
        result: Fields = {}
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
