"""Files of a folder."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torchdata_ais._util.files import naming, open_regular
from torchdata_ais.codecs.handlers import FIELD_KINDS, MEDIA_KINDS
from torchdata_ais.errors import NotFoundError
from torchdata_ais.store import StoreOptions, list_objects, open_blocks
from torchdata_ais.urls import Location, parse_url
from torchdata_ais.writing.sources.source import Tally

PICTURES, SOUNDS, VIDEOS = (frozenset(FIELD_KINDS[kind]) for kind in MEDIA_KINDS)
MEDIA = PICTURES | SOUNDS | VIDEOS
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


class FoundFile(NamedTuple):
    """A file: its path below the folder, with slashes, and its bytes."""

    path: str
    size: int

    @property
    def ending(self) -> str:
        """The result of `split_ending` for the path."""
        return split_ending(self.path)[1]


OUTSIDE_LINK = "a link out of the folder"
NO_FILE = "no file (a pipe, a device)"
OUTSIDE_CELL = "a cell that names a URL or a file outside of the folder"


def leads_out(root: str, path: str) -> bool:
    """Report whether a path, its links resolved, is outside of a folder."""
    folder = os.path.realpath(root)
    return os.path.commonpath([folder, os.path.realpath(path)]) != folder


Omitted = Tally[str]
"""Left-out items by reason."""


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
    """Return a path without its file's ending, and that in lower case, or "".

    Example:
        >>> split_ending("cat/a.b.JPG"), split_ending("cat.d/README")
        (('cat/a.b', 'jpg'), ('cat.d/README', ''))
    """
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    return (f"{folder}{slash}{stem}", ending.lower()) if dot and stem else (path, "")


def is_table(named: object) -> bool:
    """Return whether this is a path or URL of a table."""
    return isinstance(named, str | os.PathLike) and os.fsdecode(named).lower().endswith(TABLES)


_HIDDEN = re.compile(r"(?:[^.][^/]*/)*\.[^/]*")


@dataclass(frozen=True)
class DiskFolder:
    """A folder of this machine."""

    root: str
    outside: bool = False

    def __str__(self) -> str:
        return self.root

    def files(self, omitted: Omitted) -> Iterator[FoundFile]:
        """Yield the files of the tree, sorted by name level by level.

        Hidden ones are left out. Links are followed, those that lead out of the folder only with `outside`.
        """
        root = Path(self.root)
        if not root.is_dir():
            raise NotFoundError.at("there is no such folder", todo="check the path", url=str(root))
        yield from _below(str(root), "", omitted, (), None if self.outside else str(root))

    def folders(self) -> list[str]:
        """Return the names of the folders in it, sorted, also of empty ones."""
        with naming(self.root), os.scandir(self.root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir()
                and entry.name[0] != "."
                and (self.outside or not leads_out(self.root, entry.path))
            )

    def reader(self) -> DiskFolder:
        """Return the picklable reader of the files: itself."""
        return self

    def where(self, path: str) -> str:
        """Return the name of a file for people: its path."""
        return str(Path(self.root, path))

    def read(self, path: str) -> bytes:
        """Return the content of a file; an ``OSError`` names it."""
        full = self.where(path)
        with naming(full):
            if not self.outside and leads_out(self.root, full):  # it was a file when the folder was listed
                raise OSError(errno.ELOOP, "it is a link out of the folder", full)
            with open_regular(full) as file:
                return file.read()


@dataclass(frozen=True)
class BucketFolder:
    """The objects of a bucket with a common prefix, up to a slash.

    Memory: about 300 bytes an object.
    """

    place: Location
    options: StoreOptions
    listed: tuple[FoundFile, ...] = ()

    @classmethod
    def at(cls, url: str, options: StoreOptions) -> BucketFolder:
        """List the objects of a URL.

        The folder ends after its last slash, or after all of it where one follows.
        """
        place = parse_url(url)
        found = [(parse_url(one).name, one.size or 0) for one in list_objects(url, options=options)]
        root = place.name[: place.name.rfind("/") + 1]
        if place.name and all(name.startswith(f"{place.name}/") for name, _ in found):
            root = f"{place.name}/"
        listed = tuple(FoundFile(name[len(root) :], size) for name, size in found)
        return cls(replace(place, name=root).at(options.endpoint), options, listed)

    def __str__(self) -> str:
        return self.place.uri

    def files(self, omitted: Omitted) -> Iterator[FoundFile]:
        """Yield the objects, sorted as files would be."""
        hidden = ""
        for file in sorted(self.listed, key=lambda file: file.path.split("/")):
            if found := _HIDDEN.match(file.path):
                if found[0] != hidden:  # of a folder once
                    omitted.add("hidden by its name", found[0])
                hidden = found[0]
            elif not file.path.endswith("/"):  # the marker of a folder that some tools make
                yield file

    def folders(self) -> list[str]:
        """Return the parts before the first slash of the names."""
        return sorted({file.path.partition("/")[0] for file in self.files(Omitted()) if "/" in file.path})

    def reader(self) -> BucketFolder:
        """Return the same without the list."""
        return replace(self, listed=())

    def where(self, path: str) -> str:
        """Return the object as ``ais://bucket/name``."""
        return replace(self.place, name=self.place.name + path).uri

    def read(self, path: str) -> bytes:
        """Return an object, verified."""
        with open_blocks(replace(self.place, name=self.place.name + path), self.options) as blocks:
            return b"".join(blocks)


FileFolder = DiskFolder | BucketFolder
"""A folder of files."""
