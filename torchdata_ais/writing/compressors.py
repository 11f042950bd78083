"""Compressed shards: which format a name asks for, and its compressor."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any, Protocol

from torchdata_ais.errors import UsageError
from torchdata_ais.shard_names import COMPRESSIONS
from torchdata_ais.tar.zstd import load_zstd


class Compressor(Protocol):
    """What `bz2`, `lzma`, `zlib` and Zstandard have in common."""

    def compress(self, data: Any, /) -> bytes:
        """Take data, return what is ready."""

    def flush(self) -> bytes:
        """Return the rest."""


def compression_for(name: object, compress: bool | str | None) -> str:
    """Return ``gz``, ``bz2``, ``xz``, ``zst`` or ``""``.

    Args:
        name: Where the shard goes; its ending decides if `compress` is None (``.tar.gz``, ``.tgz``, ...).
        compress: True is ``gz``, False is none.

    Raises:
        UsageError: An unknown format.

    Example:
        >>> compression_for("s.tgz", None), compression_for("s.tar", "zst"), compression_for("s.tar.gz", False)
        ('gz', 'zst', '')
    """
    if compress is None:
        return next((known for known in COMPRESSIONS if isinstance(name, str) and name.endswith(known)), "")
    if compress is True:
        return "gz"
    if not compress:
        return ""
    if compress not in COMPRESSIONS:
        raise UsageError.at(
            f"compress={compress!r} is no format", todo=f"use True, False or one of {', '.join(COMPRESSIONS)}"
        )
    return compress


def new_compressor(kind: str) -> Compressor | None:
    """Return a compressor of one stream; None for ``""``. The same data give the same bytes: no time is written.

    Raises:
        MissingLibraryError: No library for Zstandard is installed. (Also an ImportError.)
    """
    if kind == "gz":
        return zlib.compressobj(6, zlib.DEFLATED, 31)  # gzip framing, time 0
    if kind == "bz2":
        return bz2.BZ2Compressor()
    if kind == "xz":
        return lzma.LZMACompressor(check=lzma.CHECK_CRC64)
    if kind == "zst":
        zstd = load_zstd()
        made: Compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})
        return made
    return None
