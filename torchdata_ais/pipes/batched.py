"""``.batched()``: n samples to one batch of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata_ais.arguments import check_function, check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.stage.bound import MemoryBound
from torchdata_ais.stage.collate import Batch, DictBatch, Ragged, collate_columns
from torchdata_ais.stage.contract import Effect
from torchdata_ais.stage.lists import lists_of
from torchdata_ais.stage.origin import note_place
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.rows import BatchRows, Memory
from torchdata_ais.stage.slots import SlotBatcher, maker_of_rows, planned_above


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
        source: Any,
        batchsize: int = 20,
        collation_fn: Callable[[list[Any]], Any] | str | None = "columns",
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
        """Return what the stage holds at most in one process; see "Memory" above."""
        return MemoryBound(f"{2 * self.batchsize} items")

    def effect(self) -> Effect:
        return Effect("batches", self.batchsize, self._partial, keeps_place=False)

    def arguments(self) -> str:
        return str(self.batchsize)

    def identity(self) -> str:
        return f"{self.batchsize}" if self._partial else f"{self.batchsize}, partial=False"

    def _items(self) -> Iterator[Any]:
        maker = maker_of_rows(self) if self._own else None
        if maker is None:
            yield from super()._items()
            return
        plan = planned_above(self)
        if plan is not None:
            self.say_to(plan)
        size = self.batchsize if plan is None else plan.batch_size or self.batchsize
        # A batch that is given again is kept, so what another process does to its own must not reach it.
        memory = None if plan is not None and plan.gives_again else self.memory
        self._live = maker.rows = BatchRows(size, memory)
        try:
            yield from super()._items()
        finally:
            self._live = maker.rows = None

    def _of_stream(self) -> Iterator[Any]:
        for rows in lists_of(self._source, self.batchsize, self._partial):
            yield self._batch(rows)

    def _batch(self, rows: list[Any]) -> Any:
        if self._collate is None and not self._own:
            return rows
        try:
            return self._columns(rows) if self._own else self._collate(rows)
        except Exception as error:
            note_place(error, rows[0], self, {})
            raise

    def _columns(self, rows: list[Any]) -> Any:
        filled = self._live
        batch = collate_columns(rows, self._ragged, None if filled is None else filled.whole)
        if filled is not None:
            filled.end_batch(len(rows))
        return Batch(batch) if type(batch) is tuple else DictBatch(batch) if type(batch) is dict else batch
