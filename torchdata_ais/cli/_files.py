"""Files that a command writes or reads beside its shards: looked at before anything long begins, and told in words."""

from __future__ import annotations

import errno
from pathlib import Path

from torchdata_ais.errors import UsageError

_SAID: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", "free space, or write elsewhere"),
    errno.EDQUOT: ("the quota of this user is used up", "free space, or write elsewhere"),
    errno.EFBIG: ("a file may not grow so large here", "look at ulimit -f and the file system"),
    errno.EROFS: ("the file system can only be read", "write elsewhere"),
    errno.ENOENT: ("there is no such file or folder, and none can be made", "check the path"),
    errno.EEXIST: ("there is a file of this name", "name a folder"),
    errno.EISDIR: ("this is a folder, and no file", "name a file"),
    errno.ENOTDIR: ("a part of this path is a file, and no folder", "check the path"),
    errno.EACCES: ("this user may not do that here", "look at its permissions, or name another place"),
    errno.EPERM: ("this user may not do that here", "look at its permissions, or name another place"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n 65536"),
    errno.ENAMETOOLONG: ("the name is too long for the file system", "shorten it"),
    errno.EIO: ("the device failed", "look at the disk, and at the kernel's log"),
}


def os_sentence(error: OSError) -> str:
    """Return what an error of the operating system says: which file, what is the matter, and what to do.

    Example:
        >>> os_sentence(OSError(errno.ENOSPC, "No space left on device", "/data/a.tar"))
        '/data/a.tar: the disk is full (No space left on device). Free space, or write elsewhere'
        >>> os_sentence(OSError("gone"))
        'gone'
    """
    if error.errno is None:
        return str(error) or type(error).__name__
    what, todo = _SAID.get(error.errno, ("", ""))
    system = error.strerror or errno.errorcode.get(error.errno, str(error.errno))
    said = f"{what} ({system}). {todo[0].upper()}{todo[1:]}" if what else system
    return f"{error.filename}: {said}" if error.filename is not None else said


def check_new_file(path: Path | None) -> None:
    """Refuse a place for a new file where none can be.

    Raises:
        UsageError: It is a folder, or its folder is not there.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError.at(f"{path}: this is a folder", todo="name a file in it", url=str(path))
    if not path.parent.is_dir():
        raise UsageError.at(
            f"{path}: there is no folder {path.parent}",
            todo="make it first, or write elsewhere",
            url=str(path),
        )
