"""Arguments looked at when a stage is made: later, a wrong one would look like bad data, and might be skipped."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torchdata_ais.errors import UsageError

__all__ = ["check_function", "check_number", "check_text", "option", "taken"]


def check_function(function: Any, count: int, name: str) -> None:
    """Raise `UsageError` unless `function` can be called with `count` values.

    Functions that do not tell what they take, as many written in C, are taken as they are.

    Args:
        function: The argument.
        count: How many values it will be called with.
        name: What to call it, such as ``map_sample()``.

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
        # As it will be called: the function that a decorator wraps may take something else than what it returned.
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


_T = TypeVar("_T")


def option(kind: type[_T], given: _T | None, named: dict[str, Any]) -> _T:
    """Return the options object `given`; without one, make it of those of the keyword arguments that are its fields.

    Args:
        kind: A dataclass that checks its fields.
        given: As the user passed it.
        named: All further keyword arguments; those that are taken are taken out.

    Raises:
        UsageError: It is none of its kind, or is said twice.
    """
    own = taken(named, kind)
    if given is None:
        return kind(**own)
    if own or not isinstance(given, kind):
        beside = "".join(f" beside {name}=" for name in own)
        raise UsageError.at(
            f"{given!r:.60} was given{beside} where {kind.__name__}(...) says all",
            todo=f"pass {kind.__name__}(...) alone",
        )
    return given


def taken(named: dict[str, Any], known: type) -> dict[str, Any]:
    """Take those keyword arguments that the `TypedDict` or dataclass `known` has out of `named`, and return them."""
    return {name: named.pop(name) for name in known.__annotations__ if name in named}


def check_number(value: Any, least: float, name: str, *, optional: bool = False, whole: bool = True) -> None:
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
