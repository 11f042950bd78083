"""``.with_length()``: a length for frameworks that ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.arguments import check_number
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage


@stage("with_length")
class LengthSetter(Pipe[Any]):
    """Say that the stream has `n` items (``.with_length(n)``), for frameworks that ask with ``len()``.

    It changes nothing else: the stream is as long as it is. To make it that long: ``.with_epoch(n)``.

    Args:
        source: Pipe of anything.
        n: What ``len()`` returns.

    Yields:
        The items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> len(LengthSetter(range(5), 1000))
        1000
    """

    resumable = True
    gives = "each"

    def __init__(self, source: Any, n: int) -> None:
        super().__init__(source)
        check_number(n, 0, "n")
        self._n = n

    def arguments(self) -> str:
        return f"{self._n}"

    def __len__(self) -> int:
        return self._n

    def _items(self) -> Iterator[Any]:
        yield from self._source
