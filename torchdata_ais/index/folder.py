"""Where the files of an index lie: read by ranges, written whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from torchdata_ais.errors import NotFoundError

__all__ = ["Folder", "LocalFolder", "MemoryFolder"]


class Folder(Protocol):
    """A place for files that are written once and read by ranges."""

    where: str
    """What the place is called in errors."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file, at most `length` from byte `start`; fewer if it ends before.

        Raises:
            NotFoundError: There is no such file.
        """

    def write(self, name: str, data: bytes) -> None:
        """Store a file, whole or not at all."""


class LocalFolder:
    """A folder on this machine's disk.

    Args:
        path: The folder; made when the first file is written.

    Example:
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
        path = self._path / name
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read() if length is None else file.read(length)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError.at(
                f"{path}: no such file", todo="check the path, or build the index", url=str(path)
            ) from None

    def write(self, name: str, data: bytes) -> None:
        """Store a file; it appears under its name when it is whole and on disk."""
        self._path.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=self._path, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(unfinished).chmod(0o644)
            Path(unfinished).replace(self._path / name)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise


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

    def write(self, name: str, data: bytes) -> None:
        """Keep a file."""
        self._files[name] = data
