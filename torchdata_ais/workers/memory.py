"""Anonymous memory shared with another process, and used again when free.

Fresh memory costs more than what is copied into it: the kernel has to find every page, and to take it back. Written
into memory that was used before, a batch of 64 images of 150 KB costs 12 us an image, into fresh memory 56 us. So a
sender keeps its files, and the first byte of each shows whether a receiver still uses it.

A value may also be made in such memory from the start (`Lender.block`), and is then not copied at all. The memory is
used again when the receiver has returned it and no object here refers to it any more.

The file of one message: 64 bytes of header (state, length of the content), then the content.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = 64
"""Bytes before the content: the largest alignment of an element type."""

_HEAD = struct.Struct("<B7xQ")
_FREE, _LENT, _KEPT = 0, 1, 2

_SPARE = 8
"""Free files a sender keeps: two or three batches of a few tensors each."""

_STEP = 64 << 10


class _File:
    """A file of the sender, and a view of its first page.

    Attributes:
        block: The array made in it, as long as an object refers to it.
        sent: Whether that went to a receiver, which returns it.
    """

    block: weakref.ref[NDArray[np.uint8]] | None = None
    sent = False
    _whole: mmap.mmap | None = None

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.fd = _anonymous_file()
        try:
            os.ftruncate(self.fd, HEADER + capacity)
            self.head = mmap.mmap(self.fd, HEADER)
        except BaseException:
            os.close(self.fd)
            raise

    @property
    def free(self) -> bool:
        """Report whether it is free: used by no receiver and by no object here."""
        if self.head[0] == _KEPT or (self.block is not None and self.block() is not None):
            return False
        return self.head[0] == _FREE or (self.block is not None and not self.sent)

    def write(self, content: memoryview) -> None:
        """Fill it for a receiver."""
        size = len(content)
        self.block = None
        _HEAD.pack_into(self.head, 0, _LENT, size)
        done = 0
        while done < size:
            done += os.pwrite(self.fd, content[done:], HEADER + done)

    def map(self, size: int) -> NDArray[np.uint8]:
        """Return bytes of it to be filled here."""
        if self._whole is None:  # kept: mapping it again costs a fault a page
            self._whole = mmap.mmap(self.fd, HEADER + self.capacity)
        content = np.frombuffer(self._whole, np.uint8, size, HEADER)
        self.block, self.sent = weakref.ref(content), False
        _HEAD.pack_into(self.head, 0, _LENT, size)
        return content

    def close(self) -> None:
        self.head.close()
        os.close(self.fd)  # a mapping ends with the last array over it


class Lender:
    """The memory of one sending process.

    Memory:
        The files that receivers hold, those being filled, and up to 8 free ones: about two batches more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # decode threads ask for blocks
        self._files: list[_File] = []  # longest unused first
        self._blocks: weakref.WeakValueDictionary[int, _File] = weakref.WeakValueDictionary()  # by address
        _lenders.add(self)

    def fill(self, content: memoryview) -> int:
        """Return a descriptor, the message's, of memory that holds `content`."""
        with self._lock:  # threads that send at the same time must not get the same free file
            file = self._take(len(content))
            try:
                file.write(content)
                fd = os.dup(file.fd)
            except BaseException:
                file.close()
                raise
            self._files.append(file)
            return fd

    def block(self, size: int) -> NDArray[np.uint8]:
        """Return memory for a value that is sent without a copy.

        The first message that contains the value takes this memory along. Ordinary memory is returned where
        descriptors or mappings have run out, or where the files would be on a disk, which may be full at a write.
        """
        if not hasattr(os, "memfd_create"):
            return np.empty(size, np.uint8)
        with self._lock:
            try:
                file = self._take(size)
                self._files.append(file)
                content = file.map(size)
            except OSError:
                return np.empty(size, np.uint8)
            self._blocks[content.ctypes.data] = file
        return content

    def lend(self, address: int, size: int) -> int | None:
        """Return a descriptor, the message's, of an unsent `block`; else None."""
        with self._lock:
            file = self._blocks.get(address)
            content = None if file is None or file.sent or file.block is None else file.block()
            if file is None or content is None or content.nbytes != size:
                return None
            fd = os.dup(file.fd)
            file.sent = True
            return fd

    def keep_blocks(self) -> None:
        """Never reuse the blocks that objects of this process still refer to."""
        for file in self._files:
            if file.block is not None and file.block() is not None:
                file.head[0] = _KEPT

    def close(self) -> None:
        """Close all files; lent memory stays with its borrowers."""
        while self._files:
            self._files.pop().close()

    def _take(self, size: int) -> _File:
        """Return a free file that fits well, or a new one; close useless files."""
        step = max(_STEP, 1 << max(0, size.bit_length() - 3))
        capacity = -(-size // step) * step  # pages that are never written to take no memory
        spare = [file for file in self._files if file.free]
        found = next((file for file in reversed(spare) if file.capacity == capacity), None)
        if found is not None:
            self._files.remove(found)
            spare.remove(found)
        for file in [*spare[:-_SPARE], *(file for file in self._files if file.head[0] == _KEPT)]:
            self._files.remove(file)
            file.close()
        return found or _File(capacity)


class _Borrowed(weakref.ref[NDArray[np.uint8]]):
    """A weak reference to an array, with the borrowed mapping to give back."""

    __slots__ = ("whole",)
    whole: mmap.mmap


_lenders: weakref.WeakSet[Lender] = weakref.WeakSet()
"""Those of this process."""

_borrowed: dict[int, _Borrowed] = {}
"""Arrays that this process has borrowed, by identity."""

_done: deque[Any] = deque()
"""Arrays that nothing refers to any more.

Its method is the callback, not Python code: a Ctrl-C within that would be printed and forgotten, for it cannot raise.
"""


def borrow(fd: int) -> NDArray[np.uint8]:
    """Return the content of a file.

    It is the sender's again with the next `give_back_done` after the last reference to the array and to views of it.
    """
    give_back_done()
    _, size = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    whole = mmap.mmap(fd, HEADER + size)
    content = np.frombuffer(whole, np.uint8, offset=HEADER)
    borrowed = _Borrowed(content, _done.append)
    borrowed.whole = whole
    _borrowed[id(borrowed)] = borrowed
    return content


def give_back_done() -> None:
    """Give back borrowed memory that is no longer in use."""
    while _done:
        try:
            borrowed = _done.popleft()
        except IndexError:  # another thread took it
            return
        _borrowed.pop(id(borrowed), None)
        if borrowed.whole[0] == _LENT:
            borrowed.whole[0] = _FREE


def forget_all() -> None:
    """Give nothing back any more: the lenders are gone, arrays keep memory."""
    _borrowed.clear()
    _done.clear()


def _keep_all() -> None:
    """Keep all memory, own and borrowed, that a child to be forked will see."""
    give_back_done()
    for borrowed in list(_borrowed.values()):
        borrowed.whole[0] = _KEPT
    for lender in list(_lenders):
        lender.keep_blocks()


os.register_at_fork(before=_keep_all)


def give_back(fd: int) -> None:
    """Mark a file as free for its sender: its content is copied or unused."""
    os.pwrite(fd, bytes([_FREE]), 0)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torchdata_ais")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
