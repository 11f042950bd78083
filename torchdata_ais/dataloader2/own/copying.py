"""Copies of pipes, by pickle; by dill where pickle cannot and dill is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.stage.sending import Pickled, dumped, loaded


class _Carrier(IterDataPipe[Any]):
    """Carries a pipe to another process, or into a state; iterated, it gives the pipe's items."""

    def __init__(self, pipe: Any) -> None:
        super().__init__()
        self._pipe = pipe

    def __iter__(self) -> Iterator[Any]:
        yield from self._pipe

    def __len__(self) -> int:
        return len(self._pipe)

    def __getstate__(self) -> Any:
        return dumped(self._pipe)

    def __setstate__(self, state: Pickled) -> None:
        self._pipe = loaded(state)


def attach_wrapper(pipe: Any) -> Any:
    """Return `pipe` in a carrier, which pickles if it can be done at all."""
    return pipe if isinstance(pipe, _Carrier) else _Carrier(pipe)


def extract_wrapper(pipe: Any) -> Any:
    """Return the pipe out of its carrier."""
    return pipe._pipe if isinstance(pipe, _Carrier) else pipe


def clone(item: Any) -> Any:
    """Return a copy of a pipe or a service.

    Raises:
        UsageError: It holds what cannot be pickled, such as a lambda where dill is not installed.
    """
    return loaded(dumped(item))
