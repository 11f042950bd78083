"""The files of a sample to its fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchdata_ais.codecs import EncodeError
from torchdata_ais.codecs.fields import FIELD_KINDS
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import SampleError
from torchdata_ais.writing.sources.files import MEDIA, split_ending
from torchdata_ais.writing.sources.folders import FileFolder
from torchdata_ais.writing.sources.text_rows import likely_encoding

Item = tuple[str, tuple[tuple[str, str], ...]]
"""Key, and for each field the path below the folder."""


TEXTS = frozenset(["caption", "json", *FIELD_KINDS["text"]])


@dataclass(frozen=True)
class LoadFiles:
    """Reads the files of one sample; its class is the first part of its path."""

    folder: FileFolder
    classes: tuple[str, ...]
    main: frozenset[str] = MEDIA

    def numbered(self, classes: Sequence[str]) -> LoadFiles:
        """Return the same with classes numbered as in `classes`."""
        return replace(self, classes=tuple(classes))

    def __call__(self, item: Item) -> dict[str, Any]:
        """Return the sample.

        Raises:
            SampleError: A picture is empty, or a text is no UTF-8.
            OSError: A file cannot be read; it is named.
        """
        key, parts = item
        sample: dict[str, Any] = {"__key__": key, "__url__": self.folder.where(parts[0][1])}
        if self.classes and all(field != "cls" for field, _ in parts):
            sample["cls"] = self.classes.index(parts[0][1].partition("/")[0])
        for field, path in parts:
            data = self.folder.read(path)
            if not data and split_ending(path)[1] in self.main:
                raise SampleError.at(
                    f"the file {path} is empty",
                    todo=Remedy("remove it", 'go on without such files by on_error="skip"'),
                    url=self.folder.where(path),
                    key=key,
                    field=field,
                )
            sample[field] = data
            if field in TEXTS:
                check_utf8(data, path, key, field, url=self.folder.where(path))
        return sample


def check_utf8(data: bytes, name: str, key: str, field: str, *, url: str | None = None) -> None:
    """Raise `EncodeError` if a text is not in UTF-8: every reader would fail on it."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EncodeError.at(
            f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}",
            todo=Remedy(
                f"convert it (iconv -f {likely_encoding(data)} -t utf-8)",
                'go on without such files by on_error="skip"',
            ),
            url=url or name,
            key=key,
            field=field,
        ) from None
