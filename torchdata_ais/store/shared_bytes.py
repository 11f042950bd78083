"""Bytes that nobody writes to, and that all processes of a machine which need them may have once between them."""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

from xxhash import xxh3_128_digest

_SHARED_BYTES = 256 << 10  # less than that is sent with what has it


class SharedBytes:
    """Bytes; if they are many, in a file without a name, which ends with the last process that has it open.

    A process that is forked or spawned from this one has the same memory, and so has a copy by pickle. Another process
    may take it by `place`.

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
        """Return memory with `data` in it, shared if that is worth it and there is room."""
        if len(data) >= _SHARED_BYTES:
            try:
                return cls._at(_file_with(data))
            except OSError:
                pass  # no more descriptors, or no memory: each process has its own then
        return cls(memoryview(data))

    @property
    def place(self) -> str | None:
        """Where other processes of this user and machine find the bytes, while this one lives; None if they cannot."""
        return None if self._fd is None else f"/proc/{os.getpid()}/fd/{self._fd}"

    def same_at(self, place: str) -> SharedBytes | None:
        """Return the memory of another process, if it is still there and has these bytes."""
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
        """Return the memory behind a descriptor, which it takes."""
        # All pages now: what only one process has seen counts as its own.
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
    """Return the memory that was pickled, if it is still there (a loader copies its parts so), else one of our own."""
    here = SharedBytes(memoryview(data))
    there = here.same_at(place) if place is not None else None
    return there or SharedBytes.of(data)


def _file_with(data: bytes) -> int:
    """Return a descriptor of a file without a name that holds `data`."""
    with tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else _memory_file() as file:
        file.write(data)
        file.flush()
        return os.dup(file.fileno())


def _memory_file() -> IO[bytes]:
    return open(os.memfd_create("torchdata_ais.urls"), "wb")  # noqa: PTH123 - a descriptor
