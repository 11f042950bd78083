"""The rows of Parquet files."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from torchdata_ais.errors import ReadError, UsageError
from torchdata_ais.store.naming import naming
from torchdata_ais.writing.sources.rows import Row, Rows

_ROWS_AT_ONCE = 64


class ParquetRows(Rows):
    """Rows of Parquet files, one after the other. In their order a few are in memory; in another one all.

    Args:
        files: What pyarrow opens, with the name of each.

    Raises:
        UsageError: One is no Parquet file, or has other columns than the first.
    """

    def __init__(self, files: Sequence[tuple[str, Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._files: list[Any] = []
        digest = xxhash.xxh64()
        for name, file in files:
            try:
                with naming(name):
                    found = pq.ParquetFile(file, memory_map=isinstance(file, str))
            except pa.ArrowException as error:
                raise UsageError.at(
                    f"the table cannot be read: {str(error).rstrip('.')}",
                    todo="check that it is a whole Parquet file",
                    url=name,
                ) from error
            names = found.schema_arrow.names
            if self._files and names != self._files[0].schema_arrow.names:
                raise UsageError.at(
                    f"the columns {', '.join(names)} are not those of the first table",
                    todo="convert them one by one",
                    url=name,
                )
            self._files.append(found)
            groups = [found.metadata.row_group(number) for number in range(found.metadata.num_row_groups)]
            sizes = [(group.num_rows, group.total_byte_size) for group in groups]
            digest.update(f"{found.schema_arrow} {sizes}\n".encode())
        schema = self._files[0].schema_arrow
        self.columns = list(schema.names)
        self.digest = digest.hexdigest()
        self.texts = frozenset(
            field.name for field in schema if field.type in (pa.string(), pa.large_string())
        )
        self._ends: list[int] = list(itertools.accumulate(file.metadata.num_rows for file in self._files))

    def __len__(self) -> int:
        return self._ends[-1]

    def take(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:
        """Yield rows with their numbers; ascending ones as they are read."""
        wanted = list(columns) if columns is not None else None
        if any(after < before for before, after in itertools.pairwise(numbers)):
            yield from self._scattered(numbers, wanted)
            return
        begin = taken = 0
        for file in self._files:
            for group in range(file.metadata.num_row_groups):
                end = begin + file.metadata.row_group(group).num_rows
                inside = numbers[taken : bisect_left(numbers, end, taken)]
                rows = enumerate(_of_group(file, group, wanted), begin)
                for number in inside:
                    yield next(entry for entry in rows if entry[0] == number)
                begin, taken = end, taken + len(inside)

    def _scattered(self, numbers: Sequence[int], columns: list[str] | None) -> Iterator[tuple[int, Row]]:
        import pyarrow as pa

        table = pa.concat_tables([file.read(columns) for file in self._files])
        for number in numbers:  # a row by itself: taking of large columns at once would copy them
            yield number, _plain(table.slice(number, 1).to_pylist()[0])

    def labels(self, column: str) -> list[str] | None:
        """Return the names of Hugging Face's ``ClassLabel``, which stand in the file's metadata."""
        noted = (self._files[0].schema_arrow.metadata or {}).get(b"huggingface")
        try:
            names = json.loads(noted)["info"]["features"][column]["names"] if noted else None
        except (ValueError, KeyError, TypeError):
            return None
        return [str(name) for name in names] if isinstance(names, list) else None


def _of_group(file: Any, group: int, columns: list[str] | None) -> Iterator[Row]:
    import pyarrow as pa

    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns):
            for row in batch.to_pylist():
                yield _plain(row)
    except (pa.ArrowException, OSError) as error:
        raise ReadError.at(
            f"row group {group} of the table cannot be read: {error}", todo="check that the file is whole"
        ) from error


def _plain(row: Row) -> Row:
    """Return a row without values that JSON does not know."""
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    return value
