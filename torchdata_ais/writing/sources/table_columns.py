"""What the columns of a table stand for: as their names tell, and their first values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from torchdata_ais.argument_names import did_you_mean
from torchdata_ais.codecs import IMAGE_EXTENSIONS
from torchdata_ais.codecs.fields import FIELD_KINDS
from torchdata_ais.codecs.signs import ending_by_sign
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import UsageError
from torchdata_ais.writing.sources.column_names import by_columns
from torchdata_ais.writing.sources.files import MEDIA, PICTURES, split_ending
from torchdata_ais.writing.sources.rows import Rows

_FILE = "file_name"
CLASS = "cls"
_FILES = frozenset(
    IMAGE_EXTENSIONS
    | {name for kind in ("npy", "npz", "ten", "torch", "cbor", "msgpack") for name in FIELD_KINDS[kind]}
    | {"bin", "gz"}
    | MEDIA
)
_LIKELY = {"caption": "txt", "text": "txt", "label": "cls", "class": "cls", "category": "cls"}
_INTEGER = re.compile(r"[+-]?\d+")
_FEW_CLASSES = 1000
BY_ENDING = frozenset([_FILE, "image", "audio"])
_LOOKED_AT = 100  # rows, for what a table seems to hold


class TableColumns:
    """What the columns of a table stand for, as their names and the first rows tell.

    Args:
        rows: The table.
        columns: What the user calls them.
        url: The table's name, for errors.

    Attributes:
        fields: The field of each column.
        files: The columns that hold or name files.

    Raises:
        UsageError: No column of a name.
    """

    def __init__(self, rows: Rows, columns: Mapping[str, str], url: str) -> None:
        for name in columns:
            if name not in rows.columns:
                todo = f"{did_you_mean(name, rows.columns)} The columns are {', '.join(rows.columns)}"
                raise UsageError.at(f"no row has a column {name!r}", todo=todo.strip(), url=url)
        self._rows, self._url, self._said = rows, url, columns
        self._first = [row for _, row in rows.take(range(min(len(rows), _LOOKED_AT)))]
        self.fields = {name: columns.get(name, name) for name in rows.columns}
        self.files = frozenset(
            name
            for name, field in self.fields.items()
            if field == _FILE
            or field.lower().rpartition(".")[2] in _FILES
            or (field in BY_ENDING and self._kind(name))
        )

    def _kind(self, column: str) -> str:
        """Return what files the values of a column are, by their bytes or their endings; "" for none."""
        kinds = [_kind_of(row[column]) for row in self._first if row.get(column) not in (None, "")]
        return kinds[0] if kinds and all(kinds) else ""

    def check_meant(self) -> None:
        """Raise `UsageError` if there are no files, and a column holds some that nobody called a field."""
        if self.files:
            return
        kinds = {name: self._kind(name) for name in self.fields if name not in self._said}
        found = [name for name, kind in kinds.items() if kind]
        if not found:
            return
        wanted = {found[0]: "jpg" if kinds[found[0]] in PICTURES else kinds[found[0]]}
        taken = set(self.fields.values())
        for name, field in _LIKELY.items():
            if name in self.fields and name not in self._said and field not in {*taken, *wanted.values()}:
                wanted[name] = field
        raise UsageError.at(
            f"the column {found[0]!r} holds pictures or sound, and no column is said to",
            todo=Remedy(
                *by_columns("name the fields with {}", wanted),
                *by_columns("let it stay text: {}", {found[0]: found[0]}),
            ),
            url=self._url,
        )

    def endings(self) -> set[str]:
        """Return the endings of the files whose fields are named by them."""
        columns = [name for name in self.files if self.fields[name] in BY_ENDING]
        found = {self._kind(name) for name in columns}
        texts = sorted(self._rows.texts.intersection(columns))
        for _, row in self._rows.take(range(len(self._rows)), texts) if texts else ():
            found.update(ending_of(value) for name in texts if isinstance(value := row.get(name), str))
        return found

    def classes(self) -> tuple[list[str], dict[str, int]]:
        """Return the names of the classes, and the number of each that stands for itself in the table."""
        column = next((name for name, field in self.fields.items() if field == CLASS), None)
        if column is None:
            return [], {}
        if named := self._rows.labels(column):
            return named, {}
        values = {row.get(column) for _, row in self._rows.take(range(len(self._rows)), [column])}
        values -= {None, ""}
        if all(map(_is_number, values)) or not all(isinstance(value, str | int) for value in values):
            return [], {}  # of what is no class, encoding says so, with the row
        names = sorted(str(value) for value in values)
        if len(names) > max(_FEW_CLASSES, len(self._rows) // 2):
            raise UsageError.at(
                f"the column {column!r} has {len(names)} different values: hardly classes",
                todo=Remedy(*by_columns("text is {}", {column: "txt"})),
                url=self._url,
            )
        return names, {name: number for number, name in enumerate(names)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and _INTEGER.fullmatch(value) is not None)


def _kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return _kind_of(value.get("bytes")) or _kind_of(value.get("path"))
    if isinstance(value, bytes):
        return ending_by_sign(value)
    if isinstance(value, str) and "\n" not in value:
        return ending if (ending := ending_of(value)) in MEDIA else ""
    return ""


def ending_of(path: str) -> str:
    """Return the ending of a path, or of the path of a URL.

    Example:
        >>> ending_of("https://h/a.JPG?w=3"), ending_of("b/c.d/e")
        ('jpg', '')
    """
    return split_ending(urlsplit(path).path if "://" in path else path)[1]
