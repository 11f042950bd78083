"""Rows of batches to come: images are made where the batch will be, so that nothing puts them together afterwards.

``.batched()`` says it to the stage above that makes the values, if nobody but stages that hand them on stands between
the two. A value that is no row, or not the row its place asks for, is copied as ever.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from torchdata_ais.codecs.place import Row

Memory = Callable[[int], NDArray[np.uint8]]
"""Returns that many bytes to write to."""


class BatchRows:
    """Rows of uint8 for one batch after the other.

    Args:
        size: Rows of a batch.
        memory: Where a batch comes from; None is the heap.

    Memory:
        One batch a field, and those whose rows somebody still holds.

    Example:
        >>> rows = BatchRows(2)
        >>> first, second = [rows.take()("png", (3, 4, 4)) for _ in range(2)]
        >>> rows.whole([first, second]).shape, rows.whole([second, first])
        (torch.Size([2, 3, 4, 4]), None)
    """

    def __init__(self, size: int, memory: Memory | None = None) -> None:
        self._size = size
        self._memory = memory or _heap
        self._lock = threading.Lock()  # decode threads ask for rows of one batch at the same time
        self._block: dict[str, torch.Tensor] = {}
        self._taken = 0
        self._was_whole = False
        self._by_address: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()

    def take(self) -> Row:
        """Return the place of the next sample: what gives its row of a field, or None if that has another shape."""
        if self._taken == self._size:
            self._restart()
        block, number = self._block, self._taken
        self._taken += 1
        return lambda field, shape: self._row(block, number, field, shape)

    def whole(self, values: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the batch of which `values` are all rows, in order, once; None if they are not.

        A smaller one is copied: whoever stores it would store the memory behind it, too, which nobody has written to.
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
        """Take note that a batch was put together: the next sample is the first of one."""
        if not self._was_whole:
            self._restart()
        self._was_whole = False

    def _restart(self) -> None:
        self._block, self._taken = {}, 0

    def _row(
        self, block: dict[str, torch.Tensor], number: int, field: str, shape: tuple[int, ...]
    ) -> torch.Tensor | None:
        with self._lock:
            column = block.get(field)
            if column is None:
                memory = self._memory(self._size * math.prod(shape))
                column = block[field] = torch.from_numpy(memory).view(self._size, *shape)
                self._by_address[memory.ctypes.data] = memory
        return column[number] if column.shape[1:] == shape else None


def _heap(size: int) -> NDArray[np.uint8]:
    return np.empty(size, np.uint8)
