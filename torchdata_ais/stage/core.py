"""torch's own stages, as far as it is known what they do: they say it by the same contract as ours."""

from __future__ import annotations

from typing import Any

from torchdata_ais.stage.bound import MemoryBound
from torchdata_ais.stage.contract import Effect, Stage
from torchdata_ais.stage.datapipes import Batcher, Collator, Filter, IterableWrapper, Mapper, Shuffler
from torchdata_ais.stage.pipe import IterDataPipe, Pipe, ShardingFilter
from torchdata_ais.stage.registry import name_of
from torchdata_ais.stage.stats import StageStats
from torchdata_ais.stage.upstream import is_sharding, parents
from torchdata_ais.store import PackedURLs

_EFFECTS = {
    Mapper: Effect("each"),
    Filter: Effect("fewer"),
    Collator: Effect("each", keeps_place=False),
    Shuffler: Effect("each", mixes=True, holds=True),
    ShardingFilter: Effect("fewer"),
}


class CoreStage(Stage):
    """What is known of a stage that is not ours.

    Args:
        pipe: The stage.
    """

    def __init__(self, pipe: IterDataPipe[Any]) -> None:
        self._kind = kind = type(pipe)
        self._batch = pipe.batch_size if isinstance(pipe, Batcher) else None
        self._drop_last = isinstance(pipe, Batcher) and pipe.drop_last
        self.functional_name = name_of(pipe)
        self.resumable = kind in (Mapper, Filter, Batcher, Collator)
        self.splits = is_sharding(pipe)
        items = pipe.iterable if isinstance(pipe, IterableWrapper) else None
        wraps_list = isinstance(items, (list, tuple, PackedURLs))
        self._packed = items if isinstance(items, PackedURLs) else None
        self.ready = wraps_list or kind in (ShardingFilter, Shuffler)
        self.stats = StageStats()

    def describe(self) -> str:
        """Return its name: the arguments of a foreign stage may hold anything."""
        return self.functional_name

    def identity(self) -> str:
        """Return what says which items come."""
        return "" if self._batch is None else f"{self._batch}{', drop_last' if self._drop_last else ''}"

    def packed(self) -> PackedURLs | None:
        """Return what the list that it wraps was packed to."""
        return self._packed

    def effect(self) -> Effect:
        """Return what the stage does to items."""
        if self._batch is not None:
            return Effect("batches", self._batch, partial=not self._drop_last, keeps_place=False)
        return _EFFECTS.get(self._kind, Effect())

    def memory_bound(self) -> MemoryBound:
        """Return what the stage holds."""
        return MemoryBound("" if self._batch is None else f"{self._batch} items")


def stage_of(pipe: IterDataPipe[Any]) -> Stage:
    """Return what `pipe` says of itself, or what is known of it.

    Example:
        >>> from torchdata_ais.pipes import Shuffler
        >>> stage_of(Shuffler([], 10)).functional_name, stage_of(Shuffler([], 10).batch(2)).describe()
        ('shuffled', 'batch')
    """
    return pipe if isinstance(pipe, Pipe) else CoreStage(pipe)


def gives_at_once(pipe: IterDataPipe[Any]) -> bool:
    """Return whether the next item of `pipe` comes without waiting: it stands in a list, or is listed already."""
    return stage_of(pipe).ready and all(gives_at_once(source) for source in parents(pipe))
