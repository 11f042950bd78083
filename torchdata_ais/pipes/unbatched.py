"""``.unbatched()``: batches of columns to items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.slots import say_no_steps


@stage("unbatched")
class Unbatcher(Pipe[Any]):
    """Take batches of columns apart (``.unbatched()``): the reverse of ``.batched(n)``.

    (``.unbatch()`` is torch's: it flattens lists.)

    Args:
        source: Pipe of batches: tuples or lists of columns, dicts of columns (also nested), or one array alone. A
            column is anything with a length and an index: tensor, array, list, tuple.

    Yields:
        Tuples for tuples and lists, dicts for dicts, single values for a column. The value of a row is ``column[i]``:
        a tensor without dimensions, for a tensor of numbers.

    Order:
        That of the source, and of the rows.

    Memory:
        One batch.

    Raises:
        UsageError: Columns of different lengths, or an item that is no batch.

    Example:
        >>> list(Unbatcher([([0, 1], ["a", "b"]), ([2], ["c"])]))
        [(0, 'a'), (1, 'b'), (2, 'c')]
        >>> list(Unbatcher([{"x": [0, 1], "box": {"w": [3, 4]}}]))
        [{'x': 0, 'box': {'w': 3}}, {'x': 1, 'box': {'w': 4}}]
    """

    gives = "more"
    keeps_place = False

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        say_no_steps(self._source, "unbatched")

    def _items(self) -> Iterator[Any]:
        for batch in self._source:
            if not isinstance(batch, (tuple, list)):
                for index in range(_rows([batch])):
                    yield _row(batch, index)
                continue
            for index in range(_rows(batch)):
                yield tuple([_row(column, index) for column in batch])


def _rows(columns: Sequence[Any]) -> int:
    lengths = {length for column in columns for length in _lengths(column)}
    if len(lengths) == 1:
        return lengths.pop()
    what = f"columns of different lengths {sorted(lengths)}" if lengths else "no columns"
    raise UsageError.at(
        f"a batch with {what} cannot be taken apart",
        todo="let .batched() make the batches; for lists of samples use .unlisted()",
    )


def _lengths(column: Any) -> Iterator[int]:
    if isinstance(column, dict):
        for inner in column.values():
            yield from _lengths(inner)
        return
    try:
        yield len(column)
    except TypeError as error:
        raise UsageError.at(
            f"a {type(column).__name__} is no column of a batch", todo="put .unbatched() behind .batched()"
        ) from error


def _row(column: Any, index: int) -> Any:
    if isinstance(column, dict):
        return {name: _row(inner, index) for name, inner in column.items()}
    return column[index]
