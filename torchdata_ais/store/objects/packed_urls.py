"""Packed URLs in memory that processes share.

A list of a million URLs takes 190 MB in every worker. A spawned worker gets a copy. In a forked one each access to a
URL copies the page with its reference count. Packed URLs are read-only bytes.
"""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

from torchdata_ais.urls import ObjectURL

_SHARED_BYTES = 256 << 10  # smaller data is sent with its object


class SharedBytes:
    """Read-only bytes shared between processes.

    Many bytes are in a file without a name, which ends with the last process that has it open. A forked or spawned
    process has the same memory, and so has a copy by pickle. Another process may take it by `place`.

    Attributes:
        data: The bytes.
    """

    def __init__(self, data: memoryview, fd: int | None = None) -> None:
        self.data = data
        self._fd = fd
        if fd is not None:
            weakref.finalize(self, os.close, fd)

    @classmethod
    def of(cls, data: bytes) -> SharedBytes:
        """Return memory with `data`, shared if it is large and there is space."""
        if len(data) >= _SHARED_BYTES:
            try:
                return cls._at(_file_with(data))
            except OSError:
                pass  # no more descriptors, or no memory: each process has its own then
        return cls(memoryview(data))

    @property
    def place(self) -> str | None:
        """Path of the bytes for other processes, valid while this one lives."""
        return None if self._fd is None else f"/proc/{os.getpid()}/fd/{self._fd}"

    def same_at(self, place: str) -> SharedBytes | None:
        """Return the memory of another process if it still has these bytes."""
        try:
            # Another file may have that number by now. A pipe, say, would be waited for.
            found = Path(place).stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size != len(self.data):
                return None
            there = self._at(os.open(place, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        return there if xxh3_128_digest(there.data) == xxh3_128_digest(self.data) else None

    @classmethod
    def _at(cls, fd: int) -> SharedBytes:
        """Return the memory of a descriptor, and own the descriptor."""
        # All pages now: those that only one process has touched count as private.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        try:
            return cls(memoryview(mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)), fd)
        except BaseException:
            os.close(fd)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if self._fd is not None and get_spawning_popen() is not None:
            return _at_sent, (DupFd(self._fd),)
        return _of_bytes, (bytes(self.data), self.place)


def _at_sent(sent: Any) -> SharedBytes:
    return SharedBytes._at(sent.detach())


def _of_bytes(data: bytes, place: str | None) -> SharedBytes:
    """Return the pickled memory if it still exists, else a new one.

    A loader copies its parts in this way.
    """
    here = SharedBytes(memoryview(data))
    there = here.same_at(place) if place is not None else None
    return there or SharedBytes.of(data)


def _file_with(data: bytes) -> int:
    """Return a descriptor of a file without a name that holds `data`."""
    in_memory = hasattr(os, "memfd_create")
    with (
        os.fdopen(os.memfd_create("torchdata_ais.urls"), "wb") if in_memory else tempfile.TemporaryFile()
    ) as file:
        file.write(data)
        file.flush()
        return os.dup(file.fileno())


Row = tuple[str, int | None, str | None, str | None]  # URL, size, version, checksum
OURS = "\0"  # placeholder for the endpoint of the process that reads a URL
_BLOCK = 128  # URLs that are decoded together

_rows = msgspec.msgpack.Decoder(list[Row])


class PackedURLs:
    r"""An immutable sequence of URLs, in the order given.

    Not a `Sequence` by name: torch pickles every collection in a pipe on each traversal of the graph.

    Memory:
        About 3 bytes a URL, and 22 where size and checksum are known, shared with the workers and the ranks of a
        machine. Each process caches 128 URLs.

    Example:
        >>> urls = PackedURLs([("\0/v1/objects/b/s.tar?provider=ais", 10240, "1", None)], "http://h:51080")
        >>> urls[0], urls[0].size, len(urls)
        ('http://h:51080/v1/objects/b/s.tar?provider=ais', 10240, 1)
    """

    def __init__(self, rows: Iterable[Row], endpoint: str | None = None) -> None:
        self._take(SharedBytes.of(_packed(rows)), (endpoint or "").rstrip("/"))

    def _take(self, memory: SharedBytes, endpoint: str) -> None:
        self._memory = memory
        self._endpoint = endpoint
        self._length, blocks = memory.data[-16:].cast("Q")
        self._starts = memory.data[-16 - 8 * (blocks + 1) : -16].cast("Q")
        self._last: tuple[int, list[Row]] = (-1, [])

    @classmethod
    def _of(cls, memory: SharedBytes, endpoint: str) -> PackedURLs:
        self = cls.__new__(cls)
        self._take(memory, endpoint)
        return self

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> ObjectURL:
        if not 0 <= index < self._length:
            raise IndexError(index)
        block, place = divmod(index, _BLOCK)
        number, rows = self._last  # one look: another thread may put another block there
        if number != block:
            rows = self._block(block)
            self._last = block, rows
        return self._url(rows[place])

    def __iter__(self) -> Iterator[ObjectURL]:
        return self.part(0, self._length)

    def part(self, start: int, stop: int) -> Iterator[ObjectURL]:
        """Yield the URLs from number `start` to the one before `stop`."""
        while start < stop:
            block, place = divmod(start, _BLOCK)
            rows = self._block(block)[place : place + stop - start]
            start += len(rows)
            yield from map(self._url, rows)

    def _block(self, number: int) -> list[Row]:
        begin, end = self._starts[number], self._starts[number + 1]
        return _rows.decode(zlib.decompress(self._memory.data[begin:end]))

    def _url(self, row: Row) -> ObjectURL:
        text, size, version, checksum = row
        if text.startswith(OURS):
            text = self._endpoint + text[len(OURS) :]
        return ObjectURL(text, size, checksum, version)

    @property
    def place(self) -> str | None:
        """Path of the memory for other processes of this user and machine."""
        return self._memory.place

    def take_memory(self, place: str) -> None:
        """Use the memory of another process, if it still holds the same bytes."""
        there = self._memory.same_at(place)
        if there is not None:
            self._take(there, self._endpoint)

    def __deepcopy__(self, _: object) -> PackedURLs:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedURLs._of, (self._memory, self._endpoint)


def _packed(rows: Iterable[Row]) -> bytes:
    """Return compressed blocks, their offsets, the numbers of rows and blocks."""
    rest = iter(rows)
    packed = bytearray()
    starts = [0]
    count = 0
    while block := list(islice(rest, _BLOCK)):
        packed += zlib.compress(msgspec.msgpack.encode(block), 1)
        starts.append(len(packed))
        count += len(block)
    return bytes(packed + array("Q", [*starts, count, len(starts) - 1]).tobytes())
