"""Seeds and epochs."""

from __future__ import annotations

import os
import uuid
import weakref
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import xxhash
from typing_extensions import Self

from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.torch_pipes import Shuffler
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.state import SeedState


def mix_seed(*parts: object) -> int:
    """Return a 64-bit seed that depends on every part.

    It is the same on every machine and in every process.

    Example:
        >>> mix_seed(0, 1) == mix_seed(0, 1), mix_seed(0, 1) == mix_seed(1, 0)
        (True, False)
    """
    return xxhash.xxh64_intdigest("\x00".join(str(part) for part in parts).encode())


class EpochSeed:
    """Gives each epoch its seed, of the stage's own and the one that was sent."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.epoch = 0
        self.was_sent = False
        self._next: int | None = None
        self._current = 0

    def send(self, seed: int) -> None:
        """Take the loader's seed for the next epoch."""
        self._next = mix_seed(self.seed, "sent", int(seed))
        self.was_sent = True

    def next_epoch(self) -> int:
        """Return the seed of the epoch that begins now, and count it."""
        if self._next is None:
            self.was_sent = False
            self._next = mix_seed(self.seed, "epoch", self.epoch)
        self._current, self._next = self._next, None
        self.epoch += 1
        return self._current

    def save(self) -> SeedState:
        """Return what `restore` needs to give the current epoch its seed again."""
        return SeedState(self.epoch, self._current)

    def restore(self, state: SeedState) -> None:
        """Make the epoch of the time of `save` the next one, if it had started."""
        if not state.epochs:
            return
        self.epoch = state.epochs - 1
        self._next = state.seed
        self.was_sent = True


class Seeded(Stage):
    """A stage that takes the seed of each epoch as it is sent to it."""

    epoch_seed: EpochSeed

    def set_seed(self, seed: int) -> Self:
        """Set the seed of the next epoch: loaders call it."""
        self.epoch_seed.send(seed)
        return self


def seed_shufflers(pipe: IterDataPipe[object], seed: int, *, always: bool) -> None:
    """Seed torch's ``.shuffle()`` stages above: all, or those without a seed.

    Left alone they draw one from torch's global generator: another order in each process, and none that could
    be had again.
    """
    for index, above in enumerate(upstream(pipe)):
        if type(above) is Shuffler and (always or above._seed is None):
            above.set_seed(mix_seed(seed, index) >> 1)


class EpochCall(NamedTuple):
    """A call of ``set_epoch``: its number, 0 for none, and the epoch."""

    number: int
    epoch: int


class NextEpoch:
    """Last argument of ``set_epoch``, for all copies of an object.

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
        shared: object = self._shared
        popen = get_spawning_popen()
        if popen is not None:  # torch pickles pipes on their own, which would copy the memory
            # A process is sent a descriptor once, however often a pipe is pickled for it: pickle is tried before dill.
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
