"""Bytes on the disk: read block by block, written whole."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import xxhash

BLOCK_BYTES = 1 << 20


class Digest(Protocol):
    """A running hash."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""


class _Crc32c:
    """CRC32C by a table: slow, and enough for the objects of tests."""

    def __init__(self) -> None:
        self._value = 0xFFFFFFFF

    def update(self, data: bytes | memoryview) -> None:
        value, table = self._value, _crc_table()
        for byte in data:
            value = table[(value ^ byte) & 255] ^ (value >> 8)
        self._value = value

    def hexdigest(self) -> str:
        return f"{self._value ^ 0xFFFFFFFF:08x}"


@functools.cache
def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


class _NoChecksum:
    """The digest of a bucket without checksums."""

    def update(self, data: bytes | memoryview) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


DIGESTS: dict[str, Callable[[], Digest]] = {
    "xxhash2": xxhash.xxh64,
    "xxhash": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "crc32c": _Crc32c,
    "none": _NoChecksum,
}
"""Kinds of checksums by AIStore's names."""


@dataclass(slots=True)
class FileSlice(AbstractContextManager["FileSlice"]):
    """`size` bytes of an open file from `offset`; its last owner closes it."""

    fd: int
    offset: int
    size: int

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def part(self, offset: int, size: int) -> FileSlice:
        """Return another part of the file, open by itself."""
        return FileSlice(os.dup(self.fd), offset, size)

    def stream(self) -> BinaryIO:
        """Return the file at its beginning; it is closed by itself."""
        file = os.fdopen(os.dup(self.fd), "rb")
        file.seek(0)
        return file

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes in blocks."""
        offset, end = self.offset, self.offset + self.size
        while offset < end:
            block = os.pread(self.fd, min(BLOCK_BYTES, end - offset), offset)
            if not block:
                raise OSError("a data file became shorter while it was read")
            offset += len(block)
            yield block


def write_all(fd: int, block: bytes | memoryview) -> None:
    """Write all of a block, as a plain `os.write` need not."""
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]


def file_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file block by block."""
    with FileSlice(os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0, path.stat().st_size) as file:
        yield from file.blocks()


def checksum_of(path: Path, kind: str) -> str:
    """Return the checksum of a file."""
    digest = DIGESTS[kind]()
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def append_blocks(path: Path, blocks: Iterable[bytes | memoryview], kind: str = "xxhash2") -> tuple[int, str]:
    """Append blocks to a file; return their size and checksum."""
    digest = DIGESTS[kind]()
    size = 0
    with path.open("ab", buffering=0) as file:
        for block in blocks:
            write_all(file.fileno(), block)
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
