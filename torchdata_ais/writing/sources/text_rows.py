"""Tables of text: what separates and encodes them is told by their bytes."""

from __future__ import annotations

import codecs
import csv
import io
import json

from torchdata_ais.errors import UsageError
from torchdata_ais.writing.sources.rows import Row


def rows_of_text(content: bytes, url: str) -> list[Row]:
    """Return the rows of a table by its bytes; the ending of `url` says what it is."""
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
    r"""Return what text that is no UTF-8 is likely in, as iconv calls it.

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
                rows.append(dict(zip(header, cells, strict=True)))
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
    """Return what parts the cells: spreadsheets of many countries write semicolons, or tabs, into a .csv."""
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
