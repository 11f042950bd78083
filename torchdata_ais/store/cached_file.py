"""Files kept on this node, of `cache` and `index_dir`: one set of rules for both.

Folders are of this user and closed to others, files are regular files. A link is not followed, a pipe is not waited
for: what stands in the place of a file and is none is removed, and the file is made again.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from contextlib import ExitStack, suppress
from io import BufferedReader, FileIO
from pathlib import Path

from torchdata_ais.store.hashes import hash_like
from torchdata_ais.urls import ObjectURL
from torchdata_ais.whole_file import open_regular

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


def private_folder(path: Path) -> None:
    """Make a folder for this user alone; one that others may write to is closed to them.

    Raises:
        OSError: It is a link, no folder, or of another user.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENOTDIR, "it is a link, not a folder", str(path))
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user", str(path))
    if status.st_mode & 0o077:
        path.chmod(0o700)


def open_kept(path: Path) -> BufferedReader | None:
    """Return a file that is kept, open at its first byte; None if there is none, or something else in its place."""
    try:
        return open_regular(path, follow=False)
    except OSError as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError) or error.errno in _DAMAGE | {
            errno.EINVAL
        }:
            return None
        raise


def open_part(path: Path) -> FileIO:
    """Return an unfinished file to append to: the one of before, or a new one in the place of what is none.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.part")
        >>> path.symlink_to("/etc/hostname")
        >>> with open_part(path) as file:
        ...     path.is_symlink(), oct(os.fstat(file.fileno()).st_mode & 0o777)
        (False, '0o600')
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(2):
        with suppress(OSError):
            fd = os.open(path, flags, 0o600)
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid():
                return FileIO(fd, "a+")
            os.close(fd)
        remove(path)
    return FileIO(os.open(path, flags | os.O_EXCL, 0o600), "a+")


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
