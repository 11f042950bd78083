"""The order of an epoch by numbers: where the shards are listed already, none is looked at before its turn.

Shards come from one lister, and torch's ``.shuffle()`` may mix them. What it would do to their names is done here to
their numbers: the same draws, the same order, and a million shards are 4 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, NamedTuple, TypeVar

from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.datapipes import Shuffler
from torchdata_ais.stage.meter import count_given
from torchdata_ais.stage.pipe import IterDataPipe, Pipe
from torchdata_ais.stage.shared_seed import SharedSeed
from torchdata_ais.stage.upstream import parents
from torchdata_ais.store import PackedURLs
from torchdata_ais.urls import ObjectURL

_T = TypeVar("_T")


class ListedOrder(NamedTuple):
    """Shards that are listed, and the stages that they pass.

    Attributes:
        urls: The shards.
        stages: What stands behind them, nearest to them first; none of it changes or drops one.
    """

    urls: PackedURLs
    stages: list[IterDataPipe[Any]]

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the shards in the order of the epoch that begins now."""
        numbers: Iterable[int] = range(len(self.urls))
        for stage in self.stages:
            if type(stage) is Shuffler:
                stage.reset()
                numbers = _shuffled_by(stage, numbers, array("I"))
            elif isinstance(stage, Pipe):
                count_given(stage, len(self.urls))
        return iter(numbers)


class EpochURLs:
    """The shards of an epoch in its order.

    Args:
        order: The shards, at the beginning of the epoch.
    """

    def __init__(self, order: ListedOrder) -> None:
        self._urls = order.urls
        self._numbers = array("I", order.numbers())

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, position: int) -> ObjectURL:
        return self._urls[self._numbers[position]]


def listed_order(pipe: IterDataPipe[Any]) -> ListedOrder | None:
    """Return the shards that `pipe` gives, if they are listed and nothing is done to them but mixing; else None."""
    stages: list[IterDataPipe[Any]] = []
    while (urls := stage_of(pipe).packed()) is None:
        above = parents(pipe)
        if type(pipe) not in (Shuffler, SharedSeed) or len(above) != 1:
            return None
        stages.insert(0, pipe)
        pipe = above[0]
    return ListedOrder(urls, [pipe, *stages])


def _shuffled_by(shuffler: Any, items: Iterable[_T], waiting: MutableSequence[_T]) -> Iterator[_T]:
    """Yield `items` in the order in which torch's stage `shuffler` would yield them after its reset.

    Args:
        shuffler: The stage.
        items: What it is to mix.
        waiting: An empty list or array, the shuffle buffer.
    """
    if not shuffler._enabled:
        yield from items
        return
    draw, size = shuffler._rng.randint, shuffler.buffer_size
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
            continue
        index = draw(0, size - 1)
        drawn, waiting[index] = waiting[index], item
        yield drawn
    while waiting:
        yield waiting.pop(draw(0, len(waiting) - 1))
