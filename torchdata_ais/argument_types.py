"""Whether arguments are of the kinds that a function's annotations name: looked at behind its own checks.

What an annotation leaves open, or names only to type checkers, is taken as it is.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import os
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_protocol

from torchdata_ais.errors import ArgumentError

__all__ = ["check_kinds"]

_CALLABLE: Any = collections.abc.Callable

_SHOWN = 60
_NUMBERS: dict[type, type] = {int: numbers.Integral, float: numbers.Real}
_AS_GOOD: dict[type, tuple[type, ...]] = {
    str: (os.PathLike,),
    bytes: (bytearray, memoryview),
    dict: (collections.abc.Mapping,),
}
"""What programs pass as well, and what is told only if the call fails by it."""
_SERIES = frozenset([list, tuple, collections.abc.Sequence])


def check_kinds(
    function: Callable[..., Any],
    bound: inspect.BoundArguments,
    name: str,
    collected: type | None = None,
    *,
    failed: bool = False,
) -> None:
    """Raise `ArgumentError` if an argument is of another kind than its annotation says.

    Args:
        function: Has the annotations.
        bound: What it is called with.
        name: What to call it.
        collected: The `TypedDict` of the keyword arguments that it collects; None leaves these alone.
        failed: Whether the call has failed: then None is no value for what does not name it.

    Example:
        >>> def load(url: str, retries: int | None = 1) -> None: ...
        >>> check_kinds(load, inspect.signature(load).bind("ais://b", "7"), "load")
        Traceback (most recent call last):
        torchdata_ais.errors.ArgumentError: load(retries='7'): this is a str. Pass a whole number or None
    """
    kinds = _kinds_of(function)
    given = dict(bound.arguments)
    for one in bound.signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            given |= given.pop(one.name, {})
            kinds = {**kinds, **(_kinds_of(collected) if collected else {})}
        elif one.kind is one.VAR_POSITIONAL:
            given.pop(one.name, None)
    for argument, value in given.items():
        kind = kinds.get(argument, Any)
        default = bound.signature.parameters.get(argument)
        if _fits(value, kind, failed=failed) or (default is not None and value is default.default):
            continue
        if value is None and not failed:  # as good as left out, for whom it works
            continue
        what = f"{name}({argument}={_shown(value)})"
        if not _is_choice(value, kind):
            what += f": this is a {type(value).__name__}"
        raise ArgumentError.at(what, todo=f"pass {_words(kind)}")


@functools.lru_cache(512)
def _kinds_of(owner: Any) -> Mapping[str, Any]:
    """Return the annotations that can be looked up where the program runs."""
    found: dict[str, Any] = {}
    for name, written in getattr(owner, "__annotations__", {}).items():
        holder = type("_", (), {"__annotations__": {name: written}, "__module__": owner.__module__})
        try:
            found |= get_type_hints(holder, getattr(owner, "__globals__", None))
        except (NameError, TypeError, AttributeError):  # known to type checkers only
            found[name] = Any
    return found


def _fits(value: Any, kind: Any, *, failed: bool) -> bool:
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


def _is_choice(value: Any, kind: Any) -> bool:
    """Return whether a value is of the type of what can be chosen from, and only another one."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return any(
        isinstance(one, type(value))
        for kind in kinds
        if get_origin(kind) is Literal
        for one in get_args(kind)
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _words(kind: Any) -> str:
    r"""Return what to pass, in words.

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
