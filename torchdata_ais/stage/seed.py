"""The seed of an epoch: the one the loader sends, else a function of (seed, epoch)."""

from __future__ import annotations

from typing import Any

import xxhash
from typing_extensions import Self

from torchdata_ais.stage.contract import Stage
from torchdata_ais.stage.datapipes import Shuffler
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.upstream import upstream
from torchdata_ais.state import SeedState


def mix_seed(*parts: object) -> int:
    """Return a 64-bit seed that depends on every part, the same on every machine and in every process.

    Example:
        >>> mix_seed(0, 1) == mix_seed(0, 1), mix_seed(0, 1) == mix_seed(1, 0)
        (True, False)
    """
    return xxhash.xxh64_intdigest("\x00".join(str(part) for part in parts).encode())


class EpochSeed:
    """Gives each epoch its seed.

    Args:
        seed: The stage's own seed; it is mixed into what the loader sends, so that two stages can differ.
    """

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
        """Make the next epoch the one that was current when `save` was called, if one had begun."""
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


def seed_shufflers(pipe: IterDataPipe[Any], seed: int, *, always: bool) -> None:
    """Give torch's own ``.shuffle()`` stages above `pipe` a seed: always, or where the loader has sent none.

    Left alone they draw one from torch's global generator: another order in each process, and none that could
    be had again.
    """
    for index, above in enumerate(upstream(pipe)):
        if type(above) is Shuffler and (always or above._seed is None):
            above.set_seed(mix_seed(seed, index) >> 1)
