"""Tables as sources."""

from __future__ import annotations

import base64
import math
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from torchdata_ais._util.arguments import did_you_mean
from torchdata_ais.codecs import IMAGE_EXTENSIONS, EncodeError
from torchdata_ais.codecs.handlers import FIELD_KINDS, ending_by_sign
from torchdata_ais.errors import MissingFieldError, NotFoundError, SampleError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.samples import Fields
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import ShardPlaces, below_fault, parse_url, path_fault, redact, shown_name
from torchdata_ais.writing.sources.files import MEDIA, OUTSIDE_CELL, PICTURES, Omitted, split_ending
from torchdata_ais.writing.sources.folder import picture_field
from torchdata_ais.writing.sources.rows import Row, Rows, read_bytes, read_rows
from torchdata_ais.writing.sources.source import ListSource, SourceOptions, by_columns, left_out

_FILE = "file_name"
CLASS = "cls"
_FILES = frozenset(
    IMAGE_EXTENSIONS
    | {name for kind in ("npy", "npz", "ten", "torch", "cbor", "msgpack") for name in FIELD_KINDS[kind]}
    | {"bin", "gz"}
    | MEDIA
)
_LIKELY = {"caption": "txt", "text": "txt", "label": "cls", "class": "cls", "category": "cls"}
_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0+)?")
_INTEGERS = frozenset(FIELD_KINDS["integer"])
_TEXTS = frozenset(FIELD_KINDS["text"])
_FEW_CLASSES = 1000
BY_ENDING = frozenset([_FILE, "image", "audio"])
_LOOKED_AT = 100  # rows, to guess the contents of a table


class TableColumns:
    """Fields of the columns of a table, from their names and the first rows.

    The `files` are the columns that hold or name files.
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
        """Return the kind of file in a column, by bytes or endings; "" for none."""
        kinds = [_kind_of(row[column]) for row in self._first if row.get(column) not in (None, "")]
        return kinds[0] if kinds and all(kinds) else ""

    def check_meant(self) -> None:
        """Raise `UsageError` if no column is a file, but one could be."""
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
        """Return the names of the classes, and the numbers of numeric classes."""
        column = next((name for name, field in self.fields.items() if field == CLASS), None)
        if column is None:
            return [], {}
        if named := self._rows.labels(column):
            return named, {}
        values = {row.get(column) for _, row in self._rows.take(range(len(self._rows)), [column])}
        values -= {None, ""}
        if all(isinstance(_whole(value), int | None) for value in values) or not all(
            isinstance(value, str | int) for value in values
        ):
            return [], {}  # encoding reports values that are not classes, with the row
        names = sorted(str(value) for value in values)
        if len(names) > max(_FEW_CLASSES, len(self._rows) // 2):
            raise UsageError.at(
                f"the column {column!r} has {len(names)} different values: hardly classes",
                todo=Remedy(*by_columns("text is {}", {column: "txt"})),
                url=self._url,
            )
        return names, {name: number for number, name in enumerate(names)}


def _whole(value: object) -> object:
    """Return the whole number that a label is, None of NaN, else the value.

    pandas makes floats of integers with gaps.

    Example:
        >>> _whole(2.0), _whole("2.0"), _whole("+3"), _whole("2021_05"), _whole(float("nan"))
        (2, 2, 3, '2021_05', None)
    """
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    found = _WHOLE.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found else value


def _kind_of(value: object) -> str:
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


LONGEST = 300
"""Characters of a cell that are shown; no path is much longer."""

_LONGEST_PATH = 4096
_BASE64 = ("/9j/", "iVBORw0KGgo", "UklGR", "R0lGOD")  # JPEG, PNG, RIFF, GIF
_KEYS = ("__key__", "key")
_VALUES = frozenset(name for kind in ("text", "integer", "json", "jsonl") for name in FIELD_KINDS[kind])
_NEVER_EMPTY = (_VALUES - _TEXTS) | set(_KEYS)


def no_file(value: str) -> Remedy:
    """Return the remedy for a cell that names a missing file."""
    if len(value) > LONGEST or value.startswith(_BASE64):
        return Remedy(
            "write bytes in base64 as data:image/jpeg;base64,..., or as bytes into a .parquet table"
        )
    return Remedy("paths are relative to the table", "; pass root= for another place")


@dataclass(frozen=True)
class LoadRow:
    """Turns a row into a sample, and reads the files that it names."""

    base: str
    options: StoreOptions
    fields: Mapping[str, str]
    files: frozenset[str]
    pictures: Mapping[str, str]
    numbers: Mapping[str, int]
    outside: bool = False

    # Many branches: a cell is a file, a class, a value or bytes by its column and content, and each can be wrong.
    def __call__(self, item: tuple[int, Row]) -> Fields:
        """Return the sample."""
        number, cells = item
        counted = number + 1  # as people count, below the header
        row: dict[str, tuple[str, Any]] = {}
        for column, value in cells.items():
            name = self.fields[column]
            ending = name.lower().rpartition(".")[2]
            if ending in _INTEGERS and not (name == CLASS and str(value) in self.numbers):
                value = _whole(value)  # noqa: PLW2901
            if value is None or (value == "" and (column in self.files or ending in _NEVER_EMPTY)):
                continue
            if name in row:
                raise UsageError.at(
                    f"row {counted} has two columns for {name!r}", todo="rename one with columns="
                )
            row[name] = column, value
        key = next((str(row.pop(name)[1]) for name in _KEYS if name in row), f"{number:09d}")
        if self.files and not any(column in self.files for column, _ in row.values()):
            raise MissingFieldError.at(
                f"row {counted} names no file: {', '.join(sorted(self.files))} is empty",
                todo=Remedy("fill it in", 'go on without it by on_error="skip"'),
                key=key,
            )
        sample: Fields = {"__key__": key}
        rest: Fields = {}
        for name, (column, value) in row.items():
            where = f"row {counted}, column {column!r}"
            if column in self.files:
                data, path = self._file(value, where, key)
                self._put(sample, self._field(name, path, data, where, key), data)
            elif name == CLASS and str(value) in self.numbers:
                sample[name] = self.numbers[str(value)]
            elif name.lower().rpartition(".")[2] in _VALUES:
                self._put(sample, name, value)
            elif isinstance(value, bytes):
                raise EncodeError.at(
                    f"{where} holds bytes, and its name is that of no field",
                    todo=Remedy(
                        *by_columns("name the field with {}", {column: ending_by_sign(value) or "bin"})
                    ),
                    key=key,
                    field=name,
                )
            else:
                rest[name] = value
        if rest:
            self._put_rest(sample, rest, row.get("json", ("",))[0])
        return sample

    def numbered(self, classes: Sequence[str]) -> LoadRow:
        """Return the same with classes numbered as in `classes`, if it has any."""
        if not self.numbers:
            raise UsageError.at(
                "the classes beside the shards have other numbers than those of the table",
                todo=Remedy("write to a folder or prefix of its own", "pass overwrite=True"),
            )
        return replace(self, numbers={name: number for number, name in enumerate(classes)})

    def where(self, path: str) -> str:
        """Return the path of a cell, relative to the table."""
        return path if "://" in path or path.startswith("/") else f"{self.base}/{path}"

    def leads_out(self, path: str) -> bool:
        """Report whether a cell names a URL, or a path outside the table's folder."""
        if path.startswith("data:") or len(path) > _LONGEST_PATH:  # bytes, which no_file() explains
            return False
        full, base = self.where(path), parse_url(self.base)
        if base.kind == "file":
            return parse_url(full).kind != "file" or bool(path_fault(self.base, parse_url(full).name))
        if full != path:
            return bool(below_fault(path))
        named = parse_url(path)
        if named.kind == "object" and named.endpoint == self.options.endpoint and not named.params:
            path = named.uri  # the URL of an object in the same cluster
        return bool(ShardPlaces.of([f"{base.uri}/"]).fault(path))

    def _put_rest(self, sample: Fields, rest: Fields, column: str) -> None:
        """Put the values without a field into ``json``, next to its own entries."""
        entries = sample.pop("json", {})
        if not isinstance(entries, dict):
            raise EncodeError.at(
                f"the column {column!r} is no object, so that {', '.join(rest)} cannot stand in json beside it",
                todo=Remedy("name it otherwise", *by_columns("as a whole field: {}", {column: "tags.json"})),
                key=sample["__key__"],
                field="json",
            )
        if both := sorted(rest.keys() & entries.keys()):
            raise EncodeError.at(
                f"both the column {column!r} and the table have {', '.join(both)} for the field json",
                todo=Remedy(*by_columns("keep them apart: {}", {column: f"{column}.json"})),
                key=sample["__key__"],
                field="json",
            )
        self._put(sample, "json", {**rest, **entries})

    def _put(self, sample: Fields, field: str, value: object) -> None:
        if field in sample:
            raise EncodeError.at(
                f"two columns give the field {field!r}",
                todo="rename one with columns=",
                key=sample["__key__"],
                field=field,
            )
        sample[field] = value

    def _file(self, value: object, where: str, key: str) -> tuple[bytes, str]:
        """Return the bytes that a cell holds or names, and their name."""
        path = ""
        if isinstance(value, Mapping):
            path = str(value.get("path") or "")
            value = value.get("bytes") if value.get("bytes") is not None else path
        if isinstance(value, str) and value.startswith("data:"):
            value = base64.b64decode(value.partition(",")[2])
        if isinstance(value, str) and value:
            path = value
            value = self._read(value, where, key)
        if not isinstance(value, bytes):
            raise EncodeError.at(
                f"{where} holds a {type(value).__name__}, and no path, URL or bytes",
                todo="name another field with columns=",
                key=key,
            )
        if not value:
            raise SampleError.at(
                f"{where}: the file is empty",
                todo=Remedy("mend it", 'go on without it by on_error="skip"'),
                key=key,
            )
        return value, path

    def _read(self, path: str, where: str, key: str) -> bytes:
        if not self.outside and self.leads_out(path):
            raise UsageError.at(
                f"{where}: {shown_name(path)} is a URL or a file outside of {redact(self.base)}",
                todo="if you trust the author of the table, pass allow_outside=True",
                key=key,
            )
        try:
            return read_bytes(self.where(path), self.options)
        except NotFoundError as error:
            raise MissingFieldError.at(
                f"{where}: {error.what:.300}",
                todo=no_file(path),
                url=redact(self.where(path)[:LONGEST]),
                key=key,
            ) from error

    def _field(self, name: str, path: str, data: bytes, where: str, key: str) -> str:
        if name not in BY_ENDING:
            return name
        ending = ending_of(path) or ending_by_sign(data)
        if not ending:
            raise EncodeError.at(
                f"{where}: the file {path!r} has no ending to name its field",
                todo=Remedy(*by_columns("name the field with {}", {"file_name": "jpg"})),
                key=key,
            )
        return self.pictures.get(ending, "jpg" if ending == "jpeg" else ending)


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
    gives nothing; an empty text is one. Memory: a table of text; of a Parquet file 64 rows, or all of it if it is
    shuffled.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jpg").write_bytes(b"...")
        >>> _ = (folder / "pets.csv").write_text("file_name,label,owner\na.jpg,3,Ann\n")
        >>> source = table(str(folder / "pets.csv"), StoreOptions(), columns={"label": "cls"})
        >>> [source.load(item) for _, item in source.items()]
        [{'__key__': '000000000', 'jpg': b'...', 'cls': 3, 'json': {'owner': 'Ann'}}]
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
        """Return all paths of the rows, as written there, normalised."""
        rows = self._rows.take(range(len(self._rows)), self._columns)
        return {
            posixpath.normpath(value) for _, row in rows for value in row.values() if isinstance(value, str)
        }

    def check_files(self) -> None:
        """Raise `MissingFieldError` if local files that rows name are missing."""
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
