"""``.repeated()``: several passes as one stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.passes import Passes
from torchdata_ais.stage.pipe import Pipe, as_pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.shared_seed import SharedEpochSeed, with_shared_seed
from torchdata_ais.stage.slots import say_no_steps


@stage("repeated")
class Repeater(Pipe[Any]):
    """Go through the source several times, or without end (``.repeated(3)``, ``.repeated()``).

    (``.repeat(n)`` is torchdata's: it repeats each item.) Each pass has its own order and its own random draws, and
    the passes of all ranks and workers fit together. Before ``.load_tar()`` it repeats shards, which keeps every
    worker busy even when there are fewer shards than workers.

    Args:
        source: Pipe of anything.
        nepochs: Passes; None or -1 for no end.
        nbatches: Items in all, in this worker; None or -1 for no bound.

    Yields:
        The items of the passes, one after the other. A source without items ends the stream.

    Order:
        That of the source, in each pass.

    Memory:
        One item.

    Example:
        >>> list(Repeater(range(3), 2))
        [0, 1, 2, 0, 1, 2]
        >>> list(Repeater(range(3), nbatches=5))
        [0, 1, 2, 0, 1]
    """

    repeats = True
    gives = "more"

    epoch_seed: SharedEpochSeed

    def __init__(self, source: Any, nepochs: int | None = None, nbatches: int | None = None) -> None:
        source = with_shared_seed(as_pipe(source))
        super().__init__(source)
        say_no_steps(self._source, "repeated")
        for name, value in (("nepochs", nepochs), ("nbatches", nbatches)):
            if value is not None and (not isinstance(value, int) or (value < 1 and value != -1)):
                raise UsageError.at(f"{name}={value!r}", todo="use at least 1, or None for no end")
        self._nepochs = None if nepochs == -1 else nepochs
        self._nbatches = None if nbatches == -1 else nbatches
        self.epoch_seed = SharedEpochSeed()

    def arguments(self) -> str:
        shown = [] if self._nepochs is None else [f"{self._nepochs}"]
        return ", ".join(shown + ([] if self._nbatches is None else [f"nbatches={self._nbatches}"]))

    def _items(self) -> Iterator[Any]:
        passes = Passes(self._source, self.epoch_seed.next_epoch_of(self))
        yield from islice(passes.items(self._nepochs), self._nbatches)
