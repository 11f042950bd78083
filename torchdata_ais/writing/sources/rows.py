"""Rows of tables."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import decimal
import io
import itertools
import json
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from torchdata_ais._util.files import naming
from torchdata_ais.errors import NotFoundError, ReadError, UsageError
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.urls import parse_url, redact

Row = dict[str, Any]


class Rows(ABC):
    """The rows of a table, by number.

    Attributes:
        columns: The names of the columns.
        digest: Changes when the table does.
        texts: Columns that may hold text.
    """

    columns: list[str]
    digest: str
    texts: frozenset[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:
        """Yield rows with their numbers, in this order; `columns` saves reading."""

    def labels(self, column: str) -> list[str] | None:  # noqa: ARG002 - only Parquet files have them
        """Return the table's own names for the numbers of a column, if any."""
        return None


class ListedRows(Rows):
    """Rows in memory."""

    def __init__(self, rows: list[Row], digest: str) -> None:
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        self.digest = digest
        self.texts = frozenset(self.columns)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:  # noqa: ARG002
        """Yield rows with their numbers."""
        return ((number, self._rows[number]) for number in numbers)


_ROWS_AT_ONCE = 64


class ParquetRows(Rows):
    """Rows of Parquet files, one after the other.

    In their order a few are in memory; in another one all. `files` are arguments of pyarrow, with the name of each.
    """

    def __init__(self, files: Sequence[tuple[str, object]]) -> None:
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
            import pyarrow as pa

            table = pa.concat_tables([file.read(wanted) for file in self._files])
            for number in numbers:  # a row by itself: taking of large columns at once would copy them
                yield number, _plain(table.slice(number, 1).to_pylist()[0])
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

    def labels(self, column: str) -> list[str] | None:
        """Return the names of Hugging Face's ``ClassLabel``, from file metadata."""
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


def _plain_value(value: object) -> object:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    return value


def rows_of_text(content: bytes, url: str) -> list[Row]:
    """Return the rows of a table from its bytes; `url` ends in its type."""
    try:
        text = content.decode("utf-8-sig")
        return _json_rows(text) if url.lower().endswith(("jsonl", "ndjson")) else _csv_rows(text, url)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError.at(
            f"the table cannot be parsed: line {line} is not UTF-8 (byte 0x{content[error.start]:02x})",
            todo=f"convert it: iconv -f {likely_encoding(content)} -t utf-8",
            url=url,
            offset=error.start,
        ) from None
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError.at(f"the table cannot be parsed: {error}", todo="mend that line", url=url) from error


def likely_encoding(content: bytes) -> str:
    r"""Return the likely encoding of text that is not UTF-8, by iconv's name.

    Example:
        >>> likely_encoding("a".encode("utf-16")), likely_encoding("\xe9".encode("latin1"))
        ('utf-16', 'latin1')
    """
    return "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"


def _csv_rows(text: str, url: str) -> list[Row]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text, url), strict=True)
    begin = 1
    rows: list[Row] = []
    try:
        header = next(lines, [])
        begin = lines.line_num + 1
        _check_header(header, url)
        for cells in lines:
            if cells and len(cells) != len(header):
                raise UsageError.at(
                    f"line {lines.line_num} has {len(cells)} cells for {len(header)} columns",
                    todo='mend it; a cell with commas stands in quotes: "a, b"',
                    url=url,
                )
            if cells:
                rows.append(dict(zip(header, (cell or None for cell in cells), strict=True)))
            begin = lines.line_num + 1
    except csv.Error as error:
        todo = "mend that line; a quote that opens a cell has to close it"
        if "field limit" in str(error):
            todo = f"write tables with cells above {csv.field_size_limit()} characters as .jsonl or .parquet"
        raise UsageError.at(
            f"the table cannot be parsed: the row that begins in line {begin}: {error}", todo=todo, url=url
        ) from error
    return rows


def _separator(text: str, url: str) -> str:
    """Return the separator: spreadsheets put semicolons or tabs into a .csv."""
    if url.lower().endswith("tsv"):
        return "\t"
    header = text.split("\n", 1)[0]
    return "," if "," in header else next((mark for mark in "\t;" if mark in header), ",")


def _check_header(header: list[str], url: str) -> None:
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise UsageError.at(f"two columns have the same name {twice!r}", todo="rename one", url=url)
    path = next((name for name in header if "/" in name), None)
    if path is not None:
        raise UsageError.at(
            f"the first line of a table names its columns, and {path!r:.200} is no such name",
            todo="put a line above it, such as image_path,caption",
            url=url,
        )


def _json_rows(text: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object")
        rows.append(row)
    return rows


def read_rows(urls: Sequence[str], options: StoreOptions) -> Rows:
    """Return the rows of a table in UTF-8, or of several Parquet files."""
    if urls[0].lower().endswith("parquet"):
        rows: Rows = ParquetRows([(redact(url), _opened(url, options)) for url in urls])
    elif len(urls) > 1:
        raise UsageError.at(
            "several tables that are no Parquet files", todo="convert them one by one", url=urls[1]
        )
    else:
        content = read_bytes(urls[0], options)
        rows = ListedRows(rows_of_text(content, urls[0]), xxhash.xxh64_hexdigest(content))
    if not len(rows):
        raise NotFoundError.at("the table has no row", url=urls[0])
    return rows


def read_bytes(url: str, options: StoreOptions) -> bytes:
    """Return a whole file or object, verified."""
    with open_blocks(url, options) as blocks:
        return b"".join(blocks)


def _opened(url: str, options: StoreOptions) -> object:
    """Return the path of a file, or an object's bytes."""
    import pyarrow as pa

    place = parse_url(url)
    if place.kind != "file":
        return pa.BufferReader(read_bytes(url, options))
    with open_blocks(place, options) as blocks:  # whether it is there, in words of this package
        next(iter(blocks), b"")
    return place.name
