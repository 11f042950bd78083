"""Tables, one row a sample: CSV, TSV and JSON lines that hold values, and name files to take in."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from torchdata_ais.codecs import IMAGE_EXTENSIONS, EncodeError
from torchdata_ais.codecs.fields import FIELD_KINDS
from torchdata_ais.errors import MissingFieldError, NotFoundError, UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.writing.inputs import ListSource, read_bytes

__all__ = ["table"]

_KEYS = ("__key__", "key")
_FILE = "file_name"
_VALUES = frozenset(name for kind in ("text", "integer", "json", "jsonl") for name in FIELD_KINDS[kind])
_FILES = frozenset(
    IMAGE_EXTENSIONS
    | {name for kind in ("npy", "npz", "ten", "torch", "cbor", "msgpack") for name in FIELD_KINDS[kind]}
    | {"bin", "gz"}
    | {"wav", "flac", "mp3", "ogg", "m4a", "mp4", "webm", "avi", "mov", "mkv"}
)


def table(
    url: str, options: StoreOptions, *, root: str | None = None, columns: Mapping[str, str] | None = None
) -> ListSource:
    r"""Return the rows of a table as a source of samples, in their order.

    ==========================================  ==================================================================
    column                                      gives
    ==========================================  ==================================================================
    ``__key__`` or ``key``                      the key; without it, the row's number with nine digits
    ``file_name`` (as in Hugging Face's layout)  a file to take in; its ending names the field
    ``jpg``, ``seg.png``, ``npy``, ...          a file to take in, for the field of that name
    ``txt``, ``cls``, ``json``, ...             the value of the field of that name
    any other                                   one entry of the field ``json``
    ==========================================  ==================================================================

    An empty cell of a CSV table, or null, gives nothing. Memory: the table.

    Args:
        url: A ``.csv``, ``.tsv``, ``.jsonl`` or ``.ndjson`` file or object, in UTF-8.
        options: Transport settings.
        root: What paths of files are relative to; default the folder or prefix of the table.
        columns: What to call columns: ``{"image_path": "jpg", "label": "cls"}``.

    Raises:
        NotFoundError: There is no such table, or it is empty.
        UsageError: It cannot be parsed, or lacks a column of `columns`.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jpg").write_bytes(b"...")
        >>> _ = (folder / "pets.csv").write_text("file_name,label,owner\na.jpg,3,Ann\n")
        >>> source = table(str(folder / "pets.csv"), StoreOptions(), columns={"label": "cls"})
        >>> [source.load(item) for _, item in source.items()]
        [{'__key__': '000000000', 'jpg': b'...', 'cls': '3', 'json': {'owner': 'Ann'}}]
    """
    content = read_bytes(url, options)
    try:
        text = content.decode("utf-8-sig")
        rows = _json_rows(text) if url.lower().endswith(("jsonl", "ndjson")) else _csv_rows(text, url)
    except (ValueError, csv.Error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError.at(
            f"the table cannot be parsed: {error}", todo="check that it is UTF-8", url=url
        ) from error
    if not rows:
        raise NotFoundError.at("the table has no row", url=url)
    missing = [name for name in columns or () if all(name not in row for row in rows)]
    if missing:
        raise UsageError.at(
            f"no row has a column {missing[0]!r}", todo=f"it has {', '.join(rows[0])}", url=url
        )
    base = root if root is not None else url.rpartition("/")[0] or "."
    load = LoadRow(base.rstrip("/") or "/", options, dict(columns or {}))
    return ListSource("row", list(enumerate(rows)), xxhash.xxh64_hexdigest(content), load)


@dataclass(frozen=True)
class LoadRow:
    """Turns a row into a sample, and reads the files that it names."""

    base: str
    options: StoreOptions
    columns: dict[str, str]

    def __call__(self, item: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        """Return the sample."""
        number, cells = item
        row: dict[str, Any] = {}
        for column, value in cells.items():
            if value is None or value == "":
                continue
            if (name := self.columns.get(column, column)) in row:
                raise UsageError.at(
                    f"row {number} has two columns for {name!r}", todo="rename one with columns="
                )
            row[name] = value
        key = next((str(row.pop(name)) for name in _KEYS if name in row), f"{number:09d}")
        sample: dict[str, Any] = {"__key__": key}
        rest: dict[str, Any] = {}
        for name, value in row.items():
            ending = name.lower().rpartition(".")[2]
            if name == _FILE or ending in _FILES:
                field = _ending(value, number, key) if name == _FILE else name
                self._put(sample, field, self._file(value, name, number, key))
            elif ending in _VALUES:
                self._put(sample, name, value)
            else:
                rest[name] = value
        if rest:
            self._put(
                sample, "json", {**rest, **sample["json"]} if isinstance(sample.get("json"), dict) else rest
            )
        return sample

    def _put(self, sample: dict[str, Any], field: str, value: Any) -> None:
        if field in sample and not (
            field == "json" and isinstance(value, dict) and isinstance(sample[field], dict)
        ):
            raise EncodeError.at(
                f"two columns give the field {field!r}",
                todo="rename one with columns=",
                key=sample["__key__"],
                field=field,
            )
        sample[field] = value

    def _file(self, path: Any, column: str, number: int, key: str) -> bytes:
        try:
            return read_bytes(self._where(str(path)), self.options)
        except NotFoundError as error:
            raise MissingFieldError.at(
                f"row {number}, column {column!r}: {error.what}",
                todo="paths are relative to the table; pass root= for another place",
                url=self._where(str(path)),
                key=key,
            ) from error

    def _where(self, path: str) -> str:
        return path if "://" in path or path.startswith("/") else f"{self.base}/{path}"


def _ending(path: Any, number: int, key: str) -> str:
    dot, extension = posixpath.splitext(str(path))[1][:1], posixpath.splitext(str(path))[1][1:].lower()
    if not dot or not extension:
        raise EncodeError.at(
            f"row {number}: the file {path!r} has no ending to name its field",
            todo='name the field with columns={"file_name": "jpg"}',
            key=key,
        )
    return extension


def _csv_rows(text: str, url: str) -> list[dict[str, Any]]:
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if url.lower().endswith("tsv") else ",", strict=True
    )
    header = next(lines, [])
    if len(set(header)) != len(header):
        raise UsageError.at("two columns have the same name", todo="rename one", url=url)
    rows = []
    for cells in lines:
        if not cells:
            continue
        if len(cells) != len(header):
            raise UsageError.at(
                f"line {lines.line_num} has {len(cells)} cells for {len(header)} columns",
                todo="mend it",
                url=url,
            )
        rows.append(dict(zip(header, cells, strict=True)))
    return rows


def _json_rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object")
        rows.append(row)
    return rows
