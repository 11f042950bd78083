"""What torch's ``.shuffle()`` does, to whatever it is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, TypeVar

_T = TypeVar("_T")


def shuffled_by(shuffler: Any, items: Iterable[_T], waiting: MutableSequence[_T]) -> Iterator[_T]:
    """Yield `items` as `shuffler`, a stage of torch's or ours in its place that was reset, would yield them.

    Args:
        shuffler: The stage.
        items: What it is to mix.
        waiting: An empty list or array, for those that wait.
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
