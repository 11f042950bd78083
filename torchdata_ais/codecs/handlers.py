"""Handlers of fields by ending and by first bytes.

The name comes with a leading dot (``".seg.png"``), as users of WebDataset expect, so that
``name.endswith(".png")`` and ``name == ".cls"`` both work.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torchdata_ais.errors import DecodeError, UsageError

if TYPE_CHECKING:
    import torch


Handler = Callable[[str, bytes], Any]
"""``handler(name, data) -> value | Continue | Decoded | None``."""

MAX_GZ_BYTES = 256 * 1024 * 1024
"""Default of the most bytes that a field may unpack to: a bomb of 1 MB becomes 1 GB."""

_CHUNK_BYTES = 256 << 10
_FIRST_FEED = 1 << 10


@dataclass(frozen=True)
class Continue:
    """Result of a handler: continue with another name and other bytes.

    The next handler gets them.

    Example:
        >>> def reverse(name, data):
        ...     return Continue(name[:-4], data[::-1]) if name.endswith(".rev") else None
        >>> reverse(".txt.rev", b"olleh")
        Continue(key='.txt', data=b'hello')
    """

    key: str
    data: bytes


@dataclass(frozen=True)
class Decoded:
    """Result of a handler: the value, even if it is None (JSON's ``null``).

    A plain None means "not mine".
    """

    value: Any


def extension(name: str) -> str:
    """Return the last component of a name in lower case."""
    return name.rpartition(".")[2].lower()


def names(fields: str | Iterable[str], what: str = "field names") -> tuple[str, ...]:
    """Return field names without dots, of a string with spaces or several.

    Raises `UsageError` if there is none.

    Example:
        >>> names(".jpg seg.PNG")
        ('jpg', 'seg.png')
    """
    parts = fields.split() if isinstance(fields, str) else list(fields)
    found = tuple(part.lower().strip().lstrip(".") for part in parts)
    if not found or not all(found):
        raise UsageError.at(f"{what} are missing or empty: {fields!r}", todo='Write them like "jpg seg.png"')
    return found


def ends_with(name: str, fields: Iterable[str]) -> bool:
    """Return whether `name` is, or ends after a dot with, one of `fields`.

    Letter case does not count.
    """
    dotted = "." + name.lower()
    return any(dotted.endswith("." + field) for field in fields)


@dataclass(frozen=True)
class ExtensionHandler:
    """Handler that calls a function of the bytes; see `handle_extension`."""

    fields: tuple[str, ...]
    function: Callable[[bytes], object]

    def __call__(self, name: str, data: bytes) -> Any:
        """Return ``function(data)``, or None where `name` is another field."""
        return self.function(data) if ends_with(name, self.fields) else None


def handle_extension(extensions: str, f: Callable[[bytes], object]) -> ExtensionHandler:
    """Return a handler that decodes fields with these endings by ``f(data)``.

    Takes:
        extensions: Endings, separated by spaces, with or without a leading dot. ``"png"`` includes ``png``,
            ``seg.png`` and so on; ``"seg.png"`` for ``seg.png`` and ``left.seg.png``. Case does not count.
        f: From bytes to the value; None leaves the field to the next handler. A module-level function
            reaches worker processes under any start method; a lambda does not.

    Raises:
        UsageError: No extension, or `f` cannot be called.

    Example:
        >>> shout = handle_extension(".txt seg.txt", lambda data: data.decode().upper())
        >>> shout(".txt", b"hi"), shout(".jpg", b"hi")
        ('HI', None)
    """
    if not callable(f):
        raise UsageError.at(f"handle_extension needs a function of the bytes, not {f!r}")
    return ExtensionHandler(names(extensions, "the extensions"), f)


@dataclass(frozen=True)
class GzipFilter:
    """Handler that unpacks ``*.gz`` fields for the next handlers.

    These get ``json.gz`` as ``json``, for example.

    Memory: at most `max_bytes` unpacked, and 2 MiB. All members of a gzip file are read, every checksum is verified.

    Raises:
        DecodeError: More than `max_bytes`, cut off, or not gzip.
    """

    max_bytes: int = MAX_GZ_BYTES

    def __call__(self, name: str, data: bytes) -> Continue | None:
        """Return the unpacked bytes under the name without ``.gz``."""
        if not name.lower().endswith(".gz"):
            return None
        return Continue(name[:-3], gunzip(data, self.max_bytes))


gzfilter = GzipFilter()


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Unpack gzip data within a bound of memory, and 2 MiB.

    Example:
        >>> import gzip
        >>> gunzip(gzip.compress(b"one ") + gzip.compress(b"two"), 100)
        b'one two'
    """
    # BytesIO grows in place and hands its buffer over without a copy; zlib by itself would hold all of it twice.
    unpacked = io.BytesIO()
    rest = memoryview(data)
    while rest:
        stream = zlib.decompressobj(wbits=31)  # 31: a gzip header and its CRC, nothing else
        step = _FIRST_FEED  # small at first: bytes after the end of a member are copied
        while rest and not stream.eof:
            piece, rest = rest[:step], rest[step:]
            step = min(4 * step, _CHUNK_BYTES)
            while True:
                try:
                    chunk = stream.decompress(piece, _CHUNK_BYTES)
                except zlib.error as error:
                    raise DecodeError.at(f"the gzip data are damaged ({error})") from error
                if unpacked.tell() + len(chunk) > max_bytes:
                    raise DecodeError.at(
                        f"{len(data)} bytes unpack to more than max_gz_bytes={max_bytes}",
                        todo="Raise max_gz_bytes= if the field may be that large",
                    )
                unpacked.write(chunk)
                if stream.eof or (not stream.unconsumed_tail and len(chunk) < _CHUNK_BYTES):
                    break
                piece = memoryview(stream.unconsumed_tail)
        if not stream.eof:
            break
        rest = memoryview(data)[len(data) - len(rest) - len(stream.unused_data) :]
        rest = _without_zeros(rest)  # tape-style padding may follow a member
        if not rest:
            return unpacked.getvalue()
    raise DecodeError.at(f"the gzip data end early, after {len(data)} bytes")


def _without_zeros(rest: memoryview) -> memoryview:
    while rest and not rest[0]:
        head = bytes(rest[:_CHUNK_BYTES])
        rest = rest[len(head) - len(head.lstrip(b"\0")) :]
    return rest


_T = TypeVar("_T")

FIELD_KINDS: Mapping[str, tuple[str, ...]] = {
    "text": ("txt", "text", "transcript", "html", "htm"),
    "integer": ("cls", "cls2", "class", "count", "index", "inx", "id"),
    "json": ("json", "jsn"),
    "jsonl": ("jsonl",),
    "npy": ("npy",),
    "npz": ("npz",),
    "ten": ("ten", "tb", "tenbin"),
    "msgpack": ("mp", "msg", "msgpack", "messagepack"),
    "cbor": ("cbor",),
    "torch": ("pt", "pth"),
    "pickle": ("pkl", "pickle", "pyd"),
    # Left out on purpose, though Pillow knows the names: h5 hdf mpg mpeg fit fits grib bufr wmf emf are data it
    # cannot decode, pdf ps eps are programs that it hands to others.
    "image": names(
        "png apng jpg jpeg jpe jfif jfi pjpeg pjpg pjp mpo jps webp gif bmp dib tif tiff avif avifs "
        "jp2 j2k jpc jpf jpx j2c pbm pgm ppm pnm pfm tga icb vda vst ico cur icns psd dds qoi "
        "sgi rgb rgba bw ras pcx dcx pcd blp fli flc ftc ftu gbr im iim msp pxr xbm xpm"
    ),
    "audio": names(
        "flac mp3 mp2 mp1 mpga sox wav wave bwf rf64 w64 m4a aac ogg oga opus wma aif aiff aifc au snd caf sph nist"
    ),
    "video": names("mp4 m4v mkv ogv mjpeg avi mov h264 mpg mpeg webm wmv"),
}
"""Endings of fields by their kind; the one table of them."""

MEDIA_KINDS = ("image", "audio", "video")
"""Kinds that a spec of `Decoder` decodes; the others are always decoded."""


def by_name(functions: Mapping[str, _T]) -> dict[str, _T]:
    """Return the value of `functions` for each name of each kind.

    Example:
        >>> by_name({"integer": int})["cls"]
        <class 'int'>
    """
    return {
        name: functions[kind] for kind, names in FIELD_KINDS.items() if kind in functions for name in names
    }


INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
"""The text of a whole number: digits, unlike what Python's ``int()`` takes."""


def without_mark(data: bytes) -> bytes:
    r"""Return the bytes of a text without UTF-8's byte order mark.

    Example:
        >>> without_mark(b"\xef\xbb\xbfa cat")
        b'a cat'
    """
    return data.removeprefix(codecs.BOM_UTF8)


_SIGNS = {
    b"RF64": "wav",
    b"riff": "w64",
    b"FORM": "aiff",
    b".snd": "au",
    b"caff": "caf",
    b"ID3": "mp3",
    b"\x1a\x45\xdf\xa3": "mkv",
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"fLaC": "flac",
    b"OggS": "ogg",
}


def ending_by_sign(data: bytes | bytearray) -> str:
    """Return the ending of files with this beginning; "" if unknown.

    Example:
        >>> ending_by_sign(b"GIF89a"), ending_by_sign(b"hello")
        ('gif', '')
    """
    if data[:4] == b"RIFF":
        return {b"WEBP": "webp", b"AVI ": "avi"}.get(bytes(data[8:12]), "wav")
    if data[4:8] == b"ftyp":
        return "avif" if data[8:11] == b"avi" else "mp4"
    return next((ending for sign, ending in _SIGNS.items() if data.startswith(sign)), "")


Place = Callable[["tuple[int, ...]"], "torch.Tensor | None"]
"""Function that returns contiguous uint8 memory of a shape, if it has such."""

Row = Callable[[str, "tuple[int, ...]"], "torch.Tensor | None"]
"""The places of a sample: that of a field, by its name and shape."""


def nowhere(_: tuple[int, ...]) -> None:
    """Return no place: the value gets new memory."""
