"""Contract of the stages of torch."""

from __future__ import annotations

import inspect
from traceback import walk_stack
from types import FrameType

from torchdata_ais.pipes.base.contract import Effect, MemoryBound, Stage
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe, ShardingFilter
from torchdata_ais.pipes.base.registry import name_of
from torchdata_ais.pipes.base.torch_pipes import Batcher, Collator, Filter, IterableWrapper, Mapper, Shuffler
from torchdata_ais.pipes.base.upstream import is_sharding, parents, upstream
from torchdata_ais.store import PackedURLs

_EFFECTS = {
    Mapper: Effect("each"),
    Filter: Effect("fewer"),
    Collator: Effect("each", keeps_place=False),
    Shuffler: Effect("each", mixes=True, holds=True),
    ShardingFilter: Effect("fewer"),
}


class CoreStage(Stage):
    """Description of a stage that is not ours."""

    def __init__(self, pipe: IterDataPipe[object]) -> None:
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
        return self.functional_name  # the arguments of a foreign stage may hold anything

    def identity(self) -> str:
        return "" if self._batch is None else f"{self._batch}{', drop_last' if self._drop_last else ''}"

    def packed(self) -> PackedURLs | None:
        return self._packed

    def effect(self) -> Effect:
        if self._batch is not None:
            return Effect("batches", self._batch, partial=not self._drop_last, keeps_place=False)
        return _EFFECTS.get(self._kind, Effect())

    def memory_bound(self) -> MemoryBound:
        return MemoryBound("" if self._batch is None else f"{self._batch} items")


def stage_of(pipe: IterDataPipe[object]) -> Stage:
    """Return what `pipe` says of itself, or what is known of it.

    Example:
        >>> from torchdata_ais.pipes import Shuffler
        >>> stage_of(Shuffler([], 10)).functional_name, stage_of(Shuffler([], 10).batch(2)).describe()
        ('shuffled', 'batch')
    """
    return pipe if isinstance(pipe, Pipe) else CoreStage(pipe)


def gives_at_once(pipe: IterDataPipe[object]) -> bool:
    """Return whether the next item of `pipe` is listed already."""
    return stage_of(pipe).ready and all(gives_at_once(source) for source in parents(pipe))


def stage_at_work(pipe: IterDataPipe[object], frame: FrameType | None) -> IterDataPipe[object] | None:
    """Return the first stage whose loop runs in a thread's `frame`, or None.

    A stage is at work if the code of its loop is, and so are then the stages below it.
    """
    frames = [] if frame is None else [inner for inner, _ in walk_stack(frame)]
    codes = [one.f_code for one in reversed(frames)]
    found, begin = None, 0
    for stage in upstream(pipe):
        method = getattr(type(stage), stage_of(stage).loop if isinstance(stage, Pipe) else "__iter__")
        code = inspect.unwrap(method).__code__  # inside torch's wrapper, of stages that are not ours
        if code in codes[begin:]:
            found, begin = stage, codes.index(code, begin) + 1
    return found
