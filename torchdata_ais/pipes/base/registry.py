"""Functional names of stages."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from torchdata_ais._util.arguments import did_you_mean
from torchdata_ais.errors import UsageError
from torchdata_ais.functional import STAGES
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe

P = TypeVar("P", bound=type)


def stage(name: str) -> Callable[[P], P]:
    """Register a class under a functional name.

    ``pipe.name(...)`` makes it with `pipe` as its source.
    Reloading a module replaces our own class. A name that another package took first stays with it: a warning
    says so, the constructor stays usable, and a chain that reaches a stage of ours through the foreign one is
    refused.
    """

    def register(cls: P) -> P:
        cls.functional_name = name  # type: ignore[attr-defined]
        owner = _owner(name)
        if owner is not None and owner.__module__.partition(".")[0] != cls.__module__.partition(".")[0]:
            warnings.warn(
                f"the functional name {name!r} belongs to {owner.__module__}.{owner.__qualname__}; "
                f"use the constructor {cls.__name__}(pipe, ...) instead",
                stacklevel=2,
            )
            return cls
        IterDataPipe.functions[name] = StageFactory(cls, name)
        return cls

    return register


_ELSEWHERE = {
    "repeat": "repeated", "cycle": "repeated", "take": "slice_samples", "limit": "slice_samples",
    "slice": "slice_samples", "head": "slice_samples", "islice": "slice_samples", "map_samples": "map_sample",
    "apply": "map_sample", "mix": "mix_random", "unbatch_samples": "unbatched", "print": "info",
    "shuffle_samples": "shuffled", "group": "group_samples", "webdataset": "group_samples",
}  # fmt: skip
"""What stages are called in other libraries -> here."""

_NO_STAGE = dict.fromkeys(
    ("to", "cuda", "device", "pin_memory"), "ais_loader(pipe, device='cuda') brings batches to the GPU"
) | {"normalize": "Normalize is for tensors: ais_loader(pipe, normalize=Normalize())"}
"""What is no stage here -> what to write instead."""


class NoStageError(AttributeError):
    """A pipe has no such stage or attribute. `hasattr` never makes its text."""

    def __str__(self) -> str:
        kind, name = self.args
        hint = f"Did you mean {_ELSEWHERE[name]}?" if name in _ELSEWHERE else _NO_STAGE.get(name, "")
        return f"{kind!r} object has no attribute or stage {name!r}. " + (
            hint or did_you_mean(name, IterDataPipe.functions) or "dir(pipe) has the names of all stages"
        )


class StageFactory:
    """Makes a stage after a pipe: ``pipe.name(...)``.

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

    def __call__(self, source: object, /, *arguments: object, **named: object) -> Any:
        """Return the stage after `source`."""
        return self.args[0](source, *arguments, **named)


def _owner(name: str) -> type | None:
    function: object = IterDataPipe.functions.get(name)
    if function is None:
        return None
    arguments = getattr(function, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], type) else type(function)


def name_of(pipe: IterDataPipe[object]) -> str:
    """Return the functional name of a stage of any package, else its class's."""
    kind = type(pipe)
    if isinstance(pipe, Stage):
        return pipe.functional_name or kind.__name__
    own = kind.__module__.startswith(("torch.", "torchdata."))
    functions: dict[str, Any] = IterDataPipe.functions
    chained = (
        name for name, function in functions.items() if own and getattr(function, "args", (None,))[0] is kind
    )
    return next(chained, kind.__name__.removesuffix("IterDataPipe"))


def refuse_foreign(source: IterDataPipe[object]) -> None:
    """Raise `UsageError` if another package's stage took a name of ours."""
    if isinstance(source, Stage):
        return
    for name in STAGES:
        owner = _owner(name)
        if type(source) is owner:
            raise UsageError.at(
                f".{name}() made a {owner.__module__}.{owner.__qualname__}, not the stage of this package",
                todo="use the constructors of torchdata_ais, or import torchdata_ais before that package",
            )
