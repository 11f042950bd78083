"""Location of the files of an index."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import quote, urlsplit

from torchdata_ais._util.files import make_folder, naming, open_regular, whole_file
from torchdata_ais.errors import AuthError, NotFoundError, ReadError, UsageError
from torchdata_ais.index.format import TABLE
from torchdata_ais.store import (
    StoreOptions,
    cluster_options,
    delete_object,
    list_objects,
    put_object,
    read_range,
)
from torchdata_ais.urls import ShardPlaces, expand_template, folder_file_fault, parse_url, redact, shown_name
from torchdata_ais.urls.parsing import INDEX_FOLDER

_ALL = 1 << 40  # bytes: more than any file of an index has


class Readable(Protocol):
    """A place of files that are read by ranges."""

    where: str
    """Name of the place in errors."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return at most `length` bytes of a file, fewer if it ends before.

        Raises:
            NotFoundError: The file does not exist.
        """


class Folder(Readable, Protocol):
    """A place for files that are written once and read by ranges."""

    def write(self, name: str, data: bytes) -> None:
        """Store a file, whole or not at all."""

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


def _plain(name: str, where: str) -> str:
    """Return `name`, or raise `UsageError` if it would lead elsewhere."""
    if why := folder_file_fault(name):
        raise UsageError.at(
            f"{where}: no file of an index can be called {shown_name(name)}: {why}",
            todo="name files without a folder",
            url=where,
        )
    return name


def part_of(file: IO[bytes], start: int, length: int | None) -> bytes:
    """Return at most `length` bytes from `start` on."""
    left = os.fstat(file.fileno()).st_size - start
    if left <= 0:
        return b""
    file.seek(start)
    return file.read(left if length is None else min(length, left))


class LocalFolder:
    """A folder of regular files on this machine; links and pipes are refused.

    It is made when the first file is written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as path:
        ...     folder = LocalFolder(path)
        ...     folder.write("a.bin", b"12345")
        ...     folder.read("a.bin", start=1, length=2)
        b'23'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.where = str(self._path)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file."""
        path = self._path / _plain(name, self.where)
        try:
            with open_regular(path, follow=False) as file:
                return part_of(file, start, length)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError.at(
                f"{path}: no such file", todo="check the path, or build the index", url=str(path)
            ) from None
        except PermissionError as error:
            raise AuthError.at(
                f"{path}: no right to read it", todo="change its mode", url=str(path)
            ) from error
        except OSError as error:
            raise ReadError.at(
                f"{path}: {error.strerror}", todo="look at the path and its file system", url=str(path)
            ) from error

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        return (self._path / _plain(name, self.where)).is_file()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._path / _plain(name, self.where)).unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Store a file; it appears under its name when it is whole and on disk."""
        path = self._path / _plain(name, self.where)
        make_folder(path.parent)
        with naming(str(path)), whole_file(path, on_disk=True) as file:
            file.write(data)


class RemoteFolder:
    """A prefix of a bucket, or a folder of a web server, without writes.

    Raises:
        UsageError: No endpoint is known.
    """

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._place = parse_url(url).at(options.endpoint)
        self._place.require_endpoint()
        self._options = options
        self.where = redact(self._place.uri.rstrip("/"))

    def _url(self, name: str) -> str:
        _plain(name, self.where)
        if self._place.kind == "object":
            return replace(self._place, name=posixpath.join(self._place.name.rstrip("/"), name)).url()
        path, mark, query = self._place.name.partition("?")
        return f"{path.rstrip('/')}/{quote(name)}{mark}{query}"

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file, by a Range."""
        return read_range(self._url(name), start, _ALL if length is None else length, self._options)

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        try:
            read_range(self._url(name), 0, 1, self._options)
        except NotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        delete_object(self._url(name), self._options, missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Store a file; the cluster takes it whole or not at all."""
        if self._place.kind != "object":
            raise UsageError.at("a web server takes no index", todo="write it to a bucket or a folder")
        put_object(self._url(name), data, self._options)


class MemoryFolder:
    """Files in memory, for an index that is not stored.

    Example:
        >>> folder = MemoryFolder()
        >>> folder.write("a.bin", b"12345")
        >>> folder.read("a.bin", start=3)
        b'45'
    """

    where = "the index in memory"

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file."""
        if name not in self._files:
            raise NotFoundError.at(f"{name}: no such file in memory", todo="build the index")
        return self._files[name][start : None if length is None else start + length]

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        return name in self._files

    def remove(self, name: str) -> None:
        """Forget a file."""
        self._files.pop(name, None)

    def write(self, name: str, data: bytes) -> None:
        """Keep a file."""
        self._files[name] = data


_PATTERN = "{*?["  # where the fixed beginning of a name ends


def index_place(source: str | os.PathLike[str]) -> str:
    """Return the location of the index of the shards of a source.

    A source is a prefix, template, pattern, folder or bucket. It is ``.index/`` in the bucket's root, or in the
    folder of local shards, and below it the fixed beginning of the shards' names. A slash at its end is written
    ``%2F``, so that each prefix has a different place.

    Raises:
        UsageError: Shards on a web server or on standard input have none.

    Example:
        >>> index_place("ais://pets/train-{000..099}.tar"), index_place("ais://pets/train-")
        ('ais://pets/.index/train-', 'ais://pets/.index/train-')
        >>> index_place("ais://pets"), index_place("s3://pets/a/b/"), index_place("/data/pets/s-*.tar")
        ('ais://pets/.index', 's3://pets/.index/a/b%2F', '/data/pets/.index/s-')
    """
    text = os.fspath(source)
    place = parse_url(text)
    if place.kind == "object":
        name = fixed_beginning(place.name)
        below = f"{name[:-1]}%2F" if name.endswith("/") else name
        named = replace(place, name=f"{INDEX_FOLDER}{below}".rstrip("/"), params={})
        return named.url() if place.endpoint else named.uri
    if place.kind != "file":
        raise UsageError.at(
            f"the shards of {redact(text)} have no place of their own for an index",
            todo="say where: a folder, or ais://bucket/name",
            url=redact(text),
        )
    path = Path(place.name)
    if path.is_dir():
        return str(path / INDEX_FOLDER)
    fixed = fixed_beginning(place.name)
    folder, _, base = fixed.rpartition("/")
    return str(Path(folder or ("/" if fixed.startswith("/") else "."), INDEX_FOLDER, base))


def fixed_beginning(name: str) -> str:
    """Return the fixed prefix of the names of a template or a pattern."""
    return name[: min((at for mark in _PATTERN if (at := name.find(mark)) >= 0), default=len(name))]


def named_shards(where: str | os.PathLike[str]) -> list[str] | None:
    """Return the shards of a template or a pattern; None for all shards there.

    Example:
        >>> named_shards("ais://pets/train-{8..9}.tar"), named_shards("ais://pets/train-")
        (['ais://pets/train-8.tar', 'ais://pets/train-9.tar'], None)
    """
    text = os.fspath(where)
    place = parse_url(text)
    if place.kind == "object" and "{" in place.name:
        return [replace(place, name=name, params={}).uri for name in expand_template(place.name)]
    if place.kind == "file" and fixed_beginning(place.name) != place.name and not Path(place.name).exists():
        return [parse_url(url).uri for url in list_objects(text, options=StoreOptions(), allow_empty=True)]
    return None


ShardsFrom = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""Places whose shards an index may name, beyond its own: one, several, or none."""


def shard_places(given: ShardsFrom) -> ShardPlaces:
    """Return the places that the argument ``shards_from=`` names."""
    several = [given] if isinstance(given, str | os.PathLike) else given or ()
    if not isinstance(several, Sequence) or not all(isinstance(one, str | os.PathLike) for one in several):
        raise UsageError.at(
            f"shards_from={given!r:.60}: expected a bucket, a prefix or a folder, or a list of them",
            todo='pass shards_from="ais://bucket/"',
        )
    return ShardPlaces.of(several)


def folder_at(where: str | os.PathLike[str], options: StoreOptions) -> Folder:
    """Return the folder `where` names itself: a path, or the URL of a prefix."""
    text = os.fspath(where)
    place = parse_url(text)
    if place.kind == "file":
        return LocalFolder(place.name)
    if place.kind == "stdin":
        raise UsageError.at("an index is no stream", todo="name a folder, a bucket or a URL")
    return RemoteFolder(text, options)


def found_folder(where: str | os.PathLike[str], options: StoreOptions) -> tuple[Folder, ShardPlaces]:
    """Return the folder of the index of `where`, and its shards' places.

    `where` may also be the folder of the index. The index may name shards of the places in `where`. An index named by
    its own folder may name those of its bucket, its web server, or its folder of shards.
    """
    tried = []
    for folder, place in _candidates(os.fspath(where), options):
        tried.append(folder.where)
        if folder.has(TABLE):
            return folder, ShardPlaces.of([place])
    shown = redact(os.fspath(where))
    raise NotFoundError.at(
        f"{shown}: there is no sample index ({TABLE} is not in {' nor in '.join(tried)})",
        todo=f"build it: torchdata-ais index {shown}",
        url=shown,
    )


def _candidates(where: str, options: StoreOptions) -> Iterator[tuple[Folder, str]]:
    if where.endswith(f"/{TABLE}"):
        folder = where.removesuffix(TABLE)
        yield folder_at(folder, options), place_around(folder)
        return
    place = parse_url(where)
    if place.kind == "file":
        yield LocalFolder(place.name), place_around(where)
        beside = index_place(where)
        yield folder_at(beside, options), place_around(beside)
    else:
        if place.kind == "object" and not place.name.startswith(INDEX_FOLDER):
            yield folder_at(index_place(where), options), replace(place, params={}).uri
        if place.name:
            yield folder_at(where, options), place_around(where)


def place_around(folder: str) -> str:
    """Return the place whose shards an index may name, by its own folder.

    Example:
        >>> place_around("ais://pets/.index/train-"), place_around("/data/pets/.index/train-")
        ('ais://pets', '/data/pets')
        >>> place_around("http://h:8080/pets/index?sig=1")
        'http://h:8080/'
    """
    place = parse_url(folder)
    if place.kind == "object":
        return replace(place, name="", params={}).uri
    if place.kind == "http":
        return urlsplit(place.name)._replace(path="/", query="", fragment="").geturl()
    before, found, _ = f"{place.name}/".rpartition(f"/{INDEX_FOLDER}")
    if not found and place.name.startswith(INDEX_FOLDER):
        return "."
    return (before or "/") if found else place.name


def options_for(where: str | os.PathLike[str], given: StoreOptions | None) -> StoreOptions:
    """Return the options for `where`; a local path resolves nothing."""
    if given is None and parse_url(os.fspath(where)).kind == "file":
        return StoreOptions()
    return cluster_options(given)
