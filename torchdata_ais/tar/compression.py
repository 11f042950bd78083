"""Decompression of shards."""

from __future__ import annotations

import bz2
import functools
import importlib
import itertools
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torchdata_ais.errors import (
    BadHeaderError,
    ChecksumError,
    MissingLibraryError,
    ShardError,
    TruncatedShardError,
)
from torchdata_ais.tar.errors import Faults
from torchdata_ais.tar.window import Window

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def load_zstd() -> Any:
    """Return the module `ZSTD`, or raise `MissingLibraryError`.

    Its decompressor takes one frame, returns at most the requested number of bytes, and refuses windows above 128
    MiB. It detects a frame that was cut.
    """
    try:
        return importlib.import_module(ZSTD)
    except ImportError:
        raise MissingLibraryError.at(
            "the shard is compressed with Zstandard, and no library for it is installed",
            todo="install one: pip install backports.zstd",
        ) from None


# Text reaches a twentieth of it, gzip slightly more (1030) on zeros alone.
DEFAULT_MAX_RATIO = 1000.0
_FREE_BYTES = 8 << 20  # do not count for the ratio: a small shard of blank masks is not an attack
_FEED_BYTES = 128 << 10
_FIRST_FEED_BYTES = 1 << 10
_CHUNK_BYTES = 1 << 20
_XZ_MEMORY_BYTES = 256 << 20  # four times the need of `xz -9`; a header may request 4 GiB
_HEAD_BYTES = 10  # enough to distinguish the formats
_SKIPPABLE_BYTES = 64 << 10  # searched for the first frame that is not skippable
_LZ4 = b"\x04\x22\x4d\x18"


class _Format(NamedTuple):
    name: str
    magics: tuple[bytes, ...]  # one of which a stream begins with
    new: Callable[[], Any]  # a decompressor of one stream, with the interface of bz2.BZ2Decompressor
    errors: tuple[type[Exception], ...]  # raised on damaged data


class _Inflater:
    """`zlib` with the interface of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)  # gzip framing; its CRC and length are checked
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = not self._zlib.unconsumed_tail and len(out) < max_length
        return out


def _format_of(head: bytes) -> _Format | None:
    if head.startswith(b"\x1f\x8b\x08"):
        return _Format("gzip", (b"\x1f\x8b\x08",), _Inflater, (zlib.error,))
    # "BZh9" alone may be the beginning of a member's name.
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return _Format("bzip2", (b"BZh",), bz2.BZ2Decompressor, (OSError,))
    if head.startswith(b"\xfd7zXZ\0"):
        new = functools.partial(lzma.LZMADecompressor, format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        return _Format("xz", (b"\xfd7zXZ\0",), new, (lzma.LZMAError,))
    # Parallel compressors begin with a skippable frame.
    if head.startswith(b"\x28\xb5\x2f\xfd") or _is_skippable(head):
        zstd = load_zstd()
        magics = (b"\x28\xb5\x2f\xfd", *(bytes([byte]) + b"*M\x18" for byte in range(0x50, 0x60)))
        return _Format("Zstandard", magics, zstd.ZstdDecompressor, (zstd.ZstdError,))
    return None


def is_compressed(head: bytes) -> bool:
    r"""Return whether `decompress` expands a body that begins with `head`.

    Ten bytes are enough.

    Example:
        >>> is_compressed(b"\x1f\x8b\x08" + bytes(7)), is_compressed(b"000000.jpg")
        (True, False)
    """
    return _format_of(head) is not None


def decompress(
    blocks: Iterable[bytes], *, url: str = "", max_ratio: float = DEFAULT_MAX_RATIO
) -> Iterator[bytes]:
    """Yield the decompressed bytes of a gz, bz2, xz or zst body.

    Any other body passes through as it is.

    The content decides the format, never the name. Streams that follow each other (``cat a.gz b.gz``, parallel
    compressors) are one body; zeros after a stream are padding. The checksums of the format are verified.

    Takes:
        `blocks`: the body as `bytes` of any size, pulled as needed, to the very end.

    Yields:
        `bytes`, at most 1 MiB each; of an uncompressed body, the very blocks that came in.

    Memory: one block in, 1 MiB out, and the window of the format (xz: refused above 256 MiB; zst: 128 MiB).

    Args:
        blocks: See above.
        url: The name of the body in errors.
        max_ratio: The largest ratio of bytes out to bytes in, once more than 8 MiB came out.

    Raises:
        TruncatedShardError: The body ends before the stream does.
        ChecksumError: The stream is damaged: a checksum of the format or its structure is wrong.
        BadHeaderError: Something that is not a stream of the same format follows the stream.
        NotATarError: It is an LZ4 stream behind a skippable frame.
        ShardError: The ratio exceeds `max_ratio`, or the stream needs too much memory.
        MissingLibraryError: The body is zst and no library for it is installed.

    Example:
        >>> import gzip
        >>> b"".join(decompress([gzip.compress(b"one "), gzip.compress(b"two")]))
        b'one two'
    """
    head, body = _peek(blocks)
    format_ = _format_of(head)
    if format_ is None:
        yield from body
        return
    if _is_skippable(head):
        begin, body = _peek(body, _SKIPPABLE_BYTES)
        while _is_skippable(begin):
            begin = begin[8 + int.from_bytes(begin[4:8], "little") :]
        if begin.startswith(_LZ4):
            raise Faults(url).not_a_tar(begin)
    window = Window(body)
    made = 0
    for chunk in _expand(window, format_, url):
        made += len(chunk)
        if made > _FREE_BYTES and made > max_ratio * window.offset:
            raise ShardError.at(
                f"{window.offset} compressed bytes became {made}: above max_ratio={max_ratio:g}",
                todo="raise max_ratio of Safety if the shard is meant to be so",
                url=url or None,
                offset=window.offset,
            )
        yield chunk


def _is_skippable(head: bytes) -> bool:
    """Return whether a skippable frame of Zstandard or LZ4 begins here."""
    return len(head) >= 8 and head[0] & 0xF0 == 0x50 and head[1:4] == b"*M\x18"


def _peek(blocks: Iterable[bytes], size: int = _HEAD_BYTES) -> tuple[bytes, Iterator[bytes]]:
    """Return the first `size` bytes, and the blocks with nothing taken off."""
    source = iter(blocks)
    first = []
    head = b""
    for block in source:
        first.append(block)
        head += bytes(block[: size - len(head)])
        if len(head) == size:
            break
    return head, itertools.chain(first, source)


def _expand(window: Window, format_: _Format, url: str) -> Iterator[bytes]:
    """Yield the output of all streams in the window, in chunks."""
    stream = format_.new()
    is_first = True
    is_empty = True  # nothing came out of this stream so far
    begin = b""  # of this stream, unless it is the first
    step = _FIRST_FEED_BYTES  # bytes after the end of a stream are copied: few of them, for a tiny one
    while data := window.take(_FEED_BYTES):
        pos = 0
        while True:
            if stream.eof:
                pos = len(data) - len(data[pos:].lstrip(b"\0")) if data[pos : pos + 1] == b"\0" else pos
                if pos == len(data):
                    break
                stream = format_.new()
                step = _FIRST_FEED_BYTES
                is_first, is_empty, begin = False, True, b""
            piece = b""
            if stream.needs_input:
                piece = data[pos : pos + step]
                pos += len(piece)
                begin = begin or piece[:_HEAD_BYTES]
                step = min(4 * step, _FEED_BYTES)
            try:
                chunk = stream.decompress(piece, _CHUNK_BYTES)
            except format_.errors as error:
                follows = not is_first and is_empty
                raise _damaged(format_.name, error, follows, url, window.offset) from error
            if chunk:
                is_empty = False
                yield chunk
            if stream.eof:
                pos -= len(stream.unused_data)
            elif stream.needs_input and pos == len(data):
                break
    if not stream.eof:
        if not is_first and not any(begin[: len(magic)] == magic[: len(begin)] for magic in format_.magics):
            raise _trailing(format_.name, url, window.offset)
        raise TruncatedShardError.at(
            f"the {format_.name} stream ends in the middle, at byte {window.offset} of the compressed object",
            todo="write the object again: what is stored is only its beginning",
            url=url or None,
            offset=window.offset,
        )


def _damaged(name: str, error: Exception, follows: bool, url: str, offset: int) -> ShardError:
    if follows:
        return _trailing(name, url, offset)
    place = {"url": url or None, "offset": offset}
    if "memory" in str(error).lower():
        what = f"the {name} stream asks for too large a window: {error}"
        return ShardError.at(what, todo="compress the shard again with a smaller one", **place)
    what = f"the {name} stream is damaged before byte {offset} of the compressed object: {error}"
    return ChecksumError.at(what, todo="write the object again if it is stored so", **place)


def _trailing(name: str, url: str, offset: int) -> BadHeaderError:
    what = f"data that is not {name} follows the {name} stream, before byte {offset} of the compressed object"
    return BadHeaderError.at(what, todo="write the object again without it", url=url or None, offset=offset)
