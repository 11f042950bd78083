"""Bytes on the disk: read block by block, written whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class FileSlice(AbstractContextManager["FileSlice"]):
    """`size` bytes of an open file from `offset` on. Whoever has it last closes it; a `with` block does."""

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


def append_blocks(path: Path, blocks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write blocks to the end of a file, and return how many bytes they were and their checksum."""
    digest = xxhash.xxh64()
    size = 0
    with path.open("ab", buffering=0) as file:
        for block in blocks:
            write_all(file.fileno(), block)
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
