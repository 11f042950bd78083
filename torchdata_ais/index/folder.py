"""Where the files of an index lie: read by ranges, written whole."""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from torchdata_ais.errors import AuthError, NotFoundError, ReadError, UsageError
from torchdata_ais.store import StoreOptions, delete_object, put_object, read_range
from torchdata_ais.store.naming import make_folder, naming
from torchdata_ais.urls import folder_file_fault, parse_url, redact, shown_name
from torchdata_ais.whole_file import open_regular, whole_file

_ALL = 1 << 40  # bytes: more than any file of an index has


class Readable(Protocol):
    """A place of files that are read by ranges."""

    where: str
    """What the place is called in errors."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file, at most `length` from byte `start`; fewer if it ends before.

        Raises:
            NotFoundError: There is no such file.
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
    """Return `name`, of a file directly in a folder or prefix.

    Raises:
        UsageError: It would lead elsewhere.
    """
    if why := folder_file_fault(name):
        raise UsageError.at(
            f"{where}: no file of an index can be called {shown_name(name)}: {why}",
            todo="name files without a folder",
            url=where,
        )
    return name


class LocalFolder:
    """A folder on this machine's disk. Files are regular files; links and pipes in it are refused.

    Args:
        path: The folder; made when the first file is written.

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
                left = os.fstat(file.fileno()).st_size - start
                if left <= 0:
                    return b""
                file.seek(start)
                return file.read(left if length is None else min(length, left))
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
    """A prefix of a bucket, or a folder of a web server (which takes no writes).

    Args:
        url: ``ais://bucket/prefix``, another provider's, an object URL, or a web URL.
        options: Endpoint, token, retries.

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
