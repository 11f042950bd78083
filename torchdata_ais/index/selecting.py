"""Which samples are meant: by a mask, by numbers, or by columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from torchdata_ais.arguments import check_function
from torchdata_ais.errors import UsageError
from torchdata_ais.index.rows import SHOWN
from torchdata_ais.plan.hashing import Integers

Selection: TypeAlias = npt.ArrayLike | pc.Expression | Callable[[pa.RecordBatch], Any]
"""What `select` takes."""

_ROW = "__row__"


def selected_numbers(
    which: Selection, length: int, batches: Callable[[], Iterator[pa.RecordBatch]]
) -> Integers:
    """Return the numbers of the samples that `which` means, in ascending order.

    Args:
        which: As for `IndexedSamples.select`.
        length: How many samples there are.
        batches: Gives their rows.
    """
    if isinstance(which, pc.Expression):
        return _chosen_by(lambda batch: _where(which, batch), batches())
    if callable(which):
        check_function(which, 1, "select()")
        return _chosen_by(lambda batch: _mask(_answer(which, batch), len(batch)), batches())
    chosen = np.asarray(which)
    if chosen.dtype == bool:
        return np.flatnonzero(_mask(chosen, length))
    if chosen.size == 0:
        return np.zeros(0, dtype=np.int64)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        raise UsageError.at(
            f"select() got values of type {chosen.dtype}",
            todo="pass a mask, numbers of samples, an expression of pyarrow.compute (pc.field('size') > 1000), or a "
            "function of a batch of rows",
        )
    ordered: Integers = np.sort(chosen.astype(np.int64))
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeats):
        raise UsageError.at(
            f"select() got sample {repeats[0]} twice",
            todo="an index has each sample once; weights repeat samples",
        )
    if ordered[0] < 0 or ordered[-1] >= length:
        raise UsageError.at(
            f"select() got samples {ordered[0]} to {ordered[-1]} of {length}",
            todo="numbers begin at 0",
        )
    return ordered


def _chosen_by(
    choose: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]], batches: Iterator[pa.RecordBatch]
) -> Integers:
    found, begin = [np.zeros(0, dtype=np.int64)], 0
    for batch in batches:
        found.append(np.flatnonzero(choose(batch)) + begin)
        begin += len(batch)
    return np.concatenate(found)


def _where(expression: pc.Expression, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows the expression is true for."""
    table = pa.Table.from_batches([batch]).append_column(_ROW, [pa.array(np.arange(len(batch)))])
    mask = np.zeros(len(batch), dtype=np.bool_)
    try:
        mask[table.filter(expression).column(_ROW).to_numpy()] = True
    except (pa.ArrowException, KeyError) as error:
        reason = str(error).partition(" in ")[0].partition("\n")[0]  # then it lists our own column, too
        raise UsageError.at(
            f"select() cannot use {expression}: {reason}", todo=f"use the columns {', '.join(SHOWN.names)}"
        ) from None
    return mask


def _answer(which: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch) -> Any:
    """Return what a function says of the rows."""
    try:
        return which(batch)
    except KeyError as error:  # pyarrow's, of a column that there is not
        raise UsageError.at(
            f"the function given to select() asks for what there is not: {error}",
            todo=f"use the columns {', '.join(SHOWN.names)}",
        ) from error
    except AttributeError as error:
        raise UsageError.at(
            f"the function given to select() fails: {error}",
            todo="it gets a pyarrow.RecordBatch, many rows at once: use functions of pyarrow.compute",
        ) from error


def _mask(values: Any, length: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(values, dtype=bool)
    if mask.shape != (length,):
        raise UsageError.at(
            f"a mask of {mask.size} values for {length} samples", todo="give one value a sample"
        )
    return mask


def side_of_keys(keys: Iterable[str], count: int, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which of the keys are among about `fraction` of them: by XXH64 of seed and key alone.

    Raises:
        UsageError: `fraction` is not between 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise UsageError.at(f"fraction={fraction!r}", todo="pass 0 to 1")
    limit, word = int(fraction * 2**64), seed & 0xFFFFFFFFFFFFFFFF
    sides = (xxhash.xxh64_intdigest(key.encode(), word) < limit for key in keys)
    return np.fromiter(sides, dtype=np.bool_, count=count)
