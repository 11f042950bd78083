"""Tables, one row a sample: values, and files to take in, by their paths, URLs or bytes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.writing.sources.files import OUTSIDE_CELL, PICTURES, Omitted
from torchdata_ais.writing.sources.folder import picture_field
from torchdata_ais.writing.sources.options import SourceOptions
from torchdata_ais.writing.sources.read_rows import read_rows
from torchdata_ais.writing.sources.rows import Row, Rows
from torchdata_ais.writing.sources.source import ListSource, left_out
from torchdata_ais.writing.sources.table_columns import TableColumns
from torchdata_ais.writing.sources.table_row import LONGEST, LoadRow, no_file


def table(
    urls: str | Sequence[str],
    options: StoreOptions,
    *,
    root: str | None = None,
    columns: Mapping[str, str] | None = None,
    source_options: SourceOptions | None = None,
) -> TableSource:
    r"""Return the rows of a table as a source of samples, in their order.

    ==========================================  ==================================================================
    column                                      gives
    ==========================================  ==================================================================
    ``__key__`` or ``key``                      the key; without it, the row's number with nine digits
    ``file_name`` (as in Hugging Face's layout)  a file to take in; its ending names the field
    ``jpg``, ``seg.png``, ``npy``, ...          a file to take in, for the field of that name: a path, a URL, or bytes
    ``image``, ``audio`` of a Parquet file       the same, if it holds bytes or Hugging Face's ``{bytes, path}``
    ``txt``, ``cls``, ``json``, ...             the value of the field of that name
    any other                                   one entry of the field ``json``
    ==========================================  ==================================================================

    Classes that are words become the numbers of these words in their order. An empty cell of a CSV table, or null,
    gives nothing. Memory: a table of text; of a Parquet file 64 rows, or all of it if it is shuffled.

    Args:
        urls: A ``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson`` or ``.parquet`` file or object, or several Parquet files.
        options: Transport settings.
        root: What paths of files are relative to; default the folder or prefix of the table.
        columns: What to call columns: ``{"image_path": "jpg", "label": "cls"}``.
        source_options: ``image_field`` of it counts here.

    Raises:
        NotFoundError: There is no such table, or it is empty.
        UsageError: It cannot be parsed, lacks a column of `columns`, or names pictures in a column that it does not say
            to be one.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jpg").write_bytes(b"...")
        >>> _ = (folder / "pets.csv").write_text("file_name,label,owner\na.jpg,3,Ann\n")
        >>> source = table(str(folder / "pets.csv"), StoreOptions(), columns={"label": "cls"})
        >>> [source.load(item) for _, item in source.items()]
        [{'__key__': '000000000', 'jpg': b'...', 'cls': '3', 'json': {'owner': 'Ann'}}]
    """
    names = [urls] if isinstance(urls, str) else list(urls)
    rows = read_rows(names, options)
    seen = TableColumns(rows, dict(columns or {}), names[0])
    seen.check_meant()
    base = (root if root is not None else names[0].rpartition("/")[0] or ".").rstrip("/") or "/"
    one = picture_field(seen.endings(), source_options or SourceOptions())
    pictures = dict.fromkeys(PICTURES, next(iter(one.values()), "jpg")) if len(set(one.values())) < 2 else one
    classes, numbers = seen.classes()
    outside = source_options is not None and source_options.allow_outside
    load = LoadRow(base, options, seen.fields, seen.files, dict(pictures), numbers, outside)
    source = TableSource(rows, load)
    source.notes = {"classes": classes} if classes else {}
    return source


class TableSource(ListSource):
    """The rows of a table."""

    load: LoadRow

    def __init__(self, rows: Rows, load: LoadRow) -> None:
        self._rows = rows
        self._columns = sorted(load.files & rows.texts)  # bytes may be all of a Parquet file
        omitted = Omitted()
        kept: Sequence[int] = range(len(rows))
        if self._columns and not load.outside:
            led_out = set(self._outside(load, omitted))
            kept = [number for number in kept if number not in led_out] if led_out else kept
        if not kept and len(rows):
            (reason, (_, first)) = next(iter(omitted.items()))
            raise UsageError.at(
                f"every row has {reason}: {first}",
                todo="if you trust the author of the table, pass allow_outside=True",
                url=load.base,
            )
        super().__init__("row", kept, rows.digest, load)
        self.left_out = left_out(omitted)

    def _outside(self, load: LoadRow, omitted: Omitted) -> Iterator[int]:
        """Yield the rows whose cells lead out of the folder of the table."""
        for number, row in self._rows.take(range(len(self._rows)), self._columns):
            for column in self._columns:
                value = row.get(column)
                if isinstance(value, str) and value and load.leads_out(value):
                    omitted.add(OUTSIDE_CELL, f"row {number + 1}, {value:.200}")
                    yield number
                    break

    def _take(self, positions: Sequence[int]) -> Iterator[tuple[int, Row]]:
        kept = self._items
        return self._rows.take(positions if isinstance(kept, range) else [kept[one] for one in positions])

    def paths(self) -> set[str]:
        """Return all paths that rows name, as they stand there, normalised."""
        columns = sorted(self.load.files & self._rows.texts)
        rows = self._rows.take(range(len(self._rows)), columns)
        return {
            posixpath.normpath(value) for _, row in rows for value in row.values() if isinstance(value, str)
        }

    def check_files(self) -> None:
        """Raise `MissingFieldError` if files of this machine that rows name are not there."""
        columns = self._columns
        missing: list[tuple[int, str, str]] = []
        for number, row in (
            self._rows.take([self._items[one] for one in self._positions], columns) if columns else ()
        ):
            for column in columns:
                value = row.get(column)
                path = self.load.where(value) if isinstance(value, str) and value else ""
                if path and "://" not in path and not os.path.isfile(path):  # noqa: PTH113 - of a million
                    missing.append((number, column, str(value)))
        if missing:
            number, column, value = missing[0]
            more = f"; {len(missing)} of {len(self._positions)} are missing" if len(missing) > 1 else ""
            raise MissingFieldError.at(
                f"row {number + 1}, column {column!r}: no such file{more}",
                todo=no_file(value),
                url=self.load.where(value)[:LONGEST],
                field=column,
            )
