"""Arguments looked at when a stage is made: later, a wrong one would look like bad data, and might be skipped."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from typing_extensions import ParamSpec, is_typeddict

from torchdata_ais.argument_names import ELSEWHERE, did_you_mean
from torchdata_ais.argument_types import check_kinds
from torchdata_ais.errors import AISError, ArgumentError, UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")

_OWNERS = frozenset(["self", "cls"])


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return `function`, which then refuses arguments that it does not take in words that help.

    Keyword arguments that it collects are known where they are annotated as ``Unpack[...]`` of a `TypedDict`.

    Args:
        function: A function, or the ``__init__`` of a class. What users call the latter by is the ``functional_name``
            of its class, or the class's name.

    Example:
        >>> def load(url: str, *, retries: int = 1) -> None: ...
        >>> checked(load)("ais://b", retires=2)
        Traceback (most recent call last):
        torchdata_ais.errors.ArgumentError: load() has no option 'retires'. Did you mean retries?
    """
    signature = functools.lru_cache(1)(lambda: inspect.signature(function))  # made when it is asked for
    is_made = function.__name__ == "__init__"

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        call = check_call(function, arguments, named, signature())
        if not is_made:  # what it does cannot be taken back; what it collects is handed on to who checks it
            call._replace(collected=None).check_kinds()
        try:
            result = function(*arguments, **named)
        except Exception as error:
            if not isinstance(error, AISError):  # the first two are what values of another kind make
                call.check_kinds(failed=isinstance(error, (TypeError, AttributeError)))
            raise
        if is_made:  # an object says more of its own arguments than their kinds do
            call.check_kinds()
        return result

    return call


def checked_options(kind: type[_T]) -> type[_T]:
    """Return a dataclass whose constructor is `checked`."""
    kind.__init__ = checked(kind.__init__)  # type: ignore[method-assign]
    return kind


class Call(NamedTuple):
    """A call that was looked at.

    Attributes:
        function: What is called.
        bound: Its arguments.
        name: What to call it.
        collected: The `TypedDict` of the keyword arguments that it collects.
    """

    function: Callable[..., Any]
    bound: inspect.BoundArguments
    name: str
    collected: type | None

    def check_kinds(self, *, failed: bool = False) -> None:
        """Raise `ArgumentError` if an argument is of another kind than its annotation says."""
        check_kinds(*self, failed=failed)


def check_call(
    function: Any,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    signature: inspect.Signature | None = None,
) -> Call:
    """Raise `ArgumentError` unless `function` takes these arguments by their names and number; see `checked`."""
    signature = signature or inspect.signature(function)
    known, collects, name = [], "", function.__name__
    for one in signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            collects = str(one.annotation)
        elif one.kind is not one.VAR_POSITIONAL and one.name not in _OWNERS:
            known.append(one.name)
    behind = 1 if not _OWNERS.isdisjoint(signature.parameters) else 0
    if name == "__init__":
        stage = getattr(arguments[0], "functional_name", "")
        if stage and known[:1] == ["source"]:  # what users chain it to
            del known[0]
            behind = 2
        name = stage or type(arguments[0]).__name__
    # With postponed annotations a text, which names a class that the function's module knows.
    kind = getattr(function, "__globals__", {}).get(collects.removeprefix("Unpack[").removesuffix("]"))
    kind = kind if is_typeddict(kind) else None
    known += getattr(kind, "__annotations__", ())
    unknown = [] if collects and kind is None else [one for one in named if one not in known]
    if unknown:
        todo = did_you_mean(unknown[0], known, ELSEWHERE.get(unknown[0], ""))
        options = (
            f"its options are {', '.join(known)}" if known else "it takes values, and no options by name"
        )
        raise ArgumentError.at(f"{name}() has no option {unknown[0]!r}", todo=todo or options)
    try:
        return Call(function, signature.bind(*arguments, **named), name, kind)
    except TypeError as error:
        shown = [str(one).partition(":")[0].partition("=")[0] for one in signature.parameters.values()]
        raise ArgumentError.at(
            f"{name}() was called with arguments that it does not take: {error}",
            todo=f"call {name}({', '.join(shown[behind:])})",
        ) from None


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


def whole_number(value: Any, name: str, least: int = 0, most: int = 2**62) -> int:
    """Return a number of `least` to `most`, whichever type of whole numbers it has; else raise `UsageError`.

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


def check_seed(seed: Any) -> None:
    """Refuse a seed that is no whole number, at once.

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
