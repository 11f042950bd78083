"""A window on a stream of blocks: take bytes, skip bytes, know the offset."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import TypeGuard

BLOCK = 512  # tar's unit: headers are one long, data is filled up to a multiple


class PassableBlocks(Iterator[bytes]):
    """A stream of blocks in which bytes can be passed over without being read."""

    @abstractmethod
    def pass_over(self, size: int) -> int:
        """Move on by `size` bytes, and return how many of them there were."""


class Window:
    """Arrived, not yet consumed part of a stream: one block.

    Pulls the next block only when requested bytes are missing. Views of bytes are taken without a copy.

    Attributes:
        block: The current block. A caller that takes bytes out of it moves `at`.
        at: The index in it of the next byte.
        base: The offset of its first byte.

    Memory: the current block, and the result of one `take` (plus an eighth while it is assembled).

    Example:
        >>> window = Window([b"abc", b"defg"])
        >>> window.take(4), window.skip(1), window.offset, window.take(9)
        (b'abcd', 0, 5, b'fg')
    """

    __slots__ = ("_blocks", "_passable", "at", "base", "block")

    def __init__(self, blocks: Iterable[bytes | memoryview], start: int = 0) -> None:
        self._blocks = iter(blocks)
        self._passable = blocks if isinstance(blocks, PassableBlocks) else None
        self.block: bytes | memoryview = b""
        self.at = 0
        self.base = start

    @property
    def offset(self) -> int:
        """The offset of the next byte."""
        return self.base + self.at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, copied once, fewer only at the end."""
        end = self.at + size
        if end <= len(self.block):
            taken = self.block[self.at : end]
            self.at = end
            return taken if type(taken) is bytes else bytes(taken)
        # BytesIO hands its buffer over without a copy, so that a member of many blocks is held once, and it
        # grows with the received bytes, so that a size that cannot be true costs no memory.
        parts = io.BytesIO()
        missing = size
        while missing and (self.at < len(self.block) or self._pull()):
            piece = memoryview(self.block)[self.at : self.at + missing]
            missing -= parts.write(piece)
            self.at += len(piece)
        return parts.getvalue()

    def take_padded(self, size: int) -> bytes | None:
        """Return the next `size` bytes and skip their padding; None at the end."""
        end = self.at + size
        padded = end + -size % BLOCK
        if padded <= len(self.block):
            taken = self.block[self.at : end]
            self.at = padded
            return taken if type(taken) is bytes else bytes(taken)
        whole = self.take(size)
        return None if len(whole) < size or self.skip(-size % BLOCK) else whole

    def skip(self, size: int) -> int:
        """Skip `size` bytes; return how many were missing at the end."""
        self.at += size
        while self.at > len(self.block):
            beyond = self.at - len(self.block)
            if self._passable is not None:
                passed = self._passable.pass_over(beyond)
                self.base += len(self.block) + passed
                self.block, self.at = b"", 0
                return beyond - passed
            if not self._pull():
                return beyond
            self.at = beyond
        return 0

    def skip_zeros(self) -> bool:
        """Skip to the next non-zero byte; return False if the stream ends first."""
        while True:
            rest = bytes(self.block[self.at :]).lstrip(b"\0")
            self.at = len(self.block) - len(rest)
            if rest:
                return True
            if not self._pull():
                return False

    def _pull(self) -> bool:
        """Replace the consumed current block by the next one."""
        self.base += len(self.block)
        self.at = 0
        block = next(self._blocks, None)
        self.block = b"" if block is None else block if _is_view(block) else bytes(block)
        return block is not None


def _is_view(block: object) -> TypeGuard[memoryview]:
    """Return whether this is a view of bytes, which cannot change."""
    return type(block) is memoryview and type(block.obj) is bytes and block.format == "B"
