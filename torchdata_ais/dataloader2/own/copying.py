"""Copies of pipes, by pickle; by dill where pickle cannot and dill is there."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.stage.sending import dill_if_installed, explained


class _Pickled(NamedTuple):
    data: bytes
    by_dill: bool


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
        return _dumped(self._pipe)

    def __setstate__(self, state: _Pickled) -> None:
        self._pipe = _loaded(state)


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
    return _loaded(_dumped(item))


def _dumped(item: Any) -> _Pickled:
    dill = dill_if_installed()
    if dill is None:
        with explained():
            return _Pickled(pickle.dumps(item), False)
    try:
        return _Pickled(pickle.dumps(item), False)
    except Exception:  # noqa: BLE001 - whatever pickle meets, dill may know what to do
        with explained():
            return _Pickled(dill.dumps(item), True)


def _loaded(pickled: _Pickled) -> Any:
    loads = dill_if_installed().loads if pickled.by_dill else pickle.loads
    return loads(pickled.data)
