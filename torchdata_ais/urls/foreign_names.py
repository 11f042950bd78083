"""Checks of names from data, before use as path, URL or object name.

Names in an index, a listing, a table, a file of a rank, a manifest or an archive are data: the program is not their
author. Each kind of name has one function. It returns why the name is refused, or "", and the caller raises its own
error with the place.

==========================  =================================================
`index_file_fault`          a file of this index
`folder_file_fault`         a file directly in this folder
`below_fault`               a file below this folder, by its relative name
`path_fault`                a file in or below this folder, by its path
`object_fault`              an object of this bucket
`ShardPlaces.fault`         a shard of this source
==========================  =================================================
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from torchdata_ais.errors import UsageError
from torchdata_ais.urls.location import OBJECTS_PATH, Location
from torchdata_ais.urls.parsing import parse_url

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")  # how Python reads such bytes in the name of a file
_LONGEST = 4096
_INDEX_FILE = re.compile(r"(samples|counts|fields)-[0-9a-f]{16}-[0-9a-z]{1,64}\.arrow")
_NO_FILE = re.compile(r"[\x00-\x1f\x7f/\\\ud800-\udfff]")
_NAME_BYTES = 255  # of a file
_PATTERN = re.compile(r"[{*?\[]")
_SHOWN = 300  # characters of a refused name in a message


def shown_name(name: object) -> str:
    r"""Return a name for a message: quoted, and shortened.

    Example:
        >>> shown_name("a\n"), len(shown_name("x" * 5000))
        ("'a\\n'", 305)
    """
    if not isinstance(name, str):
        return f"a name of type {type(name).__name__}"
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}..."


def index_file_fault(name: object, kind: str = "") -> str:
    """Return why no file of an index (of a `kind`) has this name, or "".

    Example:
        >>> index_file_fault("counts-0123456789abcdef-0.arrow", "counts"), index_file_fault("../thesis.txt")
        ('', 'it is not the name of a file of an index')
    """
    found = _INDEX_FILE.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        return "it is not the name of a file of an index"
    return f"it is not a file of {kind}" if kind and found[1] != kind else ""


def folder_file_fault(name: object) -> str:
    r"""Return why this does not name a file directly in a folder, or "".

    The folder may be a prefix.

    Example:
        >>> [bool(folder_file_fault(name)) for name in ("shards.arrow", "a/b", "..", "a\0", "/etc/passwd")]
        [False, True, True, True, True]
    """
    if not isinstance(name, str) or name in ("", ".", "..") or _NO_FILE.search(name[:_LONGEST]):
        return "it is not a plain file name"
    return "it is too long" if len(name.encode()) > _NAME_BYTES else ""


def below_fault(name: object) -> str:
    """Return why a relative name leaves a folder or prefix, or "".

    Example:
        >>> [bool(below_fault(name)) for name in ("a.tar", "a/b.tar", "a/../../b", "/b", "a//b", "file:///b", "..")]
        [False, False, True, True, True, True, True]
    """
    if not isinstance(name, str) or (why := _text_fault(name)):
        return "it is not a name" if not isinstance(name, str) else why
    if "\\" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        return "it leads out of the folder"
    return ""


def object_fault(name: str) -> str:
    r"""Return why no object can have this name, or "".

    Example:
        >>> object_fault("a/b.tar"), object_fault("a\tb"), object_fault("a/../b")
        ('', 'it has a control character', 'in a URL that is the name of another object')
    """
    if len(name) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    if _CONTROL.search(name):
        return "it has a control character"
    if _NOT_UTF8.search(name):
        return "it is not UTF-8"
    if not {".", ".."}.isdisjoint(name.split("/")):
        return "in a URL that is the name of another object"
    return ""


def check_object(place: Location, todo: str = "choose another name") -> None:
    """Raise `UsageError` if nothing can be stored under this name."""
    if place.kind == "object" and (why := object_fault(place.name)):
        raise UsageError.at(
            f"no object can be called {shown_name(place.name)}: {why}", todo=todo, url=place.uri[:_LONGEST]
        )


def path_fault(folder: str | os.PathLike[str], path: str) -> str:
    """Return why a path is not a regular file in or below a folder, or "".

    Links are resolved: one that leads out of the folder is refused. Nothing is opened, so that a pipe or a device is
    not waited for. A file that is missing passes: to open it is another error.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> path_fault(folder, f"{folder}/a.tar"), path_fault(folder, f"{folder}/../a.tar")
        ('', 'it is outside of the folder')
        >>> path_fault("/dev", "/dev/null")
        'it is not a regular file'
    """
    if why := _text_fault(path):
        return why
    real, root = os.path.realpath(path), os.path.realpath(folder)
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        return "it is outside of the folder"
    return file_fault(real)


def file_fault(path: str) -> str:
    """Return why an existing object at a path is not a regular file, or "".

    Example:
        >>> file_fault("/dev/zero"), file_fault("/no/such/file")
        ('it is not a regular file', '')
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - text in
    except OSError as error:
        return "it is too long" if error.errno == errno.ENAMETOOLONG else ""
    return "" if stat.S_ISREG(mode) else "it is not a regular file"


def _text_fault(name: object) -> str:
    if not isinstance(name, str):
        return f"it is of type {type(name).__name__}"
    if not name:
        return "it is empty"
    if len(name) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    if _CONTROL.search(name):
        return "it has a control character"
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return "it is not UTF-8"
    return ""


@dataclass(frozen=True)
class ShardPlaces:
    """Places whose shards a source may name.

    Attributes:
        objects: Beginnings of the URIs of objects, such as ``ais://bucket/``.
        pages: Beginnings of web URLs.
        folders: Folders, or single files, of this machine; real paths.

    Example:
        >>> places = ShardPlaces.of(["ais://pets/train-"])
        >>> places.fault("ais://pets/train-000.tar"), places.fault("/home/me/private.tar")
        ('', 'it is not of ais://pets/train-')
        >>> places.fault("ais://pets/train-/../../other/x.tar")
        'in a URL that is the name of another object'
    """

    objects: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, sources: Iterable[str | os.PathLike[str]]) -> ShardPlaces:
        """Return the places of prefixes, templates, buckets, folders, and URLs."""
        objects, pages, folders = [], [], []
        for source in sources:
            place = parse_url(os.fspath(source))
            if place.kind == "object":
                found = _PATTERN.search(place.name)
                uri = place.uri if found is None else place.uri[: found.start() - len(place.name)]
                objects.append(uri if place.name else f"{uri}/")
            elif place.kind == "http":
                pages.append(_server_of(place.name) + _path_of(place.name))
            elif place.kind == "file":
                found = _PATTERN.search(place.name)
                folder = place.name
                if found is not None and not Path(folder).exists():
                    fixed = folder[: found.start()]
                    folder = fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else ".")
                folders.append(os.path.realpath(folder))
            else:
                raise UsageError.at(
                    "shards_from= does not name standard input", todo="pass a bucket, prefix or folder"
                )
        return cls(tuple(objects), tuple(pages), tuple(folders))

    def __add__(self, other: ShardPlaces) -> ShardPlaces:
        return ShardPlaces(
            self.objects + other.objects, self.pages + other.pages, self.folders + other.folders
        )

    def __str__(self) -> str:
        return " or ".join([*self.objects, *self.pages, *self.folders])

    @cached_property
    def _plain(self) -> re.Pattern[str]:
        """Pattern of names that need no further check: an index can have millions."""
        if not self.objects:
            return re.compile(r"(?!)")
        places = "|".join(map(re.escape, self.objects))
        return re.compile(rf"(?:{places})(?!.*(?://|/\.))[A-Za-z0-9_=-][A-Za-z0-9_.=/-]{{0,500}}(?<!/)")

    def fault(self, name: Any) -> str:
        """Return why a shard of this name is not of these places, or ""."""
        if isinstance(name, str) and self._plain.fullmatch(name):
            return ""
        if why := _text_fault(name):
            return why
        try:
            place = parse_url(name)
        except (UsageError, ValueError):
            return "it is not a URL or path"
        if place.kind == "stdin":
            return "it is standard input"
        if place.kind == "file":
            return self._path_fault(place.name)
        if place.kind == "object":
            if place.endpoint or place.params:
                return "it names a host"  # an index holds ais://bucket/name
            if why := object_fault(place.name):
                return why
            return "" if name.startswith(self.objects) else self._elsewhere
        return self._page_fault(name)

    def _path_fault(self, path: str) -> str:
        if why := _text_fault(path):
            return why
        faults = [path_fault(folder, path) for folder in self.folders] or [self._elsewhere]
        if "" in faults:
            return ""
        return next((why for why in faults if "outside" not in why), self._elsewhere)

    def _page_fault(self, url: str) -> str:
        try:
            server, path = _server_of(url), _path_of(url)
        except ValueError:
            return "it is not a URL"
        login = urlsplit(url).netloc.rpartition("@")[0]
        if login not in ("", "***"):  # an index holds no passwords
            return "it has user information"
        if OBJECTS_PATH in unquote(path) or not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path))):
            return "its path leads elsewhere"
        return "" if (server + path).startswith(self.pages) else self._elsewhere

    @property
    def _elsewhere(self) -> str:
        return f"it is not of {self}"


def _server_of(url: str) -> str:
    """Return scheme, host and port of a web URL, without user information."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"


def _path_of(url: str) -> str:
    return urlsplit(url).path or "/"
