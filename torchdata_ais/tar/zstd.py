"""Zstandard behind the interface of `bz2` and `lzma`, bounded and exact about where a frame ends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator
from typing import Any

from torchdata_ais.errors import MissingLibraryError

__all__ = ["load_zstd"]

_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_LIMIT = 128 << 10  # of the format; no block holds or becomes more


def load_zstd() -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return a maker of one-frame decompressors, and the errors that these raise on damaged data.

    Raises:
        MissingLibraryError: No library for the format is installed.
    """
    if sys.version_info >= (3, 14):
        native = importlib.import_module("compression.zstd")
        return native.ZstdDecompressor, (native.ZstdError,)
    try:
        import zstandard
    except ImportError:
        raise MissingLibraryError.at(
            "the shard is compressed with Zstandard, and no library for it is installed",
            todo='pip install "torchdata-ais[formats]"',
        ) from None
    library = zstandard.ZstdDecompressor()
    return lambda: _Frame(library.decompressobj()), (zstandard.ZstdError, ValueError)


class _Frame:
    """One frame, handed to the library block by block.

    The library alone takes a cut frame for a short one, and a few bytes given to it may become gigabytes.
    Block by block, the end is known and no step makes more than 128 KiB.

    Args:
        engine: A decompressor of the library, for this frame alone.
    """

    def __init__(self, engine: Any) -> None:
        self.eof = False
        self.needs_input = True
        self.unused_data = b""
        self._engine = engine
        self._pieces = _pieces()
        self._wanted = next(self._pieces)
        self._input = b""
        self._pos = 0

    def decompress(self, data: bytes, max_length: int) -> bytes:  # noqa: ARG002 - a block is below any bound
        if data:
            self._input = self._input[self._pos :] + data
            self._pos = 0
        out = b""
        while not out and not self.eof and self._pos + self._wanted <= len(self._input):
            piece = self._input[self._pos : self._pos + self._wanted]
            self._pos += len(piece)
            try:
                self._wanted = self._pieces.send(piece)
            except StopIteration:
                self.eof = True
                self.unused_data = self._input[self._pos :]
            out = self._engine.decompress(piece)
        self.needs_input = not self.eof and self._pos + self._wanted > len(self._input)
        return out


def _pieces() -> Generator[int, bytes, None]:
    """Walk through one frame (RFC 8878, 3.1): yield the size of the next piece, and be sent the piece."""
    magic = yield 4
    if magic[0] >> 4 == 5 and magic[1:] == b"\x2a\x4d\x18":  # a skippable frame
        left = int.from_bytes((yield 4), "little")
        while left:
            left -= len((yield min(left, _BLOCK_LIMIT)))
        return
    if magic != _MAGIC:
        raise ValueError("not a Zstandard frame")
    descriptor = (yield 1)[0]
    single_segment = descriptor >> 5 & 1
    window_size = 1 - single_segment
    dictionary_size = (0, 1, 2, 4)[descriptor & 3]
    content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
    if rest := window_size + dictionary_size + content_size:
        yield rest
    last = 0
    while not last:
        block = int.from_bytes((yield 3), "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if size > _BLOCK_LIMIT:
            raise ValueError("a Zstandard block is larger than the format allows")
        if kind == 1:  # one byte, to be repeated
            size = 1
        if size:
            yield size
    if descriptor >> 2 & 1:
        yield 4  # the checksum of the content
