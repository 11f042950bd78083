"""``.slice_samples()``: a slice of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage


@stage("slice_samples")
class Slicer(Pipe[Any]):
    """Take a slice of the stream, as `itertools.islice` does (``.slice_samples(100)``).

    (``.slice()`` is torchdata's: it cuts inside each item.) Each worker counts its own items: with four workers
    ``.slice_samples(100)`` gives up to 400. For an exact number over all workers: ``.with_epoch(n)``.

    Args:
        source: Pipe of anything.
        *bounds: ``stop``, or ``start, stop``, or ``start, stop, step``; `stop` may be None.

    Yields:
        The items of the slice. Nothing more is taken from the source once it is full.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        UsageError: The bounds are none.

    Example:
        >>> list(Slicer(range(10), 2, 8, 3))
        [2, 5]
    """

    gives = "fewer"

    def __init__(self, source: Any, *bounds: int | None) -> None:
        super().__init__(source)
        try:
            islice((), *bounds)
        except (ValueError, TypeError) as error:
            raise UsageError.at(
                f"slice_samples{bounds}", todo="give a stop, or start, stop and step, none negative"
            ) from error
        self._bounds = bounds

    def arguments(self) -> str:
        return ", ".join(map(str, self._bounds))

    def _items(self) -> Iterator[Any]:
        yield from islice(self._source, *self._bounds)
