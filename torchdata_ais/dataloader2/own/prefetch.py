"""`.prefetch`: items made ahead by a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchdata_ais.dataloader2.own.look_ahead import LookAhead, LookingAhead
from torchdata_ais.dataloader2.own.not_now import TerminateRequired
from torchdata_ais.errors import UsageError


class Prefetcher(LookingAhead):
    """Makes items ahead in a thread: ``pipe.prefetch(10)``.

    Takes and yields any items, in their order.

    Memory:
        `buffer_size` items, and one under way.

    Args:
        source_datapipe: The pipe.
        buffer_size: How many items may wait.

    Raises:
        UsageError: `buffer_size` is not positive.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> list(Prefetcher(IterableWrapper(range(3)), 2))
        [0, 1, 2]
    """

    def __init__(self, source_datapipe: Any, buffer_size: int = 10) -> None:
        super().__init__()
        if buffer_size <= 0:
            raise UsageError.at(f"buffer_size={buffer_size}", todo="use 1 or more")
        self.source_datapipe = source_datapipe
        self.buffer_size = buffer_size

    def _taken(self) -> Iterable[Any]:
        """Return what the thread takes: without `self`, which would keep a forgotten pipe alive."""
        source: Iterable[Any] = self.source_datapipe
        return source

    def __iter__(self) -> Iterator[Any]:
        self._ahead = ahead = LookAhead(self._taken(), self.buffer_size)
        try:
            while True:
                try:
                    item = ahead.get()
                except (StopIteration, TerminateRequired):
                    return
                yield item
                del item
        finally:
            ahead.close()
            ahead.join()

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def reset(self) -> None:
        """End the thread of the iteration before."""
        self.shutdown()

    def shutdown(self) -> None:
        """End the thread, after the item under way."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
            ahead.join()

    def __del__(self) -> None:
        self.shutdown()
