"""Columns that a program adds to an index: a whole number of each sample, such as its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torchdata_ais.errors import UsageError
from torchdata_ais.index.form import is_utf8
from torchdata_ais.index.parts import Parts
from torchdata_ais.index.rows import SHOWN
from torchdata_ais.plan.hashing import Integers

if TYPE_CHECKING:
    from torchdata_ais.index.numbered import NumberedSamples

MISSING = -1
"""What stands where nothing is known: of shards that were indexed after the column was added."""


class Columns:
    """The columns of some samples of stored indexes: those stored with them, and such that are not stored yet.

    Args:
        parts: The samples.
        added: What is not stored yet, of all samples of the indexes.
    """

    def __init__(self, parts: Parts, added: Mapping[str, Integers] | None) -> None:
        self._parts = parts
        self.added = dict(added or {})

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        stored = (name for part in self._parts.stored for name in part.head.columns)
        return list(dict.fromkeys([*stored, *self.added]))

    def of(self, name: str) -> Integers:
        """Return a number of each sample that was chosen; `MISSING` where nothing is known.

        Raises:
            UsageError: There is no such column.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            raise UsageError.at(
                f"the index has no column {name!r}; it has {known}", todo="index.with_column(name, values)"
            )
        if name in self.added:
            values, positions = self.added[name], self._parts.positions
            return values if positions is None else values[positions]
        return _stored_column(self._parts, name)

    def whole(self, name: str) -> Integers:
        """Return a number of each sample, chosen or not."""
        return self.added[name] if name in self.added else _stored_column(Parts(self._parts.stored), name)

    def spread(self, values: Integers) -> Integers:
        """Return numbers of the chosen samples as numbers of all; `MISSING` of the others."""
        if self._parts.positions is None:
            return values
        whole = np.full(self._parts.samples, MISSING, dtype=np.int64)
        whole[self._parts.positions] = values
        return whole

    def arrays(self) -> dict[str, pa.Array]:
        """Return all columns of the chosen samples as they are stored."""
        return {name: column_array(self.of(name)) for name in self.names}


def _stored_column(parts: Parts, name: str) -> Integers:
    found = [np.zeros(0, dtype=np.int64)]
    for part, number, rows in parts.selected():
        batch = part.samples(number)
        if name in part.head.columns:
            values = batch.column(name).fill_null(MISSING).to_numpy()
        else:
            values = np.full(len(batch), MISSING, dtype=np.int64)
        found.append(values if rows is None else values[rows])
    return np.concatenate(found)


def check_column(index: NumberedSamples, name: str) -> None:
    """Raise `UsageError` unless a column may have this name."""
    if not isinstance(name, str) or not name or not is_utf8(name):
        raise UsageError.at(
            f"a column was named {name!r:.40}", todo='pass its name as text, such as "tokens"'
        )
    if name in SHOWN.names:
        raise UsageError.at(f"every index has a column {name!r}", todo="take another name")
    if any(name in names for names in index.fields):
        raise UsageError.at(
            f"samples have a field {name!r}", todo="take another name: length= takes names of both"
        )


def values_of(index: NumberedSamples, name: str, values: Any) -> Integers:
    """Return one whole number a sample, as `IndexedSamples.with_column` was given them.

    Raises:
        UsageError: They are of another number, not whole, or below 0; a key is not there.
    """
    if isinstance(values, Mapping):
        try:
            values = [values[key] for key in index.keys]
        except KeyError as error:
            raise UsageError.at(
                f"the column {name!r} was given no value for the sample {error.args[0]!r}",
                todo="pass one for each key; index.select(...) leaves samples out",
                key=error.args[0],
            ) from None
    found = np.asarray(values)
    if found.shape != (len(index),) or (found.dtype.kind not in "iu" and len(index)):
        raise UsageError.at(
            f"the column {name!r} was given values of shape {found.shape} and type {found.dtype} for "
            f"{len(index)} samples",
            todo="pass whole numbers: one a sample, in the order of the index, or a dict by keys",
        )
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < 1 << 63:
        raise UsageError.at(f"the column {name!r} was given {found.min()}", todo="pass numbers from 0 on")
    result: Integers = found.astype(np.int64)
    return result


def column_array(values: Integers) -> pa.Array:
    """Return values as they are stored: null where they are missing."""
    return pa.array(values, mask=values == MISSING)
