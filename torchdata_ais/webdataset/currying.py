"""Filters: functions from an iterator to an iterator, called in two steps.

``shuffle(1000)`` is a stage; ``shuffle(1000)(samples)`` iterates. ``shuffle.f(samples, 1000)`` does both at once.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata_ais._util.arguments import check_call
from torchdata_ais.pipes.base.pickle_check import check_sendable
from torchdata_ais.pipes.base.pipe import as_pipe
from torchdata_ais.webdataset.utils import run_seed


class Stage:
    """A filter with all its arguments but the source; picklable if they are."""

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        check_sendable(str(getattr(self.f, "__name__", self.f)), state.values())
        return state

    def __init__(self, f: Callable[..., Any], args: tuple[object, ...], named: dict[str, Any]) -> None:
        self.f = f
        self.args = args
        self.kw = named

    def __call__(self, source: Iterable[object]) -> Iterator[Any]:
        """Iterate over what the filter makes of `source`."""
        return iter(self.f(source, *self.args, **self.kw))

    def __repr__(self) -> str:
        shown = [*map(_shown, self.args), *(f"{name}={_shown(value)}" for name, value in self.kw.items())]
        return f"{getattr(self.f, '__name__', 'filter').lstrip('_')}({', '.join(shown)})"


class FilterFunction(Stage):
    """A stage of any function of an iterator, with further arguments.

    Example:
        >>> list(FilterFunction(lambda items, n: (item * n for item in items), n=3)([1, 2]))
        [3, 6]
    """

    def __init__(self, f: Callable[..., object], *args: object, **named: object) -> None:
        super().__init__(f, args, named)


class RandomStage(Stage):
    """A stage that draws: each run has a seed that follows from ``seed=``.

    Attributes:
        epoch: Number of the last run in this process, from 0; -1 before the first.
    """

    draws_per_worker = True
    """Whether each worker draws differently."""

    epoch = -1

    def __call__(self, source: Iterable[object]) -> Iterator[Any]:
        """Iterate over the filter's output for `source`, with the next run's seed."""
        self.epoch += 1
        seed = run_seed(self.kw.get("seed"), self.epoch, own=self.draws_per_worker)
        return iter(self.f(source, *self.args, **{**self.kw, "seed": seed}))


class AlikeRandomStage(RandomStage):
    """One that draws the same in every rank and worker."""

    draws_per_worker = False


class Filter:
    """Makes stages of a function ``f(source, ...)``; see `pipelinefilter`.

    One with ``seed=`` is for a `RandomStage`, which gives each run another.
    """

    def __init__(self, f: Callable[..., object], stage: type[Stage] = Stage) -> None:
        functools.update_wrapper(self, f)
        self.f = f
        self.stage = stage
        of = inspect.signature(f)
        self.__signature__ = of.replace(parameters=list(of.parameters.values())[1:])  # for help()

    # Whatever the function takes: it is checked by the function's signature.
    def __call__(self, *args: object, **named: object) -> Stage:
        """Return the stage: `f` with all its arguments but the source."""
        if isinstance(self.f, Through):
            self.f.check(*args, **named)
        else:
            check_call(self.f, (None, *args), named)
        return self.stage(self.f, args, named)


def pipelinefilter(f: Callable[..., object]) -> Filter:
    """Make a curried filter of a function that takes an iterator first.

    Example:
        >>> @pipelinefilter
        ... def add(source, number):
        ...     return (item + number for item in source)
        >>> list(add(3)([1, 2]))
        [4, 5]
    """
    return Filter(f)


Prepare = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]
"""Changes the arguments of a stage, as a function of (positional, named); returns the positional ones."""


class Through:
    """A stage of `torchdata_ais.pipes` as a function of an iterator.

    ``handler=`` is its ``on_error=``. `prepare` changes the arguments before the pipe gets them.
    """

    def __init__(self, kind: Callable[..., object], name: str, prepare: Prepare | None = None) -> None:
        self.kind = kind
        self.__name__ = name
        self.__doc__ = without_example(kind)
        self.__signature__ = inspect.signature(kind)
        self.prepare = prepare

    def __call__(self, data: Iterable[object], *args: object, **named: object) -> Iterator[Any]:
        """Iterate over what the pipe makes of `data`."""
        return iter(self._made(data, args, named))

    def check(self, *args: object, **named: object) -> None:
        """Raise what is wrong with the arguments, before there are any data."""
        self._made((), args, named)

    def _made(self, data: Iterable[object], args: tuple[object, ...], named: dict[str, Any]) -> Any:
        handler = named.pop("handler", None)
        if self.prepare is not None:
            args = self.prepare(args, named)
        if handler is not None and "on_error" in inspect.signature(self.kind).parameters:
            named["on_error"] = handler
        return self.kind(as_pipe(data), *args, **named)


def through(
    kind: Callable[..., Any],
    name: str,
    prepare: Prepare | None = None,
    stage: type[Stage] = Stage,
) -> tuple[Through, Filter]:
    """Return a stage of `torchdata_ais.pipes` as a function and as a filter."""
    function = Through(kind, name, prepare)
    return function, Filter(function, stage)


def without_example(made: object) -> str:
    """Return a documentation up to its example, which is of another call."""
    text = (inspect.getdoc(made) or "").partition("\nExample:")[0]
    return re.sub(r"\n *>>> (.+\n?)+", "", text)


def _shown(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)))
