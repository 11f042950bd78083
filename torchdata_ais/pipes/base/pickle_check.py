"""Check that a pipe can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.pipes.base.torch_pipes import graph_lock
from torchdata_ais.pipes.base.upstream import members

_TODO = (
    "use functions defined at the top level of a module, functools.partial, or pip install dill for lambdas"
)


class Pickled(NamedTuple):
    """Result of `dumped`."""

    data: bytes
    by_dill: bool


def dumped(item: object) -> Pickled:
    """Return `item` pickled: by dill where pickle cannot and dill is there."""
    with explained():
        try:
            with graph_lock:
                return Pickled(pickle.dumps(item), by_dill=False)
        except Exception:
            dill = dill_if_installed()
            if dill is None:
                raise
            with graph_lock:  # whatever pickle met, dill may know what to do
                return Pickled(dill.dumps(item), by_dill=True)


def loaded(pickled: Pickled) -> Any:
    """Return a copy of what `dumped` was given."""
    loads = dill_if_installed().loads if pickled.by_dill else pickle.loads
    return loads(pickled.data)


def sendable(state: object) -> Any:
    """Return `state` as sent to a starting process: pickled if only dill can.

    For ``__getstate__`` of what torch's DataLoader is given; `received` in ``__setstate__`` undoes it.
    """
    if get_spawning_popen() is None or dill_if_installed() is None:
        return state
    pickled = dumped(state)
    return pickled if pickled.by_dill else state


def received(state: object) -> Any:
    """Return what `sendable` was given."""
    return loaded(state) if isinstance(state, Pickled) else state


def dill_if_installed() -> Any:
    """Return dill, or None."""
    try:
        import dill
    except ImportError:
        return None
    dill.extend(use_dill=False)  # or it would take over the pickle module for the whole program
    return dill


@contextmanager
def explained() -> Iterator[None]:
    """Raise `UsageError` if a pickled object has an unpicklable function."""
    try:
        yield
    except AISError as error:
        raise error.with_traceback(None)  # noqa: B904 - the same error, with the cause it has
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error).lower() and "local object" not in str(error).lower():
            raise
        why = str(error)
    else:
        return
    raise UsageError.at(f"the pipe cannot be sent to worker processes: {why}", todo=_TODO) from None


def check_sendable(stage: str, values: Iterable[object]) -> None:
    """Raise `UsageError`, naming it, if a process is sent a local function."""
    if get_spawning_popen() is None or dill_if_installed() is not None:
        return
    for value in values:
        for part in members(value):
            name = str(getattr(part, "__qualname__", "") or type(part).__qualname__)
            if callable(part) and ("<locals>" in name or "<lambda>" in name):
                raise UsageError.at(f"{name} of {stage} cannot be sent to worker processes", todo=_TODO)
