"""Errors of files that are open already, such as a full disk, do not say which file it was: here they are told.

And folders that are made for files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchdata_ais.errors import UsageError


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Make a folder, and those above it, where they are missing.

    Raises:
        UsageError: It, or one above it, is a file.
        OSError: It cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next((one for one in (folder, *folder.parents) if one.exists()), folder)
        raise UsageError.at(
            f"{file}: this is a file, and no folder", todo="name a folder, or one to be made", url=str(path)
        ) from None


@contextmanager
def no_empty_folders(paths: Iterable[Path]) -> Iterator[None]:
    """Take away again, if what runs inside fails, what it made of these folders, and above them, and left empty."""
    made: set[Path] = set()
    for path in map(Path.absolute, paths):
        made.update(folder for folder in (path, *path.parents) if not folder.exists())
    try:
        yield
    except BaseException:
        for folder in sorted(made, key=lambda one: -len(one.parts)):
            with suppress(OSError):  # something is in it
                folder.rmdir()
        raise


def name_file(error: OSError, path: str) -> None:
    """Have `error` say that it was `path`, unless it names a file.

    Example:
        >>> error = OSError(28, "No space left on device")
        >>> name_file(error, "/data/s.tar")
        >>> str(error)
        "[Errno 28] No space left on device: '/data/s.tar'"
    """
    if error.filename is None and error.errno is not None:
        error.filename = path


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Have an ``OSError`` of what runs inside say that it was `path`."""
    try:
        yield
    except OSError as error:
        name_file(error, path)
        raise
