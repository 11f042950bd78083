"""Argument checks, with suggestions for unknown names.

Arguments whose annotation is open, or only for type checkers, are accepted unchecked.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import operator
import os
import types
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from typing_extensions import ParamSpec, get_type_hints, is_protocol

from torchdata_ais.errors import AISError, ArgumentError, UsageError

_CALLABLE: object = collections.abc.Callable

_SHOWN = 60
_NUMBERS: dict[type, type] = {int: numbers.Integral, float: numbers.Real}
_AS_GOOD: dict[type, tuple[type, ...]] = {
    str: (os.PathLike,),
    bytes: (bytearray, memoryview),
    dict: (collections.abc.Mapping,),
}
"""Types accepted in addition to the annotated one, unless the call fails."""
_SERIES = frozenset([list, tuple, collections.abc.Sequence])


@functools.lru_cache(512)
def _kinds_of(owner: object) -> Mapping[str, object]:
    """Return the annotations that can be looked up where the program runs."""
    found: dict[str, Any] = {}
    for name, written in getattr(owner, "__annotations__", {}).items():
        holder = type("_", (), {"__annotations__": {name: written}, "__module__": owner.__module__})
        try:
            found |= get_type_hints(holder, getattr(owner, "__globals__", None))
        except (NameError, TypeError, AttributeError):  # known to type checkers only
            found[name] = Any
    return found


def _fits(value: object, kind: object, *, failed: bool) -> bool:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one, failed=failed) for one in get_args(kind))
    if origin is Literal:
        return any(value is one or (type(value) is type(one) and value == one) for one in get_args(kind))
    if kind is None or kind is type(None):
        return value is None
    base = origin or kind
    if not isinstance(base, type) or base is object or is_protocol(base):
        return True
    return _fits_class(value, base, failed=failed)


def _fits_class(value: object, base: type, *, failed: bool) -> bool:
    if base is bool:  # as numpy has it, and 0 and 1
        return isinstance(value, numbers.Integral) or type(value).__name__ in ("bool_", "bool")
    if base in _NUMBERS:
        return isinstance(value, _NUMBERS[base]) or hasattr(
            value, "__index__" if base is int else "__float__"
        )
    if base == _CALLABLE:
        return callable(value)
    if not failed and isinstance(value, _AS_GOOD.get(base, ())):
        return True
    if base in _SERIES and not failed and hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return not isinstance(value, (str, bytes, collections.abc.Mapping))  # an array, a column of a table
    try:
        return isinstance(value, base)
    except TypeError:
        return True


def _is_choice(value: object, kind: object) -> bool:
    """Return whether a value has the type of the choices without being one."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return any(
        isinstance(one, type(value))
        for kind in kinds
        if get_origin(kind) is Literal
        for one in get_args(kind)
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _words(kind: object) -> str:
    r"""Return the accepted values, in words.

    Example:
        >>> _words(str | os.PathLike | None), _words(Literal["warn", "skip"] | Callable[..., Any])
        ('text, a path or None', '"warn", "skip" or a function')
    """
    words: list[str] = []
    for one in get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,):
        if get_origin(one) is Literal:
            words += [f'"{value}"' if isinstance(value, str) else repr(value) for value in get_args(one)]
        else:
            words.append(_word(get_origin(one) or one))
    words = [*dict.fromkeys(words)]
    words.sort(key=lambda word: word == "None")
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


_WORDS: Mapping[Any, str] = {
    type(None): "None",
    None: "None",
    str: "text",
    bytes: "bytes",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    os.PathLike: "a path",
    collections.abc.Callable: "a function",
    collections.abc.Mapping: "a dict",
    dict: "a dict",
    collections.abc.Sequence: "a list",
    collections.abc.Iterable: "a list",
    list: "a list",
    tuple: "a tuple",
}


def _word(kind: Any) -> str:
    return _WORDS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"


_PART = 4  # letters of a name that may be a part of the one that is meant


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a question that offers similar names; "" without any.

    Upper and lower case count as equal. `otherwise` is the text if no name is similar, but some contain it.

    Example:
        >>> did_you_mean("sise", ["size", "threads"]), did_you_mean("PIL", ["l", "pil"]), did_you_mean("x", ["size"])
        ('Did you mean size?', 'Did you mean pil?', '')
        >>> did_you_mean("timeout", ["rank_timeout_s"]), did_you_mean("timeout", ["rank_timeout_s"], "see stall_after")
        ('Did you mean rank_timeout_s?', 'see stall_after')
    """
    lower = {one.lower(): one for one in known}
    exact = name.lower() in lower
    near = [name.lower()] if exact else get_close_matches(name.lower(), lower, n=3, cutoff=0.7)
    if not near and not otherwise and len(name) >= _PART:  # "size" for "batchsize"
        near = [one for one in lower if name.lower() in one][:3]
    return f"Did you mean {' or '.join(lower[one] for one in near)}?" if near else otherwise


ELSEWHERE = {
    "batch_size": "batches are made in the pipe: end it with .batched(32)",
    "shuffle": "shuffle in the pipe: .shuffle() before .load_tar() for shards, .shuffled(1000) behind .group_samples()",
    "collate_fn": "batches are made in the pipe: .batched(32, collation_fn=...)",
    "drop_last": ".batched(32, partial=False) drops a last batch that is smaller",
    "droplast": ".batched(32, partial=False) drops a last batch that is smaller",
    "sampler": "the pipe says which samples come: split shards, or .select(...)",
    "prefetch_factor": "it is called prefetch",
    "timeout": "it is called stall_after",
    "persistent_workers": "workers live on between epochs by themselves",
    "engine": "the workers are of this package; for torch's use DataLoader(as_dataset(pipe), batch_size=None)",
    "worker_init_fn": "put what a worker needs into a stage, or use MultiProcessingReadingService(worker_init_fn=)",
    "handler": "it is called on_error",
    "num_workers": "workers are the loader's: ais_loader(pipe, num_workers=4), or those of its reading service: "
    "DataLoader2(pipe, reading_service=MultiProcessingReadingService(4))",
    "transform": "write it behind decode: .map_dict(jpg=transform), or .map_tuple(transform, None) behind to_tuple",
    "start": "write .slice_samples(start, stop)",
    "stop": "write .slice_samples(start, stop)",
    "weights": "they are called probs",
    "url": "it is called cluster: http://host:51080 of a proxy",
    "device": "workers make batches on the CPU; ais_loader(device='cuda') copies each to the GPU",
}
"""Replacements for options of torch's and webdataset's loaders."""


_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")

_OWNERS = frozenset(["self", "cls"])


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return `function` with checks that refuse wrong arguments helpfully.

    Of an ``__init__``, messages name the class by its ``functional_name``, else by its own name.

    Example:
        >>> def load(url: str, *, retries: int = 1) -> None: ...
        >>> checked(load)("ais://b", retires=2)
        Traceback (most recent call last):
        torchdata_ais.errors.ArgumentError: load() has no option 'retires'. Did you mean retries?
    """
    signature = functools.lru_cache(1)(lambda: inspect.signature(function))  # made on first use
    is_made = function.__name__ == "__init__"

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        call = check_call(function, arguments, named, signature())
        if not is_made:  # its effects cannot be undone
            call.check_kinds()
        try:
            result = function(*arguments, **named)
        except Exception as error:
            if not isinstance(error, AISError):  # values of another kind raise the first two
                call.check_kinds(failed=isinstance(error, (TypeError, AttributeError)))
            raise
        if is_made:  # an object checks its arguments in more detail than by kind
            call.check_kinds()
        return result

    return call


def checked_options(kind: type[_T]) -> type[_T]:
    """Return a dataclass whose constructor is `checked`."""
    kind.__init__ = checked(kind.__init__)  # type: ignore[method-assign]
    return kind


class Call(NamedTuple):
    """A checked call, with its name in messages."""

    function: Callable[..., object]
    bound: inspect.BoundArguments
    name: str

    def check_kinds(self, *, failed: bool = False) -> None:
        """Raise `ArgumentError` if an argument does not match its annotation.

        If the call has `failed`, None is refused where the annotation lacks it.

        Example:
            >>> def load(url: str, retries: int | None = 1) -> None: ...
            >>> check_call(load, ("ais://b", "7"), {}).check_kinds()
            Traceback (most recent call last):
            torchdata_ais.errors.ArgumentError: load(retries='7'): this is a str. Pass a whole number or None
        """
        kinds = _kinds_of(self.function)
        parameters = self.bound.signature.parameters
        for argument, value in self.bound.arguments.items():
            kind, one = kinds.get(argument, Any), parameters[argument]
            if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or value is one.default:
                continue
            # If it works, None is as good as left out.
            if _fits(value, kind, failed=failed) or (value is None and not failed):
                continue
            what = f"{self.name}({argument}={_shown(value)})"
            if not _is_choice(value, kind):
                what += f": this is a {type(value).__name__}"
            raise ArgumentError.at(what, todo=f"pass {_words(kind)}")


def check_call(
    function: Any,
    arguments: tuple[object, ...],
    named: Mapping[str, object],
    signature: inspect.Signature | None = None,
) -> Call:
    """Raise `ArgumentError` unless `function` takes these arguments."""
    signature = signature or inspect.signature(function)
    known, collects, name = [], False, function.__name__
    for one in signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            collects = True
        elif one.kind is not one.VAR_POSITIONAL and one.name not in _OWNERS:
            known.append(one.name)
    behind = 1 if not _OWNERS.isdisjoint(signature.parameters) else 0
    if name == "__init__":
        stage = getattr(arguments[0], "functional_name", "")
        if stage and known[:1] == ["source"]:  # users chain the stage to its source
            del known[0]
            behind = 2
        name = stage or type(arguments[0]).__name__
    unknown = [] if collects else [one for one in named if one not in known]
    if unknown:
        todo = did_you_mean(unknown[0], known, ELSEWHERE.get(unknown[0], ""))
        options = (
            f"its options are {', '.join(known)}" if known else "it takes values, and no options by name"
        )
        raise ArgumentError.at(f"{name}() has no option {unknown[0]!r}", todo=todo or options)
    try:
        return Call(function, signature.bind(*arguments, **named), name)
    except TypeError as error:
        shown = [str(one).partition(":")[0].partition("=")[0] for one in signature.parameters.values()]
        raise ArgumentError.at(
            f"{name}() was called with arguments that it does not take: {error}",
            todo=f"call {name}({', '.join(shown[behind:])})",
        ) from None


def check_function(function: object, count: int, name: str) -> None:
    """Raise `UsageError` unless `function` can be called with `count` values.

    Functions without a signature, as many written in C, are accepted unchecked. Messages call it `name`.

    Example:
        >>> check_function(len, 1, "select()")
        >>> check_function(lambda image, label: image, 1, "map_sample()")
        Traceback (most recent call last):
        torchdata_ais.errors.UsageError: map_sample() calls <lambda>(image, label) with 1 value: missing a required \
argument: 'label'. Pass a function of 1 value; functools.partial fixes others
    """
    wanted = f"{count} value{'' if count == 1 else 's'}"
    if not callable(function):
        raise UsageError.at(
            f"{name} was given a {type(function).__name__}", todo=f"pass a function of {wanted}"
        )
    try:
        # As it will be called: a decorator's function may accept other arguments than the wrapped one.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        shown = getattr(function, "__name__", type(function).__name__)
        names = ", ".join(str(one).partition(":")[0] for one in signature.parameters.values())
        raise UsageError.at(
            f"{name} calls {shown}({names}) with {wanted}: {error}",
            todo=f"pass a function of {wanted}; functools.partial fixes others",
        ) from None


def check_number(
    value: object, least: float, name: str, *, optional: bool = False, whole: bool = True
) -> None:
    """Raise `UsageError` unless `value` is a number of at least `least`.

    Example:
        >>> check_number("1", 1, "open_shards")
        Traceback (most recent call last):
        torchdata_ais.errors.UsageError: open_shards='1' is no whole number of at least 1
    """
    if value is None and optional:
        return
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        kind = "whole number" if whole else "number"
        raise UsageError.at(
            f"{name}={value!r} is no {kind} of at least {least:g}{' or None' if optional else ''}"
        )


def whole_number(value: Any, name: str, least: int = 0, most: int = 2**62) -> int:
    """Return an integer from `least` to `most`, else raise `UsageError`.

    Any type of integers is accepted.

    Example:
        >>> import numpy
        >>> whole_number(numpy.int64(3), "step")
        3
        >>> whole_number("a", "step")
        Traceback (most recent call last):
        torchdata_ais.errors.UsageError: step='a' is no whole number of at least 0
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise UsageError.at(f"{name}={value!r:.60} is no whole number of at least {least}")
    if number > most:
        raise UsageError.at(f"{name}={number} is more than can be counted: {most}")
    return number


def check_seed(seed: object) -> None:
    """Refuse at once a seed that is not an integer.

    Example:
        >>> check_seed(7)
        >>> check_seed("7")
        Traceback (most recent call last):
        torchdata_ais.errors.UsageError: seed='7' is no whole number. Pass one such as 7
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError.at(f"seed={seed!r} is no whole number", todo="pass one such as 7")


def check_text(values: Any, name: str) -> None:
    """Raise `UsageError` unless all `values` are text.

    Example:
        >>> check_text([5], "to_tuple()")
        Traceback (most recent call last):
        torchdata_ais.errors.UsageError: to_tuple() was given 5, of type int. Pass names as text
    """
    for value in values:
        if not isinstance(value, str):
            raise UsageError.at(
                f"{name} was given {value!r:.60}, of type {type(value).__name__}", todo="pass names as text"
            )
