"""``.xdecode()``: fields decoded by functions of a stream, chosen by pattern."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from torchdata_ais.arguments import check_function
from torchdata_ais.errors import NEVER_SKIPPED, DecodeError, SampleError, UsageError
from torchdata_ais.stage.each_item import EachItem
from torchdata_ais.stage.place import keep_place, place_of, require_dict
from torchdata_ais.stage.policy import OnError
from torchdata_ais.stage.registry import stage

_Function = Callable[[Any], Any] | Literal[False]
_Rule = tuple[str, _Function]


def _read(stream: Any) -> Any:
    return stream.read()


def _read_text(stream: Any) -> str:
    return str(stream.read(), "utf-8")


_DEFAULTS: tuple[_Rule, ...] = (("*.bin", _read), ("*.txt", _read_text))


@stage("xdecode")
class StreamDecoder(EachItem[Any]):
    """Decode fields with functions that take a stream (``.xdecode(("*.npy", numpy.load), raw=False)``).

    A pattern (of `fnmatch`, in lower case) is compared with the field's name in lower case, without what stands
    before the last slash, as it is and with a dot before it: ``*.txt`` matches ``txt`` and ``left.txt``. Nothing is
    unpickled unless a function of yours does it.

    Args:
        source: Pipe of samples.
        *rules: ``(pattern, function)``; later ones are tried first. False instead of a function leaves the bytes.
        must_decode: Whether a field that no pattern matches is an error; else it stays as it is.
        defaults: Rules tried last; default ``*.bin`` (bytes) and ``*.txt`` (UTF-8).
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole sample is skipped.
        max_errors: How many samples to give up: a count, or a share of all.
        **functions: Extension -> function: ``npy=f`` is ``("*.npy", f)``.

    Yields:
        New samples of the same class. Fields that begin with ``__`` stay. A function is given `io.BytesIO` for
        bytes, other values as they are.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        DecodeError: No rule for a field, or its function failed; names key, field, URL and cause.
        UsageError: An item is no dict; a rule is no pattern with a function of one value.

    Example:
        >>> list(StreamDecoder([{"__key__": "a", "txt": b"cat", "n": b"7"}], n=lambda stream: int(stream.read())))
        [{'__key__': 'a', 'txt': 'cat', 'n': 7}]
    """

    def __init__(
        self,
        source: Any,
        *rules: tuple[str, Callable[[Any], Any] | Literal[False]],
        must_decode: bool = True,
        defaults: Sequence[tuple[str, Callable[[Any], Any] | Literal[False]]] | None = None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        **functions: Callable[[Any], Any] | Literal[False],
    ) -> None:
        super().__init__(source, on_error, max_errors)
        by_extension = [(f"*.{extension}", function) for extension, function in functions.items()]
        self._rules = [*(_DEFAULTS if defaults is None else defaults), *rules, *by_extension]
        for rule in self._rules:
            if not isinstance(rule, (tuple, list)) or len(rule) != 2 or not isinstance(rule[0], str):
                raise UsageError.at(
                    f"xdecode() was given {rule!r:.80}", todo='write xdecode(("*.npy", numpy.load))'
                )
            if rule[1] is not False:
                check_function(rule[1], 1, f"xdecode({rule[0]!r})")
        self._must_decode = must_decode

    def _shown(self) -> list[str]:
        return [repr(pattern) for pattern, _ in self._rules]

    def _one(self, item: Any) -> dict[str, Any]:
        sample = require_dict(item, "xdecode")
        return keep_place({field: self._value(sample, field) for field in sample}, sample)

    def _value(self, sample: dict[str, Any], field: str) -> Any:
        value = sample[field]
        if field.startswith("__"):
            return value
        function = self._function(field, sample)
        if not function:
            return value
        try:
            return function(io.BytesIO(value) if isinstance(value, bytes) else value)
        except Exception as error:
            if isinstance(error, (SampleError, *NEVER_SKIPPED)):
                raise
            raise DecodeError.at(
                f"the field {field!r} of the sample {sample.get('__key__')!r} cannot be decoded:"
                f" {type(error).__name__}: {error}",
                todo="mend the data, or skip such samples with xdecode(on_error='skip')",
                **place_of(sample, field),
            ) from error

    def _function(self, field: str, sample: dict[str, Any]) -> Any:
        name = field.rpartition("/")[2].lower()
        for pattern, function in reversed(self._rules):
            if fnmatchcase(name, pattern) or fnmatchcase("." + name, pattern):
                return function
        if self._must_decode and not name.startswith("__"):
            raise DecodeError.at(
                f"no rule of xdecode is for the field {field!r}",
                todo=f'give one: xdecode(("*.{name}", function)), or keep such fields with must_decode=False',
                **place_of(sample, field),
            )
        return False
