"""``.batched()``: n samples to one batch of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial as bind
from typing import Any

from torchdata_ais.arguments import check_function, check_number
from torchdata_ais.stage.bound import MemoryBound
from torchdata_ais.stage.collate import Batch, DictBatch, Ragged, collate_columns
from torchdata_ais.stage.contract import Effect
from torchdata_ais.stage.origin import note_place
from torchdata_ais.stage.pipe import Pipe
from torchdata_ais.stage.planned import PlannedStage, SlotStage
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.slots import (
    SlotBatcher,
    given_of,
    gives_as_many,
    planned_above,
    refuse_below_plan,
    slots_above,
)


@stage("batched")
class Batcher(Pipe[Any], SlotBatcher):
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

    resumable = True

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
        self._collate: Any = (
            bind(collate_columns, ragged=ragged) if isinstance(collation_fn, str) else collation_fn
        )
        self._own = isinstance(collation_fn, str)
        self._partial = partial
        if not partial:
            refuse_below_plan(self, "batched(partial=False)", 'use .read_samples(tail="drop")')

    def memory_bound(self) -> MemoryBound:
        """Return what the stage holds at most in one process; see "Memory" above."""
        return MemoryBound(f"{2 * self.batchsize} items")

    def effect(self) -> Effect:
        return Effect("batches", self.batchsize, self._partial, keeps_place=False)

    def __len__(self) -> int:
        plan = planned_above(self)
        if plan is None:
            return super().__len__()
        plan.use_batches_of(self.batchsize)
        return plan.batches()

    def arguments(self) -> str:
        return str(self.batchsize)

    def identity(self) -> str:
        return f"{self.batchsize}" if self._partial else f"{self.batchsize}, partial=False"

    def _items(self) -> Iterator[Any]:
        plan, slots = planned_above(self), slots_above(self)
        if plan is not None and slots is not None:
            yield from given_of(plan, self._as_planned(plan, slots), self._batch, self.stats)
            return
        rows: list[Any] = []
        for row in self._source:
            rows.append(row)
            if len(rows) == self.batchsize:
                yield self._batch(rows)
                rows = []
        if rows and self._partial:
            yield self._batch(rows)

    def _as_planned(self, plan: PlannedStage, slots: SlotStage) -> Iterator[list[Any]]:
        """Yield what is left of each batch that was laid down."""
        plan.use_batches_of(self.batchsize)
        at_once = gives_as_many(self)  # a batch is whole when as many have come as were planned
        rows: list[Any] = []
        filling, size = 0, 0
        for row in self._source:
            drawn = slots.drawn
            while filling < slots.slot:
                yield rows
                rows, filling = [], filling + 1
            if not rows:
                self.drawn, size = drawn, plan.size_of(filling)
            rows.append(row)
            if at_once and len(rows) == size:
                yield rows
                rows, filling = [], filling + 1
        while filling < plan.slots_given:
            yield rows
            rows, filling = [], filling + 1
        if rows:  # an error policy has ended the epoch in the middle of a batch
            yield rows

    def _batch(self, rows: list[Any]) -> Any:
        if self._collate is None:
            return rows
        try:
            batch = self._collate(rows)
        except Exception as error:
            note_place(error, rows[0], self, {})
            raise
        if self._own:
            return (
                Batch(batch) if type(batch) is tuple else DictBatch(batch) if type(batch) is dict else batch
            )
        return batch
