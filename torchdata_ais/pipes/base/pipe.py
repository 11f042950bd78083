"""Base class of all stages.

A pickle holds the attributes of a stage. Another version would read them as its attributes, so each stage
pickles a mark.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.functional import LateStage
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.meter import StageStats, measured
from torchdata_ais.pipes.base.pickle_check import check_sendable
from torchdata_ais.pipes.base.policy import ErrorPolicy, note_place, place_in, trimmed
from torchdata_ais.pipes.base.registry import NoStageError, StageFactory, refuse_foreign
from torchdata_ais.pipes.base.torch_pipes import IterableWrapper, IterDataPipe, ShardingFilter
from torchdata_ais.pipes.base.upstream import (
    at_work,
    below_plan,
    check_below_plan,
    is_sharding,
    parents,
    refused_behind,
    upstream,
)

__all__ = ["IterDataPipe", "Pipe", "ShardingFilter", "as_pipe", "check_source"]


MARK = ("pickled by torchdata_ais", 1)
"""The number changes when attributes of stages change so that an older pickle does not fit."""


def unmarked(state: dict[str, Any]) -> dict[str, Any]:
    """Return the pickled attributes of a stage without the mark."""
    name, number = MARK
    if state.get(name) != number:
        raise StateError.at(
            "this pipe was pickled by another version of torchdata_ais",
            todo="create it again with the code that created it; "
            "a pickle of a pipe is for other processes of the same program",
        )
    return {attribute: value for attribute, value in state.items() if attribute != name}


if TYPE_CHECKING:
    from torchdata_ais.pipes.base.methods import Methods
else:
    Methods = IterDataPipe


T_co = TypeVar("T_co", covariant=True)

_DRAWN_BY = "torchdata_ais.observe.draw"
"""Module that draws chains, in text and in notebooks. It imports this package, so it is imported on first use."""

_SECOND_ITERATOR = "another iterator has been created from the same IterDataPipe"
"""In torch's error for two iterators of one pipe."""

_STAYS = ("_live", "_busy", "left_at", "stats", "under_way", "rows", "memory", "begun_by")
"""What belongs to one process: a copy of a stage runs nothing, and has counted nothing."""


class Pipe(Methods[T_co], Stage):
    """Base of every stage: an `IterDataPipe` that implements `Stage`.

    Its running state is never pickled.
    Subclasses keep constructor arguments in private attributes (torch prints public ones in error messages), put
    what a running iterator needs under ``self._live`` and the item at work under ``self._busy``, and write ``_items``
    as a generator, so that nothing happens before the first item is asked for.
    """

    _is_child_datapipe = False
    # torch's iterator hook asks hasattr() for it at every item; a miss costs 1 us in torch's __getattr__.

    _live: Any = None
    _busy: object = None
    _source: IterDataPipe[Any]

    def __init__(self, source: object = None) -> None:
        super().__init__()
        self.stats = StageStats()
        if source is not None:
            self._source = as_pipe(source)
            check_source(self._source)
            if (error := refused_behind(self._source, type(self).functional_name)) is not None:
                raise error

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        if "__init__" in vars(cls):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        return str(resolve_name(f"{_DRAWN_BY}:html")(self))

    def _items(self) -> Iterator[T_co]:
        """Yield the items of an iteration."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        try:
            yield from self._items()
        except Exception as error:  # noqa: BLE001 - raised again
            if isinstance(error, RuntimeError) and _SECOND_ITERATOR in str(error):
                raise _shared_source(self) from None
            note_place(error, None, None, at_work(self))
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has
        finally:
            if self._busy is not None:
                self.left_at = self.busy_with()
                self._busy = None  # who has ended holds no item

    def busy_with(self) -> dict[str, Any]:
        """Return the place (``url``, ``key``) of the sample at work, if it is one."""
        return place_in(self._busy)

    def error_policy(self) -> ErrorPolicy | None:
        """Return the error policy, if the stage can do anything but raise."""
        return vars(self).get("_policy")

    def __getstate__(self) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name not in _STAYS}
        state.update([MARK])
        hook = IterDataPipe.getstate_hook
        if hook is None:
            check_sendable(self.describe(), state.values())
        return hook(state) if hook is not None else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unmarked(state))
        self.stats = StageStats()

    def __repr__(self) -> str:
        return self.describe()

    def __str__(self) -> str:
        return str(resolve_name(f"{_DRAWN_BY}:draw")(self))

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """Number of items, if known before: downstream of ``.read_samples()``."""
        source = vars(self).get("_source")
        length = self.effect().length(len(source)) if source is not None and below_plan(source) else None
        if length is not None:
            return length
        raise TypeError(
            f"{type(self).__name__} instance doesn't have valid length: how many items come is known when they have "
            "come. .with_length(n) declares it; ais_loader(pipe, epoch_steps=n) has one. To split data, give each "
            'part its own shards, "train-{000..089}.tar" and "train-{090..099}.tar", or split an index of them'
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is a stream: it has no item {index!r}. next(iter(pipe)) gives the first, "
            ".slice_samples(n) the first n; to reach samples by number, make a SampleIndex of the shards"
        )

    if not TYPE_CHECKING:  # checkers know the stages by `Methods`, and see a wrong name themselves

        def __getattr__(self, name: str) -> Any:
            maker = IterDataPipe.functions.get(name)
            if maker is not None and (error := refused_behind(self, name)) is not None:
                return functools.partial(_refuse, error)  # what cannot stand below a plan is not even made
            if isinstance(maker, LateStage):
                # torch gets every attribute of a pipe that raised: a failing import must not hide that error.
                try:
                    maker = maker.maker()
                except OSError as error:
                    raise AttributeError(f".{name}() cannot be imported ({error})") from error
            if isinstance(maker, StageFactory):
                made = functools.update_wrapper(lambda *given, **named: maker(self, *given, **named), maker)
                vars(made).update(dict.fromkeys(IterDataPipe.functions, functools.partial(_not_called, name)))
                return made
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise NoStageError(type(self).__name__, name) from None

        def shuffle(self, *arguments: object, **named: object) -> IterDataPipe[Any]:
            """Mix shards, by torch's stage of that name.

            Samples are mixed by ``.shuffled(n)``.
            """
            if (error := refused_behind(self, "shuffle")) is not None:
                raise error
            reads = any(isinstance(stage, Pipe) and stage.reads for stage in upstream(self))
            todo = "mix samples with .shuffled(1000), behind .group_samples() and before .decode()"
            if arguments:
                count = ", ".join(map(repr, arguments))
                what = f".shuffle({count}): torch's .shuffle() mixes shards, before .load_tar(), and takes no number"
                raise UsageError.at(what, todo=todo if reads else f"write .shuffle(), and {todo}")
            if reads:
                warnings.warn(
                    "torch's .shuffle() behind .load_tar() holds up to 10,000 items in memory, and no checkpoint "
                    f"can save them: {todo}",
                    stacklevel=2,
                )
            return IterDataPipe.functions["shuffle"](self, **named)


# torch has made its own of the generator above: it counts items, and sees to one iterator at a time. What is
# measured is that, so it is wrapped here, once for all stages.
Pipe.__iter__ = measured(Pipe.__iter__)  # type: ignore[method-assign]


def as_pipe(source: Any) -> IterDataPipe[object]:
    """Return `source` if it is a pipe, else a pipe over a string or iterable."""
    if isinstance(source, IterDataPipe):
        return source
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise UsageError.at(
            f"a {type(source).__name__} is no source: {source!r:.60}",
            todo="pass a pipe, or a list of what it shall give",
        )
    return IterableWrapper([source] if isinstance(source, (str, dict)) else source, deepcopy=False)


def check_source(source: IterDataPipe[object]) -> None:
    """Raise `UsageError` if a stage of ours cannot follow `source`."""
    refuse_foreign(source)
    check_below_plan(source)
    if _filters_on_a_path(source) > 1:
        raise UsageError.at(
            "two stages on one path split items over ranks and workers: each would keep only a part of a part",
            todo="remove the .sharding_filter() below .load_tar(); it stands in front of load_tar by itself",
        )


def _shared_source(stage: Pipe[Any]) -> UsageError:
    return UsageError.at(
        f"another chain has begun to read the pipe that .{stage.functional_name}() reads: a pipe has one iterator at "
        "a time",
        todo="write a function that returns the chain, and call it for each; or give several fields of a sample by "
        'one .to_tuple("jpg", "cls")',
    )


def _not_called(name: str, *_: object, **__: object) -> NoReturn:
    raise UsageError.at(f"the stage {name} was named, and not called", todo=f"write .{name}()")


def _refuse(error: UsageError, *_: object, **__: object) -> NoReturn:
    raise error


def _filters_on_a_path(pipe: IterDataPipe[object]) -> int:
    above = max((_filters_on_a_path(parent) for parent in parents(pipe)), default=0)
    return above + is_sharding(pipe)
