"""Targets of shards, and their compression."""

from __future__ import annotations

import bz2
import fcntl
import io
import logging
import lzma
import os
import sys
import tempfile
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import xxhash

from torchdata_ais._util.files import name_file, naming, sync_folder
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.tar.compression import load_zstd
from torchdata_ais.tar.writer import Buffer
from torchdata_ais.urls import Location, parse_url, redact
from torchdata_ais.urls.parsing import COMPRESSIONS

_BUFFER_BYTES = 1 << 20

logger = logging.getLogger("torchdata_ais")


class Target(ABC):
    """Takes bytes, and publishes them under a name on request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self._digest = xxhash.xxh64()

    @property
    def checksum(self) -> str:
        """XXH64 of the written bytes, as 16 hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, block: Buffer) -> None:
        """Take the next bytes."""
        self._digest.update(block)
        self.size += len(block)
        self._write(block)

    @abstractmethod
    def _write(self, block: Buffer) -> None: ...

    @abstractmethod
    def publish(self) -> None:
        """Publish the written bytes, and release all resources: called once."""

    @abstractmethod
    def discard(self) -> None:
        """Discard what can be; safe to call twice, and after `publish`."""


class _Kept(Target):
    """Bytes kept in a file until they are whole; `part` is its name, if any."""

    def __init__(self, name: str, file: Any, part: str | None) -> None:
        super().__init__(name)
        self._file, self._part = file, part
        self._kept_in = part or tempfile.gettempdir()  # for errors
        self._finalizer = weakref.finalize(self, _abandoned, os.getpid(), name, file, part)

    def discard(self) -> None:
        """Close the file, and remove it."""
        if self._finalizer.detach():
            _remove(self._file, self._part)

    def _write(self, block: Buffer) -> None:
        try:
            self._file.write(block)
        except OSError as error:
            name_file(error, self._kept_in)
            raise


class FileTarget(_Kept):
    """A file: written as ``.NAME.part`` next to it, renamed when it is whole.

    The part belongs to one writer at a time (it is locked), and the part of a killed process is written over by the
    next one.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        folder, base = os.path.split(self._path)
        part = os.path.join(folder, f".{base}.part")  # noqa: PTH118 - text in, text out
        try:
            file = os.fdopen(_locked(part, path), "wb", _BUFFER_BYTES)
        except FileNotFoundError as error:
            raise NotFoundError.at(
                f"there is no folder {folder}", todo="make it first, or write elsewhere", url=path
            ) from error
        except NotADirectoryError as error:
            raise UsageError.at(
                f"a part of {folder} is a file, and no folder", todo="write elsewhere", url=path
            ) from error
        super().__init__(path, file, part)

    def publish(self) -> None:
        """Flush to the disk, then rename the part: a power cut leaves one whole."""
        with naming(self._kept_in):
            self._file.flush()
            os.fsync(self._file.fileno())
        os.replace(self._kept_in, self._path)  # noqa: PTH105 - text in, text out
        self._finalizer.detach()
        self._file.close()
        sync_folder(os.path.dirname(self._path))  # noqa: PTH120 - text in, text out


class ObjectTarget(_Kept):
    """An object: kept in a temporary file, stored when it is whole.

    The file has no name (in ``TMPDIR``). The cluster takes an object with its length and checksum or not at all. A
    killed process leaves nothing.
    """

    def __init__(self, place: Location, options: StoreOptions) -> None:
        name, place = place.shown, place.at(options.endpoint)
        if place.kind != "object" or not place.name or place.name.endswith("/"):
            raise UsageError.at(
                "the URL names no object to write", todo="write ais://bucket/name.tar", url=name
            )
        place.require_endpoint()
        self._place, self._options = place, options
        file = tempfile.TemporaryFile(prefix="torchdata_ais-", buffering=_BUFFER_BYTES)  # noqa: SIM115
        super().__init__(name, file, None)

    def publish(self) -> None:
        """Store the object; on failure nothing of it is there."""
        self._finalizer.detach()
        with self._file as file:
            with naming(self._kept_in):
                file.seek(0)  # writes the rest
            put_object(self._place, file, self._options, size=self.size, checksum=self.checksum)


class StreamTarget(Target):
    """A stream of the caller's. Written bytes cannot be taken back."""

    def __init__(self, stream: object, close: Callable[[], object] | None = None) -> None:
        super().__init__(str(getattr(stream, "name", type(stream).__name__)))
        if isinstance(stream, io.TextIOBase) or not hasattr(stream, "write"):
            raise UsageError.at(
                f"a {type(stream).__name__} takes no bytes",
                todo='pass a path, a URL, or a file opened in mode "wb"',
            )
        self._stream, self._close = stream, close
        # A raw stream may take a part of its input.
        self._raw = isinstance(stream, io.RawIOBase)

    def _write(self, block: Buffer) -> None:
        with naming(self.name):
            if not self._raw:
                self._stream.write(block)
                return
            rest = memoryview(block).cast("B")
            while rest:
                rest = rest[self._stream.write(rest) :]

    def publish(self) -> None:
        """Flush, and close the file if it is ours."""
        if hasattr(self._stream, "flush"):
            with naming(self.name):
                self._stream.flush()
        self.discard()

    def discard(self) -> None:
        """Close the file if it is ours."""
        close, self._close = self._close, None
        if close is not None:
            close()


def open_target(to: object, options: Callable[[], StoreOptions] = StoreOptions) -> Target:
    """Return the target of a path, a URL, ``-`` (standard output) or a stream."""
    if not isinstance(to, str | os.PathLike):
        return StreamTarget(to)
    name = os.fspath(to)
    if not isinstance(name, str):
        name = os.fsdecode(name)
    place = parse_url(name)
    if place.kind == "object":
        return ObjectTarget(place, options())
    if place.kind == "stdin":
        return StreamTarget(sys.stdout.buffer)
    if place.kind == "http":
        raise UsageError.at(
            "a web server takes no shards",
            todo="write ais://bucket/name.tar, an object URL, or a local path",
            url=redact(name),
        )
    if os.path.isdir(place.name):  # noqa: PTH112 - text in
        raise UsageError.at("this is a folder", todo="name a file in it", url=place.name)
    if os.path.exists(place.name) and not os.path.isfile(place.name):  # noqa: PTH110, PTH113 - text in
        # A pipe or device: a part next to it, or a renaming, is not possible.
        stream = open(place.name, "wb")  # noqa: SIM115, PTH123 - closed by the target
        return StreamTarget(stream, stream.close)
    return FileTarget(place.name)


def _locked(part: str, path: str) -> int:
    """Open the part file, empty, for one writer alone."""
    # Repeated until the locked file is the one under this name: it may be renamed between open and lock.
    while True:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise UsageError.at(
                "another writer is at work on this file",
                todo="let it finish, or choose another name",
                url=path,
            ) from None
        except OSError:  # a file system without locks
            pass
        # The other writer may have published the file that was opened here as its part: then it is not a part now.
        try:
            if os.path.samestat(os.fstat(fd), os.stat(part)):  # noqa: PTH116
                os.ftruncate(fd, 0)
                return fd
        except FileNotFoundError:
            pass
        except BaseException:  # Ctrl-C: no other code would remove it
            os.unlink(part)  # noqa: PTH108
            os.close(fd)
            raise
        os.close(fd)


def _remove(file: Any, part: str | None) -> None:
    if part is not None:
        with suppress(OSError):
            os.unlink(part)  # noqa: PTH108
    with suppress(OSError):
        file.close()  # flushes the rest, which fails if the disk is full


def _abandoned(pid: int, name: str, file: object, part: str | None) -> None:
    """Clean up after a writer that was not closed, and log the loss."""
    if pid != os.getpid():  # a copy in a child process: the writer is the parent's
        return
    _remove(file, part)
    logger.warning("%s was never closed, and is discarded: use `with`, or call close()", name)


class Compressor(Protocol):
    """Common interface of `bz2`, `lzma`, `zlib` and Zstandard compressors."""

    def compress(self, data: Any, /) -> bytes:
        """Take data, return the output that is ready."""

    def flush(self) -> bytes:
        """Return the rest."""


def compression_for(name: object, compress: bool | str | None) -> str:
    """Return ``gz``, ``bz2``, ``xz``, ``zst`` or ``""``, by the name if None.

    Example:
        >>> compression_for("s.tgz", None), compression_for("s.tar", "zst"), compression_for("s.tar.gz", False)
        ('gz', 'zst', '')
    """
    if compress is None:
        return next((known for known in COMPRESSIONS if isinstance(name, str) and name.endswith(known)), "")
    if compress is True:
        return "gz"
    if not compress:
        return ""
    if compress not in COMPRESSIONS:
        raise UsageError.at(
            f"compress={compress!r} is no format", todo=f"use True, False or one of {', '.join(COMPRESSIONS)}"
        )
    return compress


def new_compressor(kind: str) -> Compressor | None:
    """Return a compressor of one stream, without the time; None for ``""``."""
    if kind == "gz":
        return zlib.compressobj(6, zlib.DEFLATED, 31)  # gzip framing, time 0
    if kind == "bz2":
        return bz2.BZ2Compressor()
    if kind == "xz":
        return lzma.LZMACompressor(check=lzma.CHECK_CRC64)
    if kind == "zst":
        zstd = load_zstd()
        made: Compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})
        return made
    return None
