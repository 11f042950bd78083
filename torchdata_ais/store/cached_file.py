"""A file in the cache: opened only if it is what was put there, whatever stands in its place."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path

from torchdata_ais.store.hashes import hash_like
from torchdata_ais.urls import ObjectURL

_PIECE = 1 << 20
# Links, sockets, files without rights, and what the disk does not give: the entry's own fault.
_DAMAGE = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EIO}


def open_sound(path: Path, known: ObjectURL, *, verify: bool) -> tuple[FileIO | None, str]:
    """Return the file open at its first byte, and marked as used now; or None and what is wrong with it.

    Args:
        path: Where it is.
        known: What it must be.
        verify: Whether its bytes must have the checksum, too.

    Returns:
        ``(None, "")`` if there is nothing.
    """
    doing = "opened"
    with ExitStack() as opened:
        try:
            # Whatever was put there is not waited for (a named pipe) and not followed (a link).
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            doing = "read"
            damage = _damage(fd, known, verify)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            damage = f"cannot be {doing} ({error.strerror})"
        if damage:
            return None, damage
        opened.pop_all()
    return FileIO(fd), ""


def _damage(fd: int, known: ObjectURL, verify: bool) -> str:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return "is no file"
    if known.size is not None and status.st_size != known.size:
        return f"has {status.st_size} bytes, not {known.size}"
    digest = hash_like(known.checksum) if verify else None
    if digest is not None:
        while piece := os.read(fd, _PIECE):
            digest.update(piece)
        if digest.hexdigest() != (known.checksum or "").lower():
            return f"has the checksum {digest.hexdigest()}, not {known.checksum}"
        os.lseek(fd, 0, os.SEEK_SET)
    # The time of change stays: a reader of the file would take the file for changed.
    with suppress(PermissionError):  # another user's
        os.utime(fd, ns=(time.time_ns(), status.st_mtime_ns))
    return ""


def write_all(file: FileIO, block: bytes) -> None:
    """Write all of `block`: at the end of a disk, a part of it may go."""
    view = memoryview(block)
    while view:
        view = view[file.write(view) :]


def remove(path: Path) -> None:
    """Delete what stands in the place of a file, whatever it is; links are not followed."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        shutil.rmtree(path)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
