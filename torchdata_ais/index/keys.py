"""`Keys`: the column of the samples' keys, read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import pyarrow as pa


class Keys(Sequence[str]):
    """The keys of an index's samples as a lazy Arrow column: nothing is read before it is asked for.

    A sequence of `str`. Arrow takes it as it is (``pyarrow.chunked_array(index.keys)``,
    ``polars.Series("key", index.keys)``), a chunk a shard.

    Memory: the keys of one shard, while they are gone through.
    """

    def __init__(
        self, length: int, chunks: Callable[[], Iterator[pa.Array]], key_at: Callable[[int], str]
    ) -> None:
        self._length = length
        self._chunks = chunks
        self._key_at = key_at

    def chunks(self) -> Iterator[pa.Array]:
        """Yield the keys, an Arrow array a shard."""
        return self._chunks()

    def to_arrow(self) -> pa.ChunkedArray:
        """Return all of them as one Arrow column, in memory."""
        return pa.chunked_array(list(self._chunks()), type=pa.string())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return them by Arrow's interface for columns in pieces."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks():
            yield from chunk.to_pylist()

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self._key_at(position) for position in range(*number.indices(self._length))]
        return self._key_at(number)

    def __repr__(self) -> str:
        return f"<{self._length} keys>"
