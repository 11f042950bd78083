"""The files below a folder, in one order on every machine, and which of them are pictures, sound or video."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torchdata_ais.errors import NotFoundError
from torchdata_ais.store.naming import naming
from torchdata_ais.writing.sources.tally import Tally

PICTURES = frozenset(["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"])
SOUNDS = frozenset(["wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"])
MEDIA = PICTURES | SOUNDS | {"mp4", "webm", "avi", "mov", "mkv"}
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


class FoundFile(NamedTuple):
    """A file: its path below the folder, with slashes, and its bytes."""

    path: str
    size: int

    @property
    def ending(self) -> str:
        """What `split_ending` says of the path."""
        return split_ending(self.path)[1]


OUTSIDE_LINK = "a link out of the folder"
NO_FILE = "no file (a pipe, a device)"
OUTSIDE_CELL = "a cell that names a URL or a file outside of the folder"


def leads_out(root: str, path: str) -> bool:
    """Whether a path, its links resolved, is outside of a folder."""
    folder = os.path.realpath(root)
    return os.path.commonpath([folder, os.path.realpath(path)]) != folder


Omitted = Tally[str]
"""What is left out, by reason."""


def files_below(root: Path, omitted: Omitted, *, outside: bool = False) -> Iterator[FoundFile]:
    """Yield the files below a folder, sorted by name level by level; hidden ones are left out.

    Links are followed, those that lead out of the folder only with `outside`.

    Raises:
        NotFoundError: No such folder.
        OSError: A folder cannot be read; it is named.
    """
    if not root.is_dir():
        raise NotFoundError.at("there is no such folder", todo="check the path", url=str(root))
    yield from _below(str(root), "", omitted, (), None if outside else str(root))


def _below(
    folder: str, path: str, omitted: Omitted, above: tuple[tuple[int, int], ...], root: str | None
) -> Iterator[FoundFile]:
    with naming(folder):
        found = os.stat(folder)  # noqa: PTH116 - text in
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    here = (found.st_dev, found.st_ino)
    if here in above:
        omitted.add("a link to a folder that it is in", path)
        return
    for entry in entries:
        below = f"{path}/{entry.name}" if path else entry.name
        if entry.name[0] == ".":
            omitted.add("hidden by its name", below)
        elif root is not None and entry.is_symlink() and leads_out(root, entry.path):
            omitted.add(OUTSIDE_LINK, below)
        elif entry.is_dir():
            yield from _below(entry.path, below, omitted, (*above, here), root)
        elif entry.is_file():
            yield FoundFile(below, entry.stat().st_size)
        else:
            omitted.add("a link to nothing" if entry.is_symlink() else NO_FILE, below)


def split_ending(path: str) -> tuple[str, str]:
    """Return a path without the ending of its file, and that in lower case; ``""`` if it has none.

    Example:
        >>> split_ending("cat/a.b.JPG"), split_ending("cat.d/README")
        (('cat/a.b', 'jpg'), ('cat.d/README', ''))
    """
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    return (f"{folder}{slash}{stem}", ending.lower()) if dot and stem else (path, "")


def is_table(named: Any) -> bool:
    """Return whether this is a path or URL of a table."""
    return isinstance(named, str | os.PathLike) and os.fsdecode(named).lower().endswith(TABLES)
