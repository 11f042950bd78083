"""An error in place of a data set without samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.webdataset.utils import Place, pytorch_worker_info


class EmptyCheck:
    """Pass samples on; without any, raise an error that says how many shards and workers there are.

    Args:
        shards: How many shards the data set has, where that is known.

    Example:
        >>> list(EmptyCheck(3)(["a", "b"]))
        ['a', 'b']
    """

    __name__ = "check_empty"

    def __init__(self, shards: int | None = None) -> None:
        self._shards = shards

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of `source`."""
        empty = True
        for item in source:
            empty = False
            yield item
        if empty:
            raise self._error(pytorch_worker_info())

    def _error(self, place: Place) -> UsageError:
        readers = place.world_size * place.num_workers
        who = f"worker {place.worker} of rank {place.rank}" if readers > 1 else "the data set"
        ranks = place.world_size if place.world_size > 1 else None
        there = {"shard": self._shards, "rank": ranks, "worker": place.num_workers}
        counted = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in there.items() if n is not None]
        if self._shards is not None and self._shards < readers:
            todo = "use no more workers than there are shards, or let it have none with empty_check=False"
        else:
            todo = "check what the shards hold and what handler= and select_files= leave out, or pass empty_check=False"
        return UsageError.at(f"{who} has no sample at all: {', '.join(counted)}", todo=todo)


check_empty = EmptyCheck()
