"""Where the files of a folder are: on this machine, or under a prefix of a bucket."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torchdata_ais.store import StoreOptions, list_objects, open_blocks
from torchdata_ais.store.naming import naming
from torchdata_ais.urls import Location, parse_url
from torchdata_ais.whole_file import open_regular
from torchdata_ais.writing.sources.files import FoundFile, Omitted, files_below, leads_out

_HIDDEN = re.compile(r"(?:[^.][^/]*/)*\.[^/]*")


@dataclass(frozen=True)
class DiskFolder:
    """A folder of this machine."""

    root: str
    outside: bool = False

    def __str__(self) -> str:
        return self.root

    def files(self, omitted: Omitted) -> Iterator[FoundFile]:
        """Yield the files below it, sorted by name level by level; hidden ones are left out."""
        return files_below(Path(self.root), omitted, outside=self.outside)

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
        """Return what reads the files, and can be pickled: itself."""
        return self

    def where(self, path: str) -> str:
        """Return the name of a file for people: its path."""
        return str(Path(self.root, path))

    def read(self, path: str) -> bytes:
        """Return what a file holds; an ``OSError`` names it."""
        full = self.where(path)
        with naming(full):
            if not self.outside and leads_out(self.root, full):  # it was a file when the folder was listed
                raise OSError(errno.ELOOP, "it is a link out of the folder", full)
            with open_regular(full) as file:
                return file.read()


@dataclass(frozen=True)
class BucketFolder:
    """The objects of a bucket whose names begin alike.

    Args:
        place: What their names begin with, up to a slash.
        options: The cluster.
        listed: The objects, by their names behind that.

    Memory: about 300 bytes an object.
    """

    place: Location
    options: StoreOptions
    listed: tuple[FoundFile, ...] = ()

    @classmethod
    def at(cls, url: str, options: StoreOptions) -> BucketFolder:
        """List what a URL names. The folder ends behind its last slash, or behind all of it where one follows.

        Raises:
            NotFoundError: No such bucket, or nothing in it that begins so.
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
            elif not file.path.endswith("/"):  # what some tools make for a folder
                yield file

    def folders(self) -> list[str]:
        """Return what stands before the first slash of the names."""
        names = {file.path.partition("/")[0] for file in self.files(Omitted()) if "/" in file.path}
        return sorted(names)

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
