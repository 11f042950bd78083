""".batched(), .unbatched(), .listed() and .unlisted()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torchdata_ais._util.arguments import check_function, check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.collate import Batch, BatchRows, DictBatch, Memory, Ragged, collate_columns
from torchdata_ais.pipes.base.contract import Effect, MemoryBound
from torchdata_ais.pipes.base.each_item import lists_of
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import note_place
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.planned.batches import SlotBatcher, maker_of_rows, planned_above, say_no_steps

_KINDS: dict[type, Callable[[Any], Any]] = {tuple: Batch, dict: DictBatch}
"""What columns of ours are made to, so that a `DataLoader` knows them."""


@stage("batched")
class Batcher(SlotBatcher):
    """Put `batchsize` items together as columns (``.batched(64)``).

    Batching in the workers, before items cross to the main process, is what makes several workers fast.
    (``.batch(n)`` is torch's: it makes lists of items.)

    Args:
        source: Pipe of tuples, dicts or single values.
        batchsize: Items a batch.
        collation_fn: Function from a list of items to a batch, instead of the columns; None gives the list itself.
        partial: Whether to yield the last batch when it is smaller; each worker has one.
        ragged: Arrays of different shapes in a column: ``"error"``, ``"list"`` or ``"pad"`` (with zeros).

    Yields:
        Tuples yield a tuple of columns, dicts a dict. Numbers become a tensor of shape ``(n,)``, int64 or float;
        arrays and tensors are stacked to ``(n, ...)``, dtype kept; everything else becomes a list.

    Order:
        That of the source.

    Memory:
        ``2 * batchsize`` items.

        >>> Batcher([], 64).memory_bound().text
        '128 items'

    Raises:
        UsageError: The items do not fit together; names the column.

    Example:
        >>> list(Batcher([(0, "a"), (1, "b"), (2, "c")], 2))
        [(tensor([0, 1]), ['a', 'b']), (tensor([2]), ['c'])]
    """

    memory: Memory | None = None
    _live: BatchRows | None = None

    def __init__(
        self,
        source: object,
        batchsize: int = 20,
        collation_fn: Callable[[list[Any]], object] | str | None = "columns",
        partial: bool = True,
        *,
        ragged: Ragged = "error",
    ) -> None:
        super().__init__(source)
        check_number(batchsize, 1, "batchsize")
        if collation_fn is not None and not isinstance(collation_fn, str):
            check_function(collation_fn, 1, "batched(collation_fn=)")
        self.batchsize = batchsize
        self._own = isinstance(collation_fn, str)
        self._collate: Any = None if self._own else collation_fn
        self._ragged: Ragged = ragged
        self._partial = partial
        if not partial and planned_above(self) is not None:
            raise UsageError.at(
                "batched(partial=False) below .read_samples()", todo='use .read_samples(tail="drop")'
            )

    def use_memory(self, memory: Memory) -> None:
        self.memory = memory

    def memory_bound(self) -> MemoryBound:
        return MemoryBound(f"{2 * self.batchsize} items")

    def effect(self) -> Effect:
        return Effect("batches", self.batchsize, self._partial, keeps_place=False)

    def arguments(self) -> str:
        return str(self.batchsize)

    def identity(self) -> str:
        return f"{self.batchsize}" if self._partial else f"{self.batchsize}, partial=False"

    def _items(self) -> Iterator[object]:
        maker = maker_of_rows(self) if self._own else None
        if maker is None:
            yield from super()._items()
            return
        plan = planned_above(self)
        if plan is not None:
            self.say_to(plan)
        size = self.batchsize if plan is None else plan.batch_size or self.batchsize
        self._live = maker.rows = BatchRows(size, self.memory)
        try:
            yield from super()._items()
        finally:
            self._live = maker.rows = None

    def _of_stream(self) -> Iterator[object]:
        for rows in lists_of(self._source, self.batchsize, self._partial):
            yield self._batch(rows)

    def _batch(self, rows: list[Any]) -> object:
        if self._collate is None and not self._own:
            return rows
        try:
            return self._columns(rows) if self._own else self._collate(rows)
        except Exception as error:
            note_place(error, rows[0], self, {})
            raise

    def _columns(self, rows: list[Any]) -> object:
        filled = self._live
        batch = collate_columns(rows, self._ragged, None if filled is None else filled.whole)
        if filled is not None:
            filled.end_batch()
        kind = _KINDS.get(type(batch))
        return batch if kind is None else kind(batch)


@stage("unbatched")
class Unbatcher(Pipe[Any]):
    """Take batches of columns apart (``.unbatched()``).

    The reverse of ``.batched(n)``.
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
        UsageError: Columns of different lengths, or an item that is not a batch.

    Example:
        >>> list(Unbatcher([([0, 1], ["a", "b"]), ([2], ["c"])]))
        [(0, 'a'), (1, 'b'), (2, 'c')]
        >>> list(Unbatcher([{"x": [0, 1], "box": {"w": [3, 4]}}]))
        [{'x': 0, 'box': {'w': 3}}, {'x': 1, 'box': {'w': 4}}]
    """

    gives = "more"
    keeps_place = False

    def __init__(self, source: object) -> None:
        super().__init__(source)
        say_no_steps(self._source, "unbatched")

    def _items(self) -> Iterator[object]:
        for batch in self._source:
            if not isinstance(batch, (tuple, list)):
                for index in range(_rows([batch])):
                    yield _row(batch, index)
                continue
            for index in range(_rows(batch)):
                yield tuple([_row(column, index) for column in batch])


def _rows(columns: Sequence[object]) -> int:
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


def _row(column: Any, index: int) -> object:
    if isinstance(column, dict):
        return {name: _row(inner, index) for name, inner in column.items()}
    return column[index]


@stage("listed")
class ListBatcher(Pipe[list[Any]]):
    """Put `batchsize` items into a list (``.listed(64)``).

    No columns are made of them.

    Args:
        source: Pipe of anything.
        batchsize: Items a list.
        partial: Whether to yield the last list when it is shorter; each worker has one.

    Yields:
        Lists of items.

    Order:
        That of the source.

    Memory:
        `batchsize` items.

        >>> ListBatcher([], 64).memory_bound().text
        '64 items'

    Example:
        >>> list(ListBatcher(range(5), 2))
        [[0, 1], [2, 3], [4]]
    """

    resumable = True

    def __init__(self, source: object, batchsize: int = 20, partial: bool = True) -> None:
        super().__init__(source)
        if batchsize < 1:
            raise UsageError.at(f"batchsize={batchsize}", todo="use at least 1")
        self._batchsize = batchsize
        self._partial = partial

    def memory_bound(self) -> MemoryBound:
        return MemoryBound(f"{self._batchsize} items")

    def effect(self) -> Effect:
        return Effect("batches", self._batchsize, self._partial, keeps_place=False)

    def arguments(self) -> str:
        return f"{self._batchsize}" if self._partial else f"{self._batchsize}, partial=False"

    def _items(self) -> Iterator[list[Any]]:
        yield from lists_of(self._source, self._batchsize, self._partial)


def listed(items: Iterable[object], batchsize: int = 20, partial: bool = True) -> Iterator[list[Any]]:
    """Yield lists of `batchsize` items; the last may be shorter if `partial`."""
    if batchsize < 1:
        raise UsageError.at(f"batchsize={batchsize}", todo="use at least 1")
    yield from lists_of(items, batchsize, partial)


@stage("unlisted")
class Unlister(Pipe[Any]):
    """Yield the items of lists (``.unlisted()``).

    The reverse of ``.listed(n)``.

    Args:
        source: Pipe of lists.

    Yields:
        The items.

    Order:
        That of the source.

    Memory:
        One list.

    Raises:
        UsageError: An item is not a list.

    Example:
        >>> list(Unlister([[0, 1], [], [2]]))
        [0, 1, 2]
    """

    gives = "more"

    def __init__(self, source: object) -> None:
        super().__init__(source)
        say_no_steps(self._source, "unlisted")

    def _items(self) -> Iterator[object]:
        for items in self._source:
            if not isinstance(items, list):
                raise UsageError.at(
                    f"unlisted() was given an item of type {type(items).__name__}, not a list",
                    todo="for batches of columns use .unbatched()",
                )
            yield from items
