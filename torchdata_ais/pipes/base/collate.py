"""Collation of rows to batches.

``.batched()`` reports it to the upstream stage that makes the values, if only stages that hand them on are between
the two. A value that is not a row, or not the row of its place, is copied as ever.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import default_collate_fn_map

from torchdata_ais.errors import UsageError

if TYPE_CHECKING:
    from torchdata_ais.codecs.handlers import Row

Ragged = Literal["error", "list", "pad"]


class Batch(tuple[Any, ...]):
    """Columns of tuples, which torch's `DataLoader` recognizes and refuses."""

    __slots__ = ()


class DictBatch(dict[Any, Any]):
    """Columns of dicts; see `Batch`."""

    __slots__ = ()


def _refuse_batches(batches: Any, **_: object) -> NoReturn:
    raise UsageError.at(
        f"the pipe makes batches by itself, and the DataLoader was to put {len(batches)} of them together",
        todo="pass batch_size=None to the DataLoader (its default is 1), or leave .batched() out of the pipe",
    )


for _kind in (Batch, DictBatch):
    default_collate_fn_map[_kind] = _refuse_batches
register_pytree_node(Batch, lambda batch: (list(batch), None), lambda columns, _: Batch(columns))
register_pytree_node(
    DictBatch,
    lambda batch: (list(batch.values()), list(batch)),
    lambda columns, names: DictBatch(zip(names, columns, strict=True)),
)


Whole = Callable[[Sequence[torch.Tensor]], "torch.Tensor | None"]
"""Returns the batch that tensors are the rows of, if they are."""


def collate_columns(rows: Sequence[Any], ragged: Ragged = "error", whole: Whole | None = None) -> Any:
    """Turn rows of one kind into columns, as `Batcher` describes them.

    Example:
        >>> collate_columns([(1, "a"), (2, "b")])
        (tensor([1, 2]), ['a', 'b'])
    """
    first = rows[0]
    if isinstance(first, Mapping):
        if any(not isinstance(row, Mapping) or row.keys() != first.keys() for row in rows):
            keys = sorted(
                {
                    tuple(sorted(map(str, row))) if isinstance(row, Mapping) else type(row).__name__
                    for row in rows
                },
                key=str,
            )
            raise UsageError.at(
                f"samples with different fields cannot make one batch: {keys[:3]}",
                todo='pick the fields first, with .to_tuple("jpg;png", "cls")',
            )
        return {name: _named(name, [row[name] for row in rows], ragged, whole) for name in first}
    if isinstance(first, tuple):
        if any(not isinstance(row, tuple) or len(row) != len(first) for row in rows):
            raise UsageError.at(
                "rows of different kinds or lengths cannot make one batch", todo="yield tuples of one length"
            )
        columns = enumerate(zip(*rows, strict=True))
        return tuple([_named(str(i), list(column), ragged, whole) for i, column in columns])
    return _column(rows, ragged, whole)


def _named(name: str, column: list[Any], ragged: Ragged, whole: Whole | None) -> object:
    try:
        return collate_columns(column, ragged, whole)
    except UsageError as error:
        raise error.noting(f"in column {name!r}") from error


def _column(values: Sequence[Any], ragged: Ragged, whole: Whole | None) -> object:
    kinds = set(map(type, values))
    if all(issubclass(kind, torch.Tensor) for kind in kinds):
        return _stack(values, ragged, whole)
    if all(issubclass(kind, (np.ndarray, np.generic)) for kind in kinds) and values[0].dtype.kind in "biufc":
        rows = [torch.from_numpy(np.ascontiguousarray(value)).reshape(np.shape(value)) for value in values]
        return _stack(rows, ragged, None)
    if all(issubclass(kind, (int, float)) for kind in kinds):
        with contextlib.suppress(OverflowError, RuntimeError):  # an integer beyond 64 bits has no tensor
            return torch.tensor(values)
    return list(values)


def _stack(tensors: Sequence[torch.Tensor], ragged: Ragged, whole: Whole | None) -> object:
    first = tensors[0]
    if all(tensor.shape == first.shape for tensor in tensors):
        made = None if whole is None else whole(tensors)
        return _stack_alike(tensors) if made is None else made
    if ragged == "list":
        return list(tensors)
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if ragged == "error" or len({len(shape) for shape in shapes}) > 1:
        raise UsageError.at(
            f"arrays of different shapes cannot make one batch: {shapes[:4]}",
            todo='give images one size with .decode("torchrgb8", size=224), or use .batched(n, ragged="list" or "pad")',
        )
    extent = [max(sizes) for sizes in zip(*shapes, strict=True)]
    batch = first.new_zeros((len(tensors), *extent))
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return batch


def _stack_alike(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    # torch.stack copies in a team of threads, which afterwards spin for a while on the cores that decode needs: with
    # two decode threads on two cores a fifth of the speed. numpy copies in this thread alone.
    first = tensors[0]
    if any(
        not t.is_contiguous() or t.requires_grad or t.device.type != "cpu" or t.dtype != first.dtype
        for t in tensors
    ):
        return torch.stack(list(tensors))
    try:
        arrays = [tensor.numpy() for tensor in tensors]
    except (TypeError, RuntimeError):  # a type that numpy does not know, as bfloat16
        return torch.stack(list(tensors))
    batch = torch.empty((len(tensors), *first.shape), dtype=first.dtype)
    np.stack(arrays, out=batch.numpy())
    return batch


Memory = Callable[[int], NDArray[np.uint8]]
"""Returns that many bytes to write to."""


class BatchRows:
    """Rows of uint8 for one batch after the other.

    Memory:
        One batch a field, and those whose rows are still in use.

    Example:
        >>> rows = BatchRows(2)
        >>> first, second = [rows.take()("png", (3, 4, 4)) for _ in range(2)]
        >>> rows.whole([first, second]).shape, rows.whole([second, first])
        (torch.Size([2, 3, 4, 4]), None)
    """

    def __init__(self, size: int, memory: Memory | None = None) -> None:
        self._size = size
        self._memory = memory or (lambda size: np.empty(size, np.uint8))
        self._lock = threading.Lock()  # decode threads ask for rows of one batch at the same time
        self._block: dict[str, torch.Tensor] = {}
        self._taken = 0
        self._was_whole = False
        self._by_address: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()

    def take(self) -> Row:
        """Return the next sample's place: from field and shape to its row or None."""
        if self._taken == self._size:
            self._restart()
        block, number = self._block, self._taken
        self._taken += 1
        return lambda field, shape: self._row(block, number, field, shape)

    def whole(self, values: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the batch with exactly the rows `values`, in order; else None.

        A smaller one is copied: storing it would also store the rest of its memory, which was never written.
        """
        start, shape = values[0].data_ptr(), values[0].shape
        memory = self._by_address.get(start)
        if memory is None or len(values) != self._size:
            return None
        step = memory.nbytes // self._size
        for number, value in enumerate(values):
            if value.data_ptr() != start + number * step or value.shape != shape:
                return None
        self._was_whole = True
        del self._by_address[start]
        return torch.from_numpy(memory).view(self._size, *shape)

    def end_batch(self) -> None:
        """Note that a batch is complete: the next sample is the first of one."""
        if not self._was_whole:
            self._restart()
        self._was_whole = False

    def _restart(self) -> None:
        self._block, self._taken = {}, 0

    def _row(
        self, block: dict[str, torch.Tensor], number: int, field: str, shape: tuple[int, ...]
    ) -> torch.Tensor | None:
        # Of several threads that need a row of this field, only the first allocates the column.
        with self._lock:
            column = block.get(field)
            if column is None:
                memory = self._memory(self._size * math.prod(shape))
                column = block[field] = torch.from_numpy(memory).view(self._size, *shape)
                self._by_address[memory.ctypes.data] = memory
        return column[number] if column.shape[1:] == shape else None
