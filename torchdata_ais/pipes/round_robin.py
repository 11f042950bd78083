"""``.mix_round_robin()``: items of several pipes in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.stage.mixing import several_pipes
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage

_END = object()


@stage("mix_round_robin")
class RoundRobin(Pipe[Any]):
    """Take one item of each pipe in turn (``a.mix_round_robin(b, c)``, ``RoundRobin([a, b, c])``).

    Args:
        source: A pipe, or a list of all pipes.
        *others: The other pipes.
        longest: Whether to go on with the rest when a pipe has ended; else the stream ends there.

    Yields:
        Their items.

    Order:
        A function of the order of the pipes. Each worker mixes what it reads itself.

    Memory:
        One item, and what the pipes hold.

    Example:
        >>> list(RoundRobin([[1, 2, 3], [10, 20]]))
        [1, 10, 2, 20, 3]
        >>> list(RoundRobin([[1, 2, 3], [10]], longest=True))
        [1, 10, 2, 3]
    """

    def __init__(self, source: Any, *others: Any, longest: bool = False) -> None:
        super().__init__()
        self._sources = several_pipes(source, others)
        self._longest = longest

    def arguments(self) -> str:
        return f"{len(self._sources)} pipes" + (", longest=True" if self._longest else "")

    def _items(self) -> Iterator[Any]:
        running = [iter(pipe) for pipe in self._sources]
        index = 0
        while running:
            index %= len(running)
            item = next(running[index], _END)
            if item is not _END:
                yield item
                index += 1
            elif self._longest:
                del running[index]
            else:
                return
