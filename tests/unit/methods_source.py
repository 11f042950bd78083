"""Writes the text of ``methods.pyi``: the stages as methods, for type checkers and editors.

torch finds functional names at run time, through ``__getattr__``; checkers see nothing of it. So the signatures
are written out as methods of a class that stands in for torch's base under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torchdata_ais import pipes

__all__ = ["render", "stages"]

_HEAD = '''"""The stages as methods, for type checkers and editors: generated, see ``tests/unit/methods_source.py``.

`Methods` stands in for torch's `IterDataPipe` under ``TYPE_CHECKING``; nothing imports this module at run time.
"""
# ruff: noqa: E501, D102 - one line a method; the classes carry the documentation

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy.typing as npt
from torch.utils.data.datapipes.datapipe import IterDataPipe
from typing_extensions import Unpack

from torchdata_ais import pipes
from torchdata_ais.codecs import DecoderNames
from torchdata_ais.index import ShardsFrom
from torchdata_ais.plan import Shuffle, Tail
from torchdata_ais.reading.open_shard import Safety
from torchdata_ais.pipes.base.collate import Ragged
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import OnError
from torchdata_ais.store import Cluster, ObjectCache, Retry

T_co = TypeVar("T_co", covariant=True)


class Methods(IterDataPipe[T_co]):
    """`IterDataPipe` with the functional names of this package; torch's own keep a typed chain typed."""

    def __iter__(self) -> Iterator[T_co]: ...

    def shuffle(self, buffer_size: int = 10000) -> Pipe[T_co]: ...  # type: ignore[override]
    def sharding_filter(self, sharding_group_filter: Any = None) -> Pipe[T_co]: ...
    def map(self, fn: Callable[..., Any], input_col: Any = None, output_col: Any = None) -> Pipe[Any]: ...
    def filter(self, filter_fn: Callable[..., bool], input_col: Any = None) -> Pipe[T_co]: ...
    def batch(self, batch_size: int, drop_last: bool = False, wrapper_class: Any = None) -> Pipe[list[T_co]]: ...
    def collate(self, conversion: Any = None, collate_fn: Any = None) -> Pipe[Any]: ...
    def concat(self, *datapipes: IterDataPipe[Any]) -> Pipe[Any]: ...
'''


def stages() -> Iterator[tuple[str, type]]:
    """Yield ``(functional name, class)`` of every public stage, by name."""
    classes = [getattr(pipes, name) for name in pipes.__all__]
    named = [(cls.functional_name, cls) for cls in classes if getattr(cls, "functional_name", "")]
    yield from sorted(named, key=lambda pair: pair[0])


def render() -> str:
    """Return the text of ``methods.pyi``."""
    return _HEAD + "".join(_method(name, cls) for name, cls in stages())


def _method(name: str, cls: type) -> str:
    # A class without own constructor arguments has only its source.
    signature = inspect.signature(cls)
    shown = ["self"]
    keyword_only = False
    for parameter in list(signature.parameters.values())[1:]:
        text = parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            text, keyword_only = "*" + text, True
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            text = "**" + text
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
            keyword_only = True
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            plain = isinstance(default, (int, float, str, bool, type(None), tuple))
            text += f" = {default!r}" if plain else " = ..."
        shown.append(text)
    return f"    def {name}({', '.join(shown)}) -> pipes.{cls.__name__}: ...\n"
