"""Items put together to lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def lists_of(items: Iterable[Any], size: int, partial: bool) -> Iterator[list[Any]]:
    """Yield lists of `size` items; the last one may be shorter, or is left out if `partial` is False.

    Example:
        >>> list(lists_of("abc", 2, True)), list(lists_of("abc", 2, False))
        ([['a', 'b'], ['c']], [['a', 'b']])
    """
    rows: list[Any] = []
    for item in items:
        rows.append(item)
        if len(rows) == size:
            yield rows
            rows = []
    if rows and partial:
        yield rows
