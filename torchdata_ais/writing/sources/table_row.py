"""A row of a table to a sample, with the files that it names."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchdata_ais.codecs import EncodeError
from torchdata_ais.codecs.fields import FIELD_KINDS
from torchdata_ais.codecs.signs import ending_by_sign
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import MissingFieldError, NotFoundError, SampleError, UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import ShardPlaces, below_fault, parse_url, path_fault, redact, shown_name
from torchdata_ais.writing.sources.column_names import by_columns
from torchdata_ais.writing.sources.read_rows import read_bytes
from torchdata_ais.writing.sources.rows import Row
from torchdata_ais.writing.sources.table_columns import BY_ENDING, CLASS, ending_of

LONGEST = 300
"""Characters of a cell that are shown; no path is much longer."""

_LONGEST_PATH = 4096
_BASE64 = ("/9j/", "iVBORw0KGgo", "UklGR", "R0lGOD")  # JPEG, PNG, RIFF, GIF
_KEYS = ("__key__", "key")
_VALUES = frozenset(name for kind in ("text", "integer", "json", "jsonl") for name in FIELD_KINDS[kind])


def no_file(value: str) -> Remedy:
    """Return what to do about a cell that names no file."""
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

    def __call__(self, item: tuple[int, Row]) -> dict[str, Any]:
        """Return the sample.

        Raises:
            SampleError: Of one row: a file is missing or empty, a value cannot be meant.
            TransportError: A file cannot be read.
        """
        number, cells = item
        counted = number + 1  # as people count, below the header
        row: dict[str, tuple[str, Any]] = {}
        for column, value in cells.items():
            if value is None or value == "":
                continue
            if (name := self.fields[column]) in row:
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
        sample: dict[str, Any] = {"__key__": key}
        rest: dict[str, Any] = {}
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
        """Return the same with classes numbered as in `classes`.

        Raises:
            UsageError: The table has numbers itself, whose names stand in another order.
        """
        if not self.numbers:
            raise UsageError.at(
                "the classes beside the shards have other numbers than those of the table",
                todo=Remedy("write to a folder or prefix of its own", "pass overwrite=True"),
            )
        return replace(self, numbers={name: number for number, name in enumerate(classes)})

    def where(self, path: str) -> str:
        """Return what a cell names: relative to the table."""
        return path if "://" in path or path.startswith("/") else f"{self.base}/{path}"

    def leads_out(self, path: str) -> bool:
        """Whether a cell names a URL, or something outside of the folder or prefix of the table."""
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

    def _put_rest(self, sample: dict[str, Any], rest: dict[str, Any], column: str) -> None:
        """Put what belongs to no field into the field ``json``, beside the entries of the column of that name."""
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

    def _put(self, sample: dict[str, Any], field: str, value: Any) -> None:
        if field in sample:
            raise EncodeError.at(
                f"two columns give the field {field!r}",
                todo="rename one with columns=",
                key=sample["__key__"],
                field=field,
            )
        sample[field] = value

    def _file(self, value: Any, where: str, key: str) -> tuple[bytes, str]:
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
