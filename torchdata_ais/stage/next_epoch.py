"""The number of the next epoch, set by a program on a stage or dataset of which loaders run copies."""

from __future__ import annotations

import os
import uuid
import weakref
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch


class EpochCall(NamedTuple):
    """A call of ``set_epoch``.

    Attributes:
        number: How many calls there were, this one included; 0: none.
        epoch: The epoch that was set.
    """

    number: int
    epoch: int


class NextEpoch:
    """What ``set_epoch`` was last called with, for all copies of an object.

    Copies in the process of the program are made by pickle, and share this object. Workers share its memory if they
    were forked, or were sent it by torch. A worker begins with the call that was the last when it was started, so that
    all begin with the same one. Later it takes the one in shared memory.
    """

    _sent: tuple[weakref.ref[Any], bytes] | None = None

    def __init__(self) -> None:
        self._token, self._home = uuid.uuid4().hex, os.getpid()
        self._shared = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._last, self._looked_in = EpochCall(0, 0), 0
        _KNOWN[self._token] = self

    def set(self, epoch: int) -> None:
        """Note a call."""
        self._last = EpochCall(int(self._shared[0]) + 1, epoch)
        self._shared[1] = epoch
        self._shared[0] = self._last.number

    def look(self) -> EpochCall:
        """Return the call that holds for a pass that begins now."""
        process = os.getpid()
        if process in (self._home, self._looked_in):
            self._last = EpochCall(*self._shared.tolist())
        self._looked_in = process
        return self._last

    def __reduce__(self) -> Any:
        shared: Any = self._shared
        popen = get_spawning_popen()
        if popen is not None:  # torch pickles pipes on their own, which would copy the memory
            # A process is sent a descriptor once, however often a pipe is pickled for it: dill is tried first.
            if self._sent is None or self._sent[0]() is not popen:
                self._sent = weakref.ref(popen), bytes(ForkingPickler.dumps(shared))
            shared = self._sent[1]
        return _restored, (self._token, self._home, shared, tuple(self._last))


_KNOWN: weakref.WeakValueDictionary[str, NextEpoch] = weakref.WeakValueDictionary()
"""Those of this process, by token: what a copy in it finds again."""


def _restored(token: str, home: int, shared: torch.Tensor | bytes, last: tuple[int, int]) -> NextEpoch:
    known = _KNOWN.get(token)
    if known is not None:
        return known
    made = NextEpoch.__new__(NextEpoch)
    made._shared = ForkingPickler.loads(shared) if isinstance(shared, bytes) else shared
    made._token, made._home, made._last = token, home, EpochCall(*last)
    made._looked_in = 0
    _KNOWN[token] = made
    return made
