"""`Keys`: the column of the samples' keys, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import pyarrow as pa

if TYPE_CHECKING:
    from torchdata_ais.index.numbered import NumberedSamples


class Keys(Sequence[str]):
    """The keys of an index's samples as a lazy Arrow column: nothing is read before it is asked for.

    A sequence of `str`. Arrow takes it as it is (``pyarrow.chunked_array(index.keys)``,
    ``polars.Series("key", index.keys)``), a chunk a shard.

    Memory: the keys of one shard, while they are gone through.
    """

    def __init__(self, index: NumberedSamples) -> None:
        self._index = index

    def chunks(self) -> Iterator[pa.Array]:
        """Yield the keys, an Arrow array a shard."""
        for part, number, rows in self._index.selected():
            column = part.samples(number).column("key")
            yield column if rows is None else column.take(pa.array(rows))

    def to_arrow(self) -> pa.ChunkedArray:
        """Return all of them as one Arrow column, in memory."""
        return pa.chunked_array(list(self.chunks()), type=pa.string())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return them by Arrow's interface for columns in pieces."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks():
            yield from chunk.to_pylist()

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self._index[position].key for position in range(*number.indices(len(self)))]
        return self._index[number].key

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"
