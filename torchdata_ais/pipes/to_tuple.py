"""``.to_tuple()``: samples to tuples of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchdata_ais.argument_names import did_you_mean
from torchdata_ais.arguments import check_text
from torchdata_ais.codecs import IMAGE_EXTENSIONS
from torchdata_ais.error_text import Remedy, in_programs
from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.samples import shown_fields
from torchdata_ais.stage.each_item import EachItem
from torchdata_ais.stage.place import place_of
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage

_MISSING: Any = ...  # what help() can show


def first_field(sample: Mapping[str, Any], spec: str) -> Any:
    """Return the first field of `sample` that `spec` names.

    Args:
        sample: The sample.
        spec: One name, or alternatives: ``"jpg;png"``.

    Raises:
        MissingFieldError: None of them is there.

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


def _instead(sample: Mapping[str, Any], spec: str) -> str:
    """Return what to write instead of `spec`: alternatives, if that is a picture of another format."""
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
        source: Any,
        *specs: str,
        missing: Any = _MISSING,
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
        self._default: Any = missing if missing_is_error else None
        self._none_is_error = none_is_error

    def _shown(self) -> list[str]:
        return [repr(spec) for spec in self._specs]

    def arguments(self) -> str:
        return self.identity()

    def _items(self) -> Iterator[tuple[Any, ...]]:
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

    def _other(self, sample: Mapping[str, Any], spec: str) -> Any:
        """Return what stands for a spec that is no field of the sample by itself."""
        try:
            return first_field(sample, spec)
        except MissingFieldError:
            if self._default is _MISSING:
                raise
            return self._default

    def _refuse_none(self, sample: Mapping[str, Any], picked: tuple[Any, ...]) -> None:
        for spec, value in zip(self._specs, picked, strict=True):
            if value is None:
                raise MissingFieldError.at(
                    f"the field {spec!r} of the sample {sample.get('__key__')!r} is None",
                    todo="allow it with none_is_error=False",
                    **place_of(sample, spec),
                )


def _no_sample(item: Any) -> UsageError:
    return UsageError.at(
        f"to_tuple() was given an item of type {type(item).__name__}, not a sample (a dict)",
        todo="put .group_samples() before it, and .to_tuple() only once; .map_tuple() changes tuples",
    )
