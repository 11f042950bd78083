"""Tables, one row a sample: values, and files to take in, by their paths, URLs or bytes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from torchdata_ais.errors import MissingFieldError
from torchdata_ais.store import StoreOptions
from torchdata_ais.writing.sources.files import PICTURES
from torchdata_ais.writing.sources.folder import picture_field
from torchdata_ais.writing.sources.options import SourceOptions
from torchdata_ais.writing.sources.read_rows import read_rows
from torchdata_ais.writing.sources.rows import Row, Rows
from torchdata_ais.writing.sources.source import ListSource
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
    source = TableSource(rows, LoadRow(base, options, seen.fields, seen.files, dict(pictures), numbers))
    source.notes = {"classes": classes} if classes else {}
    return source


class TableSource(ListSource):
    """The rows of a table."""

    load: LoadRow

    def __init__(self, rows: Rows, load: LoadRow) -> None:
        super().__init__("row", range(len(rows)), rows.digest, load)
        self._rows = rows

    def _take(self, positions: Sequence[int]) -> Iterator[tuple[int, Row]]:
        return self._rows.take(positions)

    def paths(self) -> set[str]:
        """Return all paths that rows name, as they stand there, normalised."""
        columns = sorted(self.load.files & self._rows.texts)
        rows = self._rows.take(range(len(self._rows)), columns)
        return {
            posixpath.normpath(value) for _, row in rows for value in row.values() if isinstance(value, str)
        }

    def check_files(self) -> None:
        """Raise `MissingFieldError` if files of this machine that rows name are not there."""
        columns = sorted(self.load.files & self._rows.texts)  # bytes may be all of a Parquet file
        missing: list[tuple[int, str, str]] = []
        for number, row in self._rows.take(self._positions, columns) if columns else ():
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
