"""The ground all stages stand on: their base class, and how they get their functional names."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from torchdata_ais.arguments import checked, did_you_mean
from torchdata_ais.errors import UsageError
from torchdata_ais.stage.below_plan import refusal
from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.datapipes import Filter, IterableWrapper, IterDataPipe, Mapper, ShardingFilter
from torchdata_ais.stage.meter import measured
from torchdata_ais.stage.origin import note_place, trimmed
from torchdata_ais.stage.pickled import MARK, unmarked
from torchdata_ais.stage.sending import check_sendable
from torchdata_ais.stage.stats import StageStats

if TYPE_CHECKING:
    from torchdata_ais.stage.methods import Methods
else:
    Methods = IterDataPipe

__all__ = [
    "IterDataPipe",
    "Pipe",
    "ShardingFilter",
    "as_pipe",
    "at_work",
    "below_plan",
    "check_below_plan",
    "check_source",
    "is_sharding",
    "name_of",
    "parents",
    "stage",
    "upstream",
]

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound=type)

_FOREIGN: dict[str, type] = {}
"""Functional names of ours that another package registered first -> its class."""


_STAYS = ("_live", "_busy", "_left", "stats")
"""What belongs to one process: a copy of a stage runs nothing, and has counted nothing."""


class Pipe(Methods[T_co], Stage):
    """Base of every stage: an `IterDataPipe` that says what it is (`Stage`), and whose running state never travels.

    Subclasses keep constructor arguments in private attributes (torch prints public ones in error messages), put
    what a running iterator needs under ``self._live`` and the item at work under ``self._busy``, and write ``_items``
    as a generator, so that nothing happens before the first item is asked for.

    Args:
        source: What the stage reads: a pipe, or anything that `as_pipe` takes. None for a stage that has several
            sources, or none.
    """

    _is_child_datapipe = False
    # torch's iterator hook asks hasattr() for it at every item; a miss costs 1 us in torch's __getattr__.

    _live: Any = None
    _busy: Any = None
    _left: dict[str, Any] | None = None
    _source: IterDataPipe[Any]

    def __init__(self, source: Any = None) -> None:
        super().__init__()
        self.stats = StageStats()
        if source is not None:
            self._source = as_pipe(source)
            check_source(self._source)
            if (error := _refused(self._source, type(self).functional_name)) is not None:
                raise error

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "__init__" in vars(cls):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    picture: ClassVar[Callable[[Any], str]] = repr
    """What notebooks show; `torchdata_ais.observe.draw` gives a table here."""

    def _repr_html_(self) -> str:
        return type(self).picture(self)

    def _items(self) -> Iterator[T_co]:
        """Yield the items of an iteration."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        try:
            yield from self._items()
        except Exception as error:  # noqa: BLE001 - raised again
            note_place(error, None, None, at_work(self))
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has
        finally:
            if self._busy is not None:
                self._left = self.busy_with()
                self._busy = None  # who has ended holds no item

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

    text: ClassVar[Callable[[Any], str]] = repr
    """What `print` shows; `torchdata_ais.observe.draw` gives the whole chain here."""

    def __str__(self) -> str:
        return type(self).text(self)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """How many items come, where that is known before: below ``.read_samples()``."""
        source = vars(self).get("_source")
        length = self.effect().length(len(source)) if source is not None and below_plan(source) else None
        if length is not None:
            return length
        raise TypeError(
            f"{type(self).__name__} instance doesn't have valid length: how many items come is known when they have "
            "come. .with_length(n) declares it; ais_loader(pipe, epoch_steps=n) has one. To split data, give each "
            'part its own shards, "train-{000..089}.tar" and "train-{090..099}.tar", or split an index of them'
        )

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is a stream: it has no item {index!r}. next(iter(pipe)) gives the first, "
            ".slice_samples(n) the first n; to reach samples by number, make a SampleIndex of the shards"
        )

    if not TYPE_CHECKING:  # checkers know the stages by `Methods`, and see a wrong name themselves

        def __getattr__(self, name: str) -> Any:
            maker = IterDataPipe.functions.get(name)
            if maker is not None and (error := _refused(self, name)) is not None:
                return functools.partial(_refuse, error)  # what cannot stand below a plan is not even made
            if isinstance(maker, _Maker):
                return functools.update_wrapper(lambda *given, **named: maker(self, *given, **named), maker)
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise NoStageError(type(self).__name__, name) from None

        def shuffle(self, *arguments: Any, **named: Any) -> IterDataPipe[Any]:
            """Mix shards, by torch's stage of that name. Samples are mixed by ``.shuffled(n)``."""
            if (error := _refused(self, "shuffle")) is not None:
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


def as_pipe(source: Any) -> IterDataPipe[Any]:
    """Return `source` if it is a pipe, else a pipe over it: one string, or any iterable of items."""
    if isinstance(source, IterDataPipe):
        return source
    return IterableWrapper([source] if isinstance(source, (str, dict)) else source, deepcopy=False)


def stage(name: str) -> Callable[[P], P]:
    """Register a class under a functional name: ``pipe.name(...)`` makes it with `pipe` as its source.

    Reloading a module replaces our own class. A name that another package took first stays with it: a warning
    says so, the constructor stays usable, and a chain that reaches a stage of ours through the foreign one is
    refused.
    """

    def register(cls: P) -> P:
        cls.functional_name = name  # type: ignore[attr-defined]
        owner = _owner(name)
        if owner is not None and owner.__module__.partition(".")[0] != cls.__module__.partition(".")[0]:
            _FOREIGN[name] = owner
            warnings.warn(
                f"the functional name {name!r} belongs to {owner.__module__}.{owner.__qualname__}; "
                f"use the constructor {cls.__name__}(pipe, ...) instead",
                stacklevel=2,
            )
            return cls
        IterDataPipe.functions[name] = _Maker(cls, name)
        return cls

    return register


_ELSEWHERE = {
    "repeat": "repeated", "cycle": "repeated", "take": "slice_samples", "limit": "slice_samples",
    "slice": "slice_samples", "head": "slice_samples", "islice": "slice_samples", "map_samples": "map_sample",
    "apply": "map_sample", "mix": "mix_random", "unbatch_samples": "unbatched", "print": "info",
    "shuffle_samples": "shuffled", "group": "group_samples", "webdataset": "group_samples",
}  # fmt: skip
"""What stages are called in other libraries -> here."""


class NoStageError(AttributeError):
    """A pipe has no such stage or attribute. Asked for by `hasattr`, it never makes its text."""

    def __str__(self) -> str:
        kind, name = self.args
        hint = f"Did you mean {_ELSEWHERE[name]}?" if name in _ELSEWHERE else ""
        return f"{kind!r} object has no attribute or stage {name!r}. " + (
            hint or did_you_mean(name, IterDataPipe.functions) or "dir(pipe) has the names of all stages"
        )


class _Maker:
    """Makes a stage behind a pipe: ``pipe.name(...)``.

    torch's own function for that has parameters called ``cls`` and ``source_dp``; ours may be keywords of the stage,
    as in ``.map_dict(cls=int)``.
    """

    def __init__(self, kind: type, name: str) -> None:
        self.args = (kind,)
        self.__name__ = self.__qualname__ = name
        self.__module__ = kind.__module__
        self.__doc__ = kind.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        _, *behind_source = inspect.signature(self.args[0]).parameters.values()
        return inspect.Signature(behind_source, return_annotation=self.args[0].__name__)

    def __call__(self, source: Any, /, *arguments: Any, **named: Any) -> Any:
        return self.args[0](source, *arguments, **named)


def _owner(name: str) -> type | None:
    function: Any = IterDataPipe.functions.get(name)
    if function is None:
        return None
    arguments = getattr(function, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], type) else type(function)


def check_source(source: IterDataPipe[Any]) -> None:
    """Raise `UsageError` if a stage of ours cannot stand behind `source`."""
    _refuse_foreign(source)
    check_below_plan(source)
    _refuse_second_filter(source)


def below_plan(pipe: IterDataPipe[Any]) -> bool:
    """Return whether `pipe` is, or reads from, a stage that reads by a plan."""
    return any(isinstance(above, Stage) and above.planned for above in upstream(pipe))


def check_below_plan(tail: IterDataPipe[Any]) -> None:
    """Raise `UsageError` if a stage of `tail` cannot stand where it does, below a stage that reads by a plan."""
    for pipe in upstream(tail):
        for source in parents(pipe):
            if (error := _refused(source, name_of(pipe))) is not None:
                raise error
        if len(parents(pipe)) > 1 and below_plan(pipe):
            raise UsageError.at(
                f"{name_of(pipe)} joins several pipes below .read_samples(): the plan of one does not hold for several",
                todo="mix indexes: .read_samples() of a Mixture({index: weight, ...})",
            )


def _refuse(error: UsageError, *_: Any, **__: Any) -> NoReturn:
    raise error


def _refused(source: IterDataPipe[Any], name: str) -> UsageError | None:
    """Return why a stage cannot stand behind `source`, if that reads by a plan and it cannot."""
    if refusal(name) is None or not below_plan(source):
        return None
    batched = any(
        isinstance(above, Stage) and above.effect().gives == "batches" for above in upstream(source)
    )
    return refusal(name, batched=batched)


def name_of(pipe: IterDataPipe[Any]) -> str:
    """Return what a stage is chained by, of torch's and of torchdata's own, too; or its class's name."""
    kind = type(pipe)
    if isinstance(pipe, Stage):
        return pipe.functional_name or kind.__name__
    own = kind.__module__.startswith(("torch.", "torchdata."))
    functions: dict[str, Any] = IterDataPipe.functions
    chained = (
        name for name, function in functions.items() if own and getattr(function, "args", (None,))[0] is kind
    )
    return next(chained, kind.__name__.removesuffix("IterDataPipe"))


def _refuse_foreign(source: IterDataPipe[Any]) -> None:
    for name, owner in _FOREIGN.items():
        if type(source) is owner:
            raise UsageError.at(
                f".{name}() made a {owner.__module__}.{owner.__qualname__}, not the stage of this package",
                todo="use the constructors of torchdata_ais, or import torchdata_ais before that package",
            )


def parents(pipe: Any) -> list[IterDataPipe[Any]]:
    """Return the pipes that `pipe` reads from: its attributes that are pipes, or collections of pipes."""
    found: list[IterDataPipe[Any]] = []
    for value in vars(pipe).values():
        items = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, (list, tuple, set))
            else [value]
        )
        found.extend(item for item in items if isinstance(item, IterDataPipe))
    return found


def at_work(source: IterDataPipe[Any]) -> dict[str, Any]:
    """Return ``url`` and ``key`` of the sample that is at work in `source` or above it.

    ``{}`` where that is not known, or where a stage on the way holds others, too.
    """
    while True:
        if isinstance(source, Pipe):
            place = source.busy_with() or source._left or {}
            if place.get("key") is not None:
                return place
            effect = source.effect()
            if not source.hidden and (effect.holds or effect.gives not in ("each", "fewer", "batches")):
                return {}
        elif not isinstance(source, (Mapper, Filter)):
            return {}
        above = parents(source)
        if len(above) != 1:
            return {}
        source = above[0]


def upstream(pipe: IterDataPipe[Any]) -> Iterator[IterDataPipe[Any]]:
    """Yield `pipe` and every pipe it depends on, nearest first, each once."""
    seen: set[int] = set()
    queue = [pipe]
    while queue:
        current = queue.pop(0)
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            queue.extend(parents(current))


def is_sharding(pipe: IterDataPipe[Any]) -> bool:
    """Return whether `pipe` splits its items over ranks and workers."""
    return (
        hasattr(pipe, "apply_sharding")
        or type(pipe).__name__.startswith("_DummySharding")
        or ("ShardingRoundRobinDispatcher" in type(pipe).__name__)
    )


def _refuse_second_filter(source: IterDataPipe[Any]) -> None:
    if _filters_on_a_path(source) > 1:
        raise UsageError.at(
            "two stages on one path split items over ranks and workers: each would keep only a part of a part",
            todo="remove the .sharding_filter() below .load_tar(); it stands in front of load_tar by itself",
        )


def _filters_on_a_path(pipe: IterDataPipe[Any]) -> int:
    above = max((_filters_on_a_path(parent) for parent in parents(pipe)), default=0)
    return above + is_sharding(pipe)
