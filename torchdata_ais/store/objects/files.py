"""Local files and standard input."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader, FileIO
from itertools import islice

from torchdata_ais._util.files import open_regular
from torchdata_ais.errors import (
    AuthError,
    ChecksumError,
    NotFoundError,
    ObjectChangedError,
    ReadError,
    StallError,
    UsageError,
)
from torchdata_ais.store.transport.attempts import Cancelled
from torchdata_ais.store.transport.metadata import Hash, ObjectMetadata, hash_like
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.read_ahead import Reader
from torchdata_ais.store.transport.request_log import journal
from torchdata_ais.urls import ObjectURL
from torchdata_ais.urls.parsing import archive_ending

_POLL_S = 0.1  # how soon a reader that waits for a pipe notices that it was closed
_LOOKS = 10_000  # files of a folder that an error looks at
_KEPT = 128  # files that a reader of ranges keeps open


class FileReader(Reader):
    """Reader of a file, a pipe or standard input (``-``) for one thread.

    Devices are refused. The first byte of a pipe or of standard input has the deadline ``first_byte_timeout``, each
    later one ``stall_timeout``.

    A file that has another size or time of change at its end than at its beginning is an error. No read is repeated:
    a failed read of a disk fails again.
    """

    def __init__(
        self, path: str, options: StoreOptions, start: int, known: ObjectMetadata, copy: FileIO | None = None
    ) -> None:
        super().__init__(options, start, known)
        self._path = path  # of a copy: the name of the object
        self._name = path if copy is None else f"{path} (in the cache)"
        self._copy = copy

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes from `start` on, in blocks of at most ``block_bytes``."""
        begin = time.monotonic()
        if self._copy is not None:
            self.stats.first_byte_s = 0.0
            yield from self._file(self._copy.fileno())
            return
        if self._path == "-":
            yield from self._stream(sys.stdin.fileno())
            return
        try:
            # Without O_NONBLOCK, a named pipe without a writer could not even be closed.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise open_error(self._path, error) from error
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise open_error(self._path, IsADirectoryError(21, "is a directory"))
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # /dev/zero has no end
                raise open_error(self._path, OSError(errno.EINVAL, "it is a device"))
            self.stats.first_byte_s = time.monotonic() - begin
            yield from self._file(fd) if stat.S_ISREG(mode) else self._stream(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the copy."""
        if self._copy is not None:
            self._copy.close()

    def _file(self, fd: int) -> Iterator[bytes]:
        found = file_facts(fd)
        difference = self.facts.difference(found)
        if difference:
            raise self._changed(difference)
        self.facts.adopt(found)
        digest = self._hash()
        if self._start:
            os.lseek(fd, self._start, os.SEEK_SET)
        with journal().asking(self._name, "file", self._start) as record:
            record.first_byte_s = self.stats.first_byte_s
            while True:
                begin = time.monotonic()
                try:
                    block = os.read(fd, self._options.block_bytes)
                except OSError as error:
                    raise reading_failed(self._path, self._offset, error) from error
                record.read_s += time.monotonic() - begin
                if not block:
                    break
                record.bytes += len(block)
                if digest is not None:
                    digest.update(block)
                yield self._passed(block)
        after = file_facts(fd)
        if self._offset != max(found.size or 0, self._start) or after != found:
            raise self._changed(
                f"{found.size} bytes at the start, {after.size} at the end, {self._offset} read"
            )
        self._check_end(digest)

    def _stream(self, fd: int) -> Iterator[bytes]:
        """Yield the bytes of a pipe, without size, version or seeking."""
        skip = self._start
        allowed = self._options.first_byte_timeout
        while True:
            begin = time.monotonic()
            while not select.select([fd], [], [], _POLL_S)[0]:
                if self.cancel.cancelled:
                    raise Cancelled
                if allowed is not None and time.monotonic() - begin > allowed:
                    raise self._stalled(allowed)
            allowed = self._options.stall_timeout
            try:
                block = os.read(fd, min(self._options.block_bytes, skip or self._options.block_bytes))
            except BlockingIOError:
                continue
            if not block:
                break
            if skip:
                skip -= len(block)
            else:
                yield self._passed(block)
        self.verified = False

    def _passed(self, block: bytes) -> bytes:
        self._offset += len(block)
        self.stats.bytes += len(block)
        return block

    def _hash(self) -> Hash | None:
        if not self._options.verify or self._start or not self.facts.checksum:
            return None
        self._note_unverified(self._name)
        return hash_like(self.facts.checksum)

    def _check_end(self, digest: Hash | None) -> None:
        self.verified = digest is not None
        if digest is not None and digest.hexdigest() != self.facts.checksum:
            what = f"{self._name}: the file has the checksum {digest.hexdigest()}, not {self.facts.checksum}"
            todo = "copy it anew" if self._copy is None else "read it again: it is then fetched anew"
            raise ChecksumError.at(what, todo=todo, url=self._path, offset=self._offset)

    def _stalled(self, allowed: float) -> StallError:
        name = "standard input" if self._path == "-" else self._path
        return StallError.at(
            f"{name}: nothing was written to this pipe for {allowed:g} s, at byte {self._offset}",
            todo="look at the program that writes it, or raise first_byte_timeout= or stall_timeout= of StoreOptions",
            url=self._path,
            offset=self._offset,
        )

    def _changed(self, difference: str) -> ObjectChangedError:
        what = f"{self._name}: the file changed: {difference}"
        todo = "do not write to a file that is being read"
        return ObjectChangedError.at(what, todo=todo, url=self._path, offset=self._offset)


class OpenFiles:
    """Files that stay open between reads of their ranges: the last 128.

    Opening a file takes longer than reading a small range of it. A file that is replaced meanwhile is read as it was.
    """

    def __init__(self) -> None:
        self._files: dict[str, BufferedReader] = {}  # the last used is the last
        # An abandoned iterator may be part of a reference cycle, whose collection warns of open files.
        weakref.finalize(self, _close, self._files).atexit = False

    def open(self, path: str) -> BufferedReader:
        """Return the open file; errors as of `open_regular`."""
        file = self._files.pop(path, None) or self._opened(path)
        self._files[path] = file
        if len(self._files) > _KEPT:
            self.close(next(iter(self._files)))
        return file

    def _opened(self, path: str) -> BufferedReader:
        try:
            return open_regular(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                raise
        self.close()  # those are not needed
        return open_regular(path)

    def close(self, path: str | None = None) -> None:
        """Close one file, or all."""
        _close(self._files, path)


def _close(files: dict[str, BufferedReader], path: str | None = None) -> None:
    for name in [*files] if path is None else [path]:
        files.pop(name).close()


def path_todo(path: str) -> str:
    """Return advice for a missing path that begins with ~ or is a prefix."""
    if path[:1] == "~":
        return "write os.path.expanduser(...): only a shell reads ~ as the home folder"
    folder, prefix = os.path.split(path)
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in islice(entries, _LOOKS):
            ending = archive_ending(entry.name)
            if prefix and entry.name.startswith(prefix) and ending and not archive_ending(prefix):
                return f'write "{path}*{ending}": a prefix is enough for objects alone'
    return ""


def open_error(path: str, error: OSError | ValueError) -> NotFoundError | AuthError | UsageError | ReadError:
    """Return the error of a file that could not be opened."""
    if not isinstance(error, OSError):  # Python's own, for a NUL or a lone surrogate
        return UsageError.at(f"{path}: no file can have this name ({error})", todo="check the path", url=path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError.at(
            f"{path}: there is no such file",
            todo=path_todo(path) or "check the path (for an object write ais://bucket/name)",
            url=path,
        )
    if isinstance(error, IsADirectoryError):
        return UsageError.at(f"{path}: this is a directory", todo="name files, or a pattern", url=path)
    if isinstance(error, PermissionError):
        return AuthError.at(f"{path}: no right to read it", todo="change its mode", url=path)
    if error.errno == errno.EINVAL:
        return ReadError.at(f"{path}: {error.strerror}", todo="name a regular file", url=path)
    return ReadError.at(f"{path}: {error}", todo="look at the file system", url=path)


def reading_failed(path: str, offset: int, error: OSError) -> ReadError:
    """Return the error of an open file that cannot be read on."""
    what = f"{path}: reading failed at byte {offset} ({error})"
    return ReadError.at(what, todo="look at the disk or the network file system", url=path, offset=offset)


def file_facts(fd: int) -> ObjectMetadata:
    """Return the identifying metadata of the open file."""
    status = os.fstat(fd)
    return ObjectMetadata(size=status.st_size, version=_version(status))


def file_url(path: str) -> ObjectURL:
    """Return `path` with the size and the version that a read would report.

    A missing file is a `NotFoundError`.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - text in
    except ValueError as error:
        raise open_error(path, error) from error
    except OSError as error:
        raise NotFoundError.at(
            f"{path}: there is no such file ({error.strerror})",
            todo=path_todo(path) or "check the path",
            url=path,
        ) from error
    return ObjectURL(path, status.st_size, None, _version(status))


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"
