"""The base class of pipes: chained by functional names, one iterator at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torchdata_ais.errors import LoaderError
from torchdata_ais.stage.own.graph import AnyPipe, share_out

T_co = TypeVar("T_co", covariant=True)


class IterDataPipe(IterableDataset[T_co], AnyPipe):
    """A pipe: an iterable, begun anew by each `iter`.

    Subclasses have ``__iter__``, which is run when the first item is asked for, after `reset`. A new iterator ends
    the one before.

    Attributes:
        functions: Functional name -> what makes a stage behind a pipe.
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    # torch's, for its way to look through a graph:
    getstate_hook: ClassVar[Callable[[Any], Any] | None] = None

    _runs = 0
    _number_of_samples_yielded = 0

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "__iter__" in cls.__dict__:
            cls.__iter__ = _one_at_a_time(cls.__iter__)  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        function = IterDataPipe.functions.get(name)
        if function is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return functools.partial(function, self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __repr__(self) -> str:
        return type(self).__name__

    def reset(self) -> None:
        """Make ready for a new iteration."""


class MapDataPipe(Dataset[T_co], AnyPipe):
    """A pipe whose items are asked for by their index."""


def _one_at_a_time(method: Callable[[Any], Iterator[T_co]]) -> Callable[[Any], Iterator[T_co]]:
    @functools.wraps(method)
    def iterate(self: Any) -> Iterator[T_co]:
        self._runs = run = self._runs + 1
        self._number_of_samples_yielded = 0
        info = get_worker_info()
        if info is not None and info.dataset is self:
            share_out(self, info, run)
        self.reset()
        for item in method(self):
            self._number_of_samples_yielded += 1
            yield item
            if self._runs != run:
                raise LoaderError.at(
                    f"This iterator of {type(self).__name__} has been invalidated: another one was begun since",
                    todo="use one iterator of a pipe at a time; `list(pipe)` or a second pipe gives two",
                )

    return iterate
