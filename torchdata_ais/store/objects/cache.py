"""Cache of objects on local disk.

AIStore itself is the cache in front of cloud buckets; this one is for readers on a slow or costly line to AIStore.

Folders are of this user and closed to others, files are regular files. A link is not followed, a pipe is not waited
for. Anything else than a file in the place of one is removed, and the file is made again.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from torchdata_ais._util.arguments import check_number, checked_options
from torchdata_ais._util.files import open_regular, sync_folder
from torchdata_ais.errors import AISError, StallError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.store.objects.single import head_object
from torchdata_ais.store.objects.source import open_blocks
from torchdata_ais.store.transport.metadata import hash_like
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.urls import Location, ObjectURL, parse_url

_PIECE = 1 << 20
# Links, sockets, files without rights, and failed reads: faults of the entry itself.
_DAMAGE = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EIO}


def open_sound(path: Path, known: ObjectURL, *, verify: bool) -> tuple[FileIO | None, str]:
    """Return the open file at its first byte, marked as used, or its fault.

    ``(None, "")`` if there is nothing. With `verify`, its bytes must have the checksum, too.
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
    """Make a folder for this user alone, or remove the access of others.

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
    """Return a kept file, open at its first byte; None if the name has none."""
    try:
        return open_regular(path, follow=False)
    except OSError as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError) or error.errno in _DAMAGE | {
            errno.EINVAL
        }:
            return None
        raise


def open_part(path: Path) -> FileIO:
    """Return an unfinished file to append to: an earlier or a new one.

    A new one replaces anything that is not a file.

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
    """Delete anything in the place of a file; links are not followed."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        shutil.rmtree(path)


_log = logging.getLogger("torchdata_ais")
_STALE_S = 3600.0  # an unfinished download older than this has lost its process
_OURS = re.compile(r"[0-9a-f]{32}")


class Kept(NamedTuple):
    """An object in the cache.

    Attributes:
        file: Open at its first byte: it can be read even when others delete or replace the file meanwhile.
        refetched: Whether a damaged file was there, which was deleted and fetched again.
        proven: Whether its bytes have the checksum that the cluster stored; else only the size was compared.
    """

    path: Path
    known: ObjectURL
    file: FileIO
    refetched: bool
    proven: bool


@checked_options
@dataclass(frozen=True)
class ObjectCache:
    """Cache of objects in a folder, shared by processes of this user.

    All processes that name the folder share it. Bucket, name, version and checksum identify an entry: a new version
    is another one. It is downloaded under a temporary name, checked against size and checksum, written to the disk,
    and only then appears under its own. Processes that want the same object wait for the one that downloads it; the
    lock dies with its process.

    On each request the file is checked before use: its type, its size, and with ``verify=True`` its checksum. It is
    read twice then, the second time from the page cache. A damaged file, or anything else in its place, is deleted
    and fetched again, once. With ``verify=False``, and without a stored checksum (web files, buckets without
    checksums, crc32c), the size alone is compared: other bytes of the same number are not detected.

    A folder that cannot be written to, or is full, is a `UsageError`: it is never skipped as if a shard were bad.

    Attributes:
        folder: Where to keep them, a path; made, for this user alone, if it does not exist.
        max_bytes: When more is kept, the objects used longest ago are deleted. An object being read stays
            readable until it is closed. The disk may for a moment hold one object more for each process.
        wait_s: How long to wait for another process that downloads the same object.

    Example:
        >>> cache = ObjectCache("/tmp/shards", max_bytes=10 << 30)
        >>> cache.fetch(ObjectURL("/data/local.tar"), StoreOptions()) is None
        True
    """

    folder: str | os.PathLike[str]
    max_bytes: int = 10 << 30
    wait_s: float = 1800.0

    def __post_init__(self) -> None:
        check_number(self.max_bytes, 1, "max_bytes", whole=False)

    def fetch(self, url: str | Location, options: StoreOptions) -> tuple[Path, ObjectURL] | None:
        """Return the local file with the object and its metadata.

        It is downloaded if needed. Others may delete the file as soon as this has returned; `open` returns a file
        that stays readable.

        Args:
            url: The object. Only plain objects of AIStore are cached, not files, web files and transformed objects.
            options: Transport settings.

        Returns:
            None for objects that are not cached.

        Raises:
            TransportError, ChecksumError: It could not be downloaded whole.
            StallError: Another process has been downloading it for longer than `wait_s`.
            UsageError: The folder cannot be used.
        """
        kept = self.open(url, options)
        if kept is None:
            return None
        kept.file.close()
        return kept.path, kept.known

    def open(self, url: str | Location, options: StoreOptions) -> Kept | None:
        """Return the object's file open for reading; else as `fetch`."""
        place = parse_url(url)
        if place.kind != "object" or place.params:
            return None
        known = place.written
        if known.checksum is None or known.version is None:
            known = head_object(place, options)
        return self._kept(repr((place.uri, known.version, known.checksum, known.size)), known, options)

    @staticmethod
    def forget(kept: Kept) -> None:
        """Delete a file whose contents were wrong; the next use fetches it."""
        with suppress(OSError):
            kept.path.unlink()

    def _kept(self, identity: str, known: ObjectURL, options: StoreOptions) -> Kept:
        """Return the file of that identity; download a missing or damaged one."""
        name = xxhash.xxh128_hexdigest(identity.encode())
        path = Path(self.folder) / name[:2] / name
        proven = options.verify and hash_like(known.checksum) is not None
        with self._explained(known):
            # This one may be shared; those in it are not.
            Path(self.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            private_folder(path.parent)
            # First without the lock: a kept file is the usual case.
            file, _ = open_sound(path, known, verify=options.verify)
            if file is not None:
                return Kept(path, known, file, refetched=False, proven=proven)
            with self._locked(path, known):
                # Another process may have been quicker.
                file, damage = open_sound(path, known, verify=options.verify)
                if file is None:
                    if damage:
                        text = "%s: its file in the cache %s: it is fetched again"
                        _log.warning(text, _name(known), damage)
                        remove(path)
                    file = self._download(known, path, options)
                    self._evict(keep=path)
        return Kept(path, known, file, refetched=bool(damage), proven=proven)

    @contextmanager
    def _explained(self, url: ObjectURL) -> Iterator[None]:
        """Turn an error of the file system into one with object and folder."""
        try:
            yield
        except AISError:
            raise
        except OSError as error:
            todo = "name another folder, or correct its rights"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                todo = Remedy("make room", "pass a smaller max_bytes= (of WebDataset: cache_size=)")
            named = str(error.filename or "")
            where = f" ({named})" if named not in ("", str(self.folder)) else ""
            raise UsageError.at(
                f"{_name(url)} cannot be kept in {self.folder}: {error.strerror or error}{where}",
                todo=todo,
                url=str(url),
            ) from error

    @contextmanager
    def _locked(self, path: Path, url: ObjectURL) -> Iterator[None]:
        from filelock import FileLock, Timeout  # 0.03 s, for a cache alone

        try:
            # A lock of the system: it ends with its process, also after a kill.
            lock = FileLock(path.with_suffix(".lock"), mode=0o600).acquire(timeout=self.wait_s)
        except Timeout:
            raise StallError.at(
                f"another process has been downloading the object into {self.folder} for {self.wait_s:g} s",
                todo="look for a hanging process with that cache folder, or use another folder",
                url=str(url),
            ) from None
        with lock:
            yield

    def _download(self, url: ObjectURL, path: Path, options: StoreOptions) -> FileIO:
        """Download the object to the file `path`; return it at its first byte."""
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        part = Path(name)
        file = FileIO(handle, "r+")
        try:
            with open_blocks(url, options) as blocks:
                for block in blocks:  # to the end: only then size and checksum are checked
                    write_all(file, block)
            os.fsync(handle)  # or after a power cut the name would be there without the bytes
            part.replace(path)
            sync_folder(path.parent)
            file.seek(0)
        except BaseException:
            file.close()
            part.unlink(missing_ok=True)
            raise
        return file

    def _evict(self, keep: Path) -> None:
        """Delete the least recently used files until the rest fits.

        Files of crashed downloads are deleted, too.
        """
        found: list[tuple[float, int, Path]] = []
        for file in Path(self.folder).glob("??/*"):
            with suppress(OSError):  # another process evicts, too
                status = file.lstat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                if file.suffix == ".part":
                    if time.time() - status.st_mtime > _STALE_S:
                        file.unlink()
                elif _OURS.fullmatch(file.name):
                    found.append((status.st_atime, status.st_size, file))
        delete_oldest(found, self.max_bytes, keep)


def delete_oldest(found: Iterable[tuple[Any, int, Path]], most: float, keep: Path | None = None) -> None:
    """Delete files, least key first, down to `most` bytes; never `keep`."""
    oldest = sorted(found, key=lambda entry: entry[0])
    total = sum(size for _, size, _ in oldest)
    for _, size, path in oldest:
        if total <= most:
            return
        if path != keep:
            with suppress(OSError):  # another process deletes, too
                path.unlink()
            total -= size


def _name(url: ObjectURL) -> str:
    return parse_url(url).uri
