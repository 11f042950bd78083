"""A window on a stream of blocks: take bytes, skip bytes, know the offset."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import TypeGuard

BLOCK = 512
"""Tar's unit: headers are one long, data is filled up to a multiple."""


class PassableBlocks(Iterator[bytes]):
    """A stream of blocks in which bytes can be passed over without being read."""

    @abstractmethod
    def pass_over(self, size: int) -> int:
        """Move on by `size` bytes, and return how many of them there were."""


class Window:
    """Arrived, not yet consumed part of a stream: one block.

    Pulls the next block only when requested bytes are missing.

    Args:
        blocks: The stream, in blocks of any size, empty ones included; views of bytes are taken without a copy.
        start: The offset of its first byte.

    Memory: the current block, and the result of one `take` (plus an eighth while it is assembled).

    Example:
        >>> window = Window([b"abc", b"defg"])
        >>> window.take(4), window.skip(1), window.offset, window.take(9)
        (b'abcd', 0, 5, b'fg')
    """

    __slots__ = ("_base", "_block", "_blocks", "_passable", "_pos")

    def __init__(self, blocks: Iterable[bytes | memoryview], start: int = 0) -> None:
        self._blocks = iter(blocks)
        self._passable = blocks if isinstance(blocks, PassableBlocks) else None
        self._block: bytes | memoryview = b""
        self._pos = 0
        self._base = start  # the offset of the first byte of _block

    @property
    def offset(self) -> int:
        """The offset of the next byte."""
        return self._base + self._pos

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the stream.

        Each byte is copied once.
        """
        end = self._pos + size
        if end <= len(self._block):
            taken = self._block[self._pos : end]
            self._pos = end
            return taken if type(taken) is bytes else bytes(taken)
        # BytesIO hands its buffer over without a copy, so that a member of many blocks is held once, and it
        # grows with the received bytes, so that a size that cannot be true costs no memory.
        parts = io.BytesIO()
        missing = size
        while missing and (self._pos < len(self._block) or self._pull()):
            piece = memoryview(self._block)[self._pos : self._pos + missing]
            missing -= parts.write(piece)
            self._pos += len(piece)
        return parts.getvalue()

    def take_padded(self, size: int) -> bytes | None:
        """Return the next `size` bytes and skip their padding.

        None: the stream ends in either.
        """
        end = self._pos + size
        padded = end + -size % BLOCK
        if padded <= len(self._block):
            taken = self._block[self._pos : end]
            self._pos = padded
            return taken if type(taken) is bytes else bytes(taken)
        whole = self.take(size)
        return None if len(whole) < size or self.skip(-size % BLOCK) else whole

    def skip(self, size: int) -> int:
        """Skip `size` bytes and return how many of them were missing.

        The number is 0 unless the stream ended.
        """
        self._pos += size
        while self._pos > len(self._block):
            beyond = self._pos - len(self._block)
            if self._passable is not None:
                passed = self._passable.pass_over(beyond)
                self._base += len(self._block) + passed
                self._block, self._pos = b"", 0
                return beyond - passed
            if not self._pull():
                return beyond
            self._pos = beyond
        return 0

    def skip_zeros(self) -> bool:
        """Skip to the next non-zero byte; return False if the stream ends first."""
        while True:
            rest = bytes(self._block[self._pos :]).lstrip(b"\0")
            self._pos = len(self._block) - len(rest)
            if rest:
                return True
            if not self._pull():
                return False

    def _pull(self) -> bool:
        """Replace the consumed current block by the next one."""
        self._base += len(self._block)
        self._pos = 0
        block = next(self._blocks, None)
        self._block = b"" if block is None else block if _is_view(block) else bytes(block)
        return block is not None


def _is_view(block: object) -> TypeGuard[memoryview]:
    """Return whether this is a view of bytes, which cannot change."""
    return type(block) is memoryview and type(block.obj) is bytes and block.format == "B"
