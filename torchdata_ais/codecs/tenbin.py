"""The ``.ten`` format: a list of arrays in chunks.

Each array is a header chunk and a data chunk, on 64-byte steps.

A chunk is the 8 bytes ``~TenBin~``, the length as a little-endian int64, then that many bytes padded to a
multiple of 64. A header chunk is int64 words: data type, name, number of dimensions, dimensions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchdata_ais.errors import DecodeError

_MAGIC = b"~TenBin~"
_STEP = 64
_TYPES = frozenset(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
_MAX_DIMS = 9  # the limit of other readers of the format


def dumps(arrays: Sequence[NDArray[np.generic]]) -> bytes:
    """Encode arrays of float16-64 and (u)int8-64, of up to 9 dimensions.

    Raises:
        ValueError: Another data type, or more dimensions.

    Example:
        >>> loads(dumps([np.arange(3, dtype="u4")]))
        [array([0, 1, 2], dtype=uint32)]
    """
    parts: list[bytes] = []
    for array in arrays:
        code = f"{array.dtype.kind}{array.dtype.itemsize}"
        if code not in _TYPES:
            raise ValueError(f"ten stores float16-64 and (u)int8-64, not {array.dtype}")
        if array.ndim > _MAX_DIMS:
            raise ValueError(f"ten stores up to {_MAX_DIMS} dimensions, not {array.ndim}")
        header = struct.pack(f"<8s8sq{array.ndim}q", code.encode(), b"", array.ndim, *array.shape)
        body = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        for chunk in (header, body):
            parts += [_MAGIC, struct.pack("<q", len(chunk)), chunk, bytes(-len(chunk) % _STEP)]
    return b"".join(parts)


def loads(data: bytes) -> list[NDArray[np.generic]]:
    """Decode the list of arrays. They are writable and own their memory.

    It is a `DecodeError` if the bytes are cut off or are something else.
    """
    chunks = list(_chunks(data))
    if len(chunks) % 2:
        raise DecodeError.at("the last array of the tenbin data has a header but no values")
    return [_array(header, body) for header, body in zip(chunks[::2], chunks[1::2], strict=True)]


def _chunks(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        if data[position : position + 8] != _MAGIC:
            raise DecodeError.at(f"no tenbin chunk begins at byte {position}")
        if len(data) < position + 16:
            raise DecodeError.at(f"the tenbin data end early, at byte {len(data)}")
        (length,) = struct.unpack_from("<q", data, position + 8)
        start = position + 16
        if not 0 <= length <= len(data) - start:
            raise DecodeError.at(f"the tenbin chunk at byte {position} claims {length} bytes and ends early")
        yield data[start : start + length]
        position = start + length + -length % _STEP


def _array(header: bytes, body: bytes) -> NDArray[np.generic]:
    if len(header) < 24 or len(header) % 8:
        raise DecodeError.at(f"a tenbin header of {len(header)} bytes")
    raw_code, _name, ndim = struct.unpack_from("<8s8sq", header)
    code = raw_code.rstrip(b"\0").decode("latin-1")
    if code not in _TYPES or not 0 <= ndim <= _MAX_DIMS or len(header) < 24 + 8 * ndim:
        raise DecodeError.at(f"a tenbin header with data type {code!r} and {ndim} dimensions")
    shape = struct.unpack_from(f"<{ndim}q", header, 24)
    dtype = np.dtype("<" + code)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(body):
        raise DecodeError.at(f"{len(body)} bytes are not a tenbin array of shape {shape} and type {code}")
    array = np.frombuffer(body, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="))  # a copy: writable, in this machine's byte order
