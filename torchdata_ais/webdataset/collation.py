"""Rows to batches as webdataset makes them.

Numbers become numpy arrays, tensors and arrays are stacked, and others become lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchdata_ais._util.arguments import check_function, check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.batched import listed
from torchdata_ais.webdataset.handlers import Handler, handled, reraise_exception


def default_collation_fn(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Make one batch of samples.

    Args:
        samples: Dicts with the same fields, or tuples (lists) of the same length; at least one.
        combine_tensors: Whether to stack tensors and arrays; else they become a list.
        combine_scalars: Whether numbers become a numpy array.

    Returns:
        A dict of columns for dicts, else a tuple of columns.

    Raises:
        UsageError: Samples that do not fit together; names the column.

    Example:
        >>> default_collation_fn([(1, "a"), (2, "b")])
        (array([1, 2]), ['a', 'b'])
    """
    rows = [row if isinstance(row, Mapping) else dict(enumerate(row)) for row in samples]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise UsageError.at(
            f"samples with different fields cannot make one batch: {sorted({tuple(row) for row in rows})[:3]}",
            todo='pick the fields first, with .to_tuple("jpg;png", "cls")',
        )
    columns = {
        name: combine_values([row[name] for row in rows], combine_tensors, combine_scalars, str(name))
        for name in rows[0]
    }
    return columns if isinstance(samples[0], Mapping) else tuple(columns.values())


def combine_values(
    values: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True, name: str = ""
) -> Any:
    """Make one column of `values`."""
    first = values[0]
    if isinstance(first, (int, float, np.number, np.bool_)):
        return np.array(values) if combine_scalars else values
    if not isinstance(first, (torch.Tensor, np.ndarray)):
        return list(values)
    if not combine_tensors:
        return values
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1:
        raise UsageError.at(
            f"arrays of different shapes cannot make one batch: {sorted(shapes)[:4]} in column {name!r}",
            todo='give images one size, for example with .decode("torchrgb8", size=224)',
        )
    return torch.stack(list(values)) if isinstance(first, torch.Tensor) else np.array(values)


def batched(
    data: Iterable[object],
    batchsize: int = 20,
    collation_fn: Callable[[list[Any]], object] | None = default_collation_fn,
    partial: bool = True,
    handler: Handler = reraise_exception,
) -> Iterator[Any]:
    """Put `batchsize` items together.

    Each worker has a smaller last batch, unless `partial` is False.

    Args:
        data: The items.
        batchsize: Items in a batch.
        collation_fn: Makes a batch of a list of items; None leaves the list.
        partial: Whether to yield the last batch when it is smaller.
        handler: Called with what `collation_fn` raises; True gives up that batch.
    """
    check_number(batchsize, 1, "batchsize")
    lists = listed(data, batchsize, partial)
    if collation_fn is None:
        return lists
    check_function(collation_fn, 1, "batched(collation_fn=)")
    return handled(lists, collation_fn, handler, "batched")
