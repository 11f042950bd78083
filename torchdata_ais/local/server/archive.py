"""Archives.

Python's `re` takes for ever over ``(a+)+$``, and holds the interpreter meanwhile: one request would stop every node.
AIStore's own engine (RE2) cannot, but would be one more library for one request that is seldom made.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .files import BLOCK_BYTES, FileSlice
from .problem import ReplyError, not_implemented
from .store import Object, Store

DEADLINE_S = 3.0
_PROGRAM = Path(__file__).with_name("search_program.py")
_AT_ONCE = threading.BoundedSemaphore(2)


def find_names(pattern: str, names: Sequence[str]) -> list[int]:
    """Return the positions of the names in which the pattern is found.

    None for an invalid pattern. One that takes more than `DEADLINE_S` is a 400, too many at once a 429.
    """
    if re.escape(pattern) == pattern:
        return [position for position, name in enumerate(names) if pattern in name]
    if not _AT_ONCE.acquire(timeout=2 * DEADLINE_S):
        raise ReplyError(429, "too many regular expressions at once")
    try:
        done = subprocess.run(  # noqa: S603  our own file under our own interpreter
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            input=json.dumps([pattern, *names]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=True,
        )
    except subprocess.TimeoutExpired as cause:
        message = f"the regular expression {pattern!r:.100} takes longer than {DEADLINE_S:g} s"
        raise ReplyError(400, message) from cause
    except subprocess.CalledProcessError as cause:
        raise ReplyError(400, f"the regular expression {pattern!r:.100} takes too much memory") from cause
    finally:
        _AT_ONCE.release()
    return [int(position) for position in json.loads(done.stdout)]


EXTENSIONS = (".tar", ".tgz", ".tar.gz", ".zip", ".tar.lz4")
ARCHIVES_KEPT = 512


class NotAnArchiveError(ReplyError):
    """The bytes do not fit the name of the object."""

    def __init__(self, name: str, cause: Exception) -> None:
        super().__init__(400, f"{name}: archive/tar: invalid tar header ({cause})")


def extension_of(name: str) -> str:
    """The archive extension of a name, or the empty string."""
    return next((ext for ext in EXTENSIONS if name.endswith(ext)), "")


def wanted_extension(name: str, mime: str, refused: ReplyError) -> str:
    """The extension by `mime`, else that of the name; else `refused`."""
    ext = extension_of(mime if mime.startswith(".") else f".{mime}") if mime else extension_of(name)
    if not ext:
        raise refused
    if ext == ".tar.lz4":
        raise not_implemented("archives in .tar.lz4")
    return ext


class Member(NamedTuple):
    """A regular file in an archive: `offset` counts in the decompressed tar.

    In a zip it is the position in the directory.
    """

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Archive:
    """An open archive.

    Data files never change: those of one number and extension are equal.
    """

    number: int
    extension: str
    name: str = field(compare=False)
    file: FileSlice = field(compare=False)

    @property
    def files(self) -> tuple[Member, ...]:
        """Its regular files in their order."""
        return _index(self)

    def find(self, name: str) -> Member | None:
        """The first file of this name."""
        return next((member for member in self.files if member.name == name), None)

    def body(self, member: Member) -> bytes | FileSlice:
        """One file as the body of an answer, from the disk where possible."""
        if self.extension == ".tar":
            return self.file.part(member.offset, member.size)
        return next(self.read([member]))

    def read(self, wanted: Iterable[Member]) -> Iterator[bytes]:
        """Yield the bytes of the wanted files, in the order of the archive."""
        with self._unpacked() as source:
            for member in wanted:
                if isinstance(source, zipfile.ZipFile):
                    yield source.read(source.infolist()[member.offset])
                else:
                    source.seek(member.offset)
                    yield source.read(member.size)

    def copied(self, wanted: Sequence[Member], mtime: int = 0) -> Iterator[File]:
        """Yield files, which must be in its order, for another archive."""
        for member, content in zip(wanted, self.read(wanted), strict=True):
            yield File(member.name, member.size, (content,), mtime)

    @contextmanager
    def _unpacked(self) -> Iterator[zipfile.ZipFile | gzip.GzipFile | BinaryIO]:
        """Open the zip or the decompressed tar; errors are `NotAnArchiveError`."""
        try:
            with self.file.stream() as file:
                if self.extension == ".zip":
                    with zipfile.ZipFile(file) as zipped:
                        yield zipped
                else:
                    with file if self.extension == ".tar" else gzip.open(file) as tar:
                        yield tar
        except _BROKEN as cause:
            raise NotAnArchiveError(self.name, cause) from cause


def archive_of(file: FileSlice, entry: Object, mime: str = "") -> Archive:
    """Return an open object as an archive, of the kind by its name or `mime`."""
    unknown = ReplyError(400, f'unrecognized or unsupported file format: "{entry.name}"')
    return Archive(entry.file, wanted_extension(entry.name, mime, unknown), entry.name, file)


@contextmanager
def opened(store: Store, entry: Object) -> Iterator[Archive]:
    """Open an object as the archive of its name's kind."""
    with store.open(entry) as file:
        yield archive_of(file, entry)


_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""Errors of the libraries over invalid, damaged or unsupported archives."""


@lru_cache(ARCHIVES_KEPT)
def _index(archive: Archive) -> tuple[Member, ...]:
    with archive._unpacked() as source:
        if isinstance(source, zipfile.ZipFile):
            infos = enumerate(source.infolist())
            return tuple(Member(info.filename, i, info.file_size) for i, info in infos if not info.is_dir())
        names: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
        with tarfile.open(fileobj=source, mode="r:", **names) as tar:
            return tuple(Member(item.name, item.offset_data, item.size) for item in tar if item.isfile())


def matching(names: Sequence[str], text: str, mode: str) -> list[int]:
    """Return the positions of the names for `archregx` and `archmode`."""
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
    """AIStore's key of a name: without the last extension."""
    folder, slash, base = name.rpartition("/")
    stem, dot, _ = base.rpartition(".")
    return folder + slash + (stem if dot else base)


class File(NamedTuple):
    """One file of an archive to be made, read when its turn has come."""

    name: str
    size: int
    blocks: Iterable[bytes]
    mtime: int = 0


def packed(extension: str, files: Iterable[File]) -> Iterator[bytes]:
    """Yield an archive of the files in blocks; a zip all at once."""
    if extension == ".zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for file in files:
                archive.writestr(file.name, b"".join(file.blocks))
        yield out.getvalue()
    elif extension == ".tar":
        yield from _tar(files)
    else:
        stream = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)  # with the header of gzip, without a time in it
        for block in _tar(files):
            yield stream.compress(block)
        yield stream.flush()


def _tar(files: Iterable[File]) -> Iterator[bytes]:
    for file in files:
        info = tarfile.TarInfo(file.name)
        info.size, info.mtime = file.size, file.mtime
        header = info.tobuf(tarfile.PAX_FORMAT)  # of ustar, where that is enough
        pieces = itertools.chain([header], file.blocks, [bytes(-file.size % 512)])
        if file.size <= BLOCK_BYTES:
            yield b"".join(pieces)
        else:
            yield from pieces
    yield bytes(1024)
