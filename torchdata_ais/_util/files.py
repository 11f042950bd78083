"""Atomic file writes, and errors that name the file.

And folders that are made for files.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from torchdata_ais.errors import UsageError


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading.

    A pipe, a device or a folder under its name is refused without waiting for it.

    Args:
        path: The file.
        follow: Whether a link under this name is followed.

    Raises:
        OSError: It cannot be opened, or is not a regular file; names the path.

    Example:
        >>> open_regular("/dev/zero")
        Traceback (most recent call last):
        ...
        OSError: [Errno 22] it is not a regular file: '/dev/zero'
    """
    no_link = 0 if follow else os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | no_link)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a link", os.fspath(path)) from None
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


@contextmanager
def whole_file(path: Path, *, on_disk: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write that gets its name at the end of the block.

    It is removed if the block raises.

    Args:
        path: The name; an existing file is replaced.
        on_disk: Whether it is to survive a power cut, too.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.json")
        >>> with whole_file(path) as file:
        ...     _ = file.write(b"{}")
        ...     path.exists()
        False
        >>> path.read_bytes()
        b'{}'
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("x+b") as file:
            yield file
            if on_disk:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
        if on_disk:
            sync_folder(path.parent)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(unfinished):  # users do not know this name
            error.filename, error.filename2 = str(path), None
        raise


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # of file systems that cannot


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder survive a power cut.

    Nothing is done in a folder that cannot be read, or on a file system that refuses.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(fd)


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
    """Remove empty folders that the block made, if the block fails.

    These are `paths` and their parents.
    """
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
    """Add `path` to `error`, unless it names a file.

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
    """Add `path` to any ``OSError`` that the block raises."""
    try:
        yield
    except OSError as error:
        name_file(error, path)
        raise
