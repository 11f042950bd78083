"""Archives as AIStore sees them: tar, tgz and zip by the extension; and tar headers as it writes them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .problem import ReplyError, not_implemented
from .reply import FileSlice
from .search import find_names

__all__ = [
    "TAR_END",
    "Archive",
    "ArchiveIndex",
    "NotAnArchiveError",
    "is_archive",
    "matching",
    "tar_member",
    "tgz_of",
    "zip_of",
]

EXTENSIONS = (".tar", ".tgz", ".tar.gz", ".zip", ".tar.lz4")
TAR_END = bytes(1024)
ARCHIVES_KEPT = 512


class NotAnArchiveError(Exception):
    """The bytes are not what the name of the object says."""


def extension_of(name: str) -> str:
    """The archive extension of a name, or the empty string."""
    return next((ext for ext in EXTENSIONS if name.endswith(ext)), "")


def is_archive(name: str) -> bool:
    """Whether the name says that the object is an archive."""
    return bool(extension_of(name))


@dataclass(frozen=True)
class Archive:
    """The regular files of one archive: name, offset of the content and size, in their order.

    Offsets count in the file itself for a plain tar, in the decompressed tar for a tgz, and are the
    positions in the directory of a zip.
    """

    extension: str
    files: tuple[tuple[str, int, int], ...]

    def find(self, name: str) -> tuple[str, int, int] | None:
        """The first file of this name."""
        return next((file for file in self.files if file[0] == name), None)


class ArchiveIndex:
    """What is in which archive. Data files never change, so an index is good for as long as its file."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, str], Archive] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, fd: int, number: int, name: str, mime: str = "") -> Archive:
        """Return the index of data file `number`, open as `fd`, which holds the object `name`."""
        key = number, _extension(name, mime)
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        archive = _read_index(fd, key[1])
        with self._lock:
            self._known[key] = archive
            while len(self._known) > ARCHIVES_KEPT:
                self._known.popitem(last=False)
        return archive


def _extension(name: str, mime: str) -> str:
    ext = extension_of(mime if mime.startswith(".") else f".{mime}") if mime else extension_of(name)
    if not ext:
        raise ReplyError(400, f'unrecognized or unsupported file format: "{name}"')
    if ext == ".tar.lz4":
        raise not_implemented("archives in .tar.lz4")
    return ext


def _read_index(fd: int, ext: str) -> Archive:
    files: list[tuple[str, int, int]] = []
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(0)
            if ext == ".zip":
                with zipfile.ZipFile(file) as archive:
                    infos = enumerate(archive.infolist())
                    files = [(info.filename, i, info.file_size) for i, info in infos if not info.is_dir()]
            else:
                names: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
                with tarfile.open(fileobj=file, mode="r:" if ext == ".tar" else "r:gz", **names) as tar:
                    files = [(item.name, item.offset_data, item.size) for item in tar if item.isfile()]
    except _BROKEN as cause:
        raise NotAnArchiveError(str(cause)) from cause
    return Archive(ext, tuple(files))


_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""What the libraries raise over bytes that are no archive, or one that is damaged or uses what they lack."""


def contents(fd: int, archive: Archive, wanted: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
    """Yield the bytes of the wanted files, which must be in the order of the archive."""
    try:
        yield from _contents(fd, archive, wanted)
    except _BROKEN as cause:
        raise NotAnArchiveError(str(cause)) from cause


def _contents(fd: int, archive: Archive, wanted: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
    if archive.extension == ".tar":
        for _, offset, size in wanted:
            yield os.pread(fd, size, offset)
        return
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        if archive.extension == ".zip":
            with zipfile.ZipFile(file) as zipped:
                infos = zipped.infolist()
                for _, position, _ in wanted:
                    yield zipped.read(infos[position])
            return
        with gzip.open(file) as stream:
            for _, offset, size in wanted:
                stream.seek(offset)
                yield stream.read(size)


def body_of(fd: int, archive: Archive, file: tuple[str, int, int]) -> bytes | FileSlice:
    """One file as the body of an answer: from the disk where it lies there as it is."""
    if archive.extension == ".tar":
        return FileSlice(os.dup(fd), file[1], file[2])
    return next(contents(fd, archive, [file]))


def matching(names: Sequence[str], text: str, mode: str) -> list[int]:
    """Return the positions of the names that `archregx` and `archmode` ask for."""
    if mode in ("", "regexp"):
        return find_names(text, names)
    tests: dict[str, Callable[[str], bool]] = {
        "prefix": lambda name: name.startswith(text),
        "suffix": lambda name: name.endswith(text),
        "substr": lambda name: text in name,
        "wdskey": lambda name: _without_extension(name) == text,
    }
    if mode not in tests:
        message = f'invalid matching mode "{mode}", expecting one of: [regexp prefix suffix substr wdskey]'
        raise ReplyError(400, f"dpq: 'archmode={mode}', err: {message}")
    return [position for position, name in enumerate(names) if tests[mode](name)]


def _without_extension(name: str) -> str:
    """AIStore's key of a name: without what follows the last dot of its last part."""
    folder, slash, base = name.rpartition("/")
    stem, dot, _ = base.rpartition(".")
    return folder + slash + (stem if dot else base)


def tar_header(name: str, size: int, mtime: int = 0) -> bytes:
    """The header of a regular file as Go's archive/tar writes it: ustar, or PAX where ustar has no room."""
    raw = name.encode()
    if len(raw) > 100 or not name.isascii() or size >= 8 << 30:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = size, mtime
        return info.tobuf(tarfile.PAX_FORMAT)
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (0o644, 0, 0, size, mtime)
    block = bytearray(512)
    block[: len(raw)] = raw
    block[100 : 100 + len(numbers)] = numbers
    block[148:157] = b"        0"
    block[257:265] = b"ustar\x0000"
    block[329:345] = b"0000000\x000000000\0"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def tar_member(name: str, content: bytes, mtime: int = 0) -> bytes:
    """Header, content and padding of one file."""
    return tar_header(name, len(content), mtime) + content + bytes(-len(content) % 512)


def tgz_of(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A compressed tar of the files."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as stream:
        for name, content in files:
            stream.write(tar_member(name, content))
        stream.write(TAR_END)
    return out.getvalue()


def zip_of(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A zip archive of the files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return out.getvalue()
