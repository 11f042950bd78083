"""Tar headers, PAX records and links.

Reads v7, ustar and GNU headers. A wrong field is a `ValueError` whose text has the reason. The reader, which knows
the place, turns it into an error of the package.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from zlib import adler32

NUL = b"\0"

_OCTAL = re.compile(rb" *([0-7]*) *")
_NAME = re.compile(rb"[^\0-\x1f]+\0*")
_RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=]+)=")


def read_header(header: bytes) -> tuple[int, int, str]:
    """Return kind, size and name of a header whose checksum is right."""
    field = header[148:156]
    # The low half of an Adler-32 is 1 + the sum of the bytes, modulo 65521. The sum of 512 bytes below 128
    # stays under that, so for an ASCII header it is the exact sum, in a tenth of the time of sum().
    is_right = adler32(header) & 0xFFFF == _adler_for(field) if header.isascii() else _is_sum(header, field)
    if not is_right:
        raise ValueError("the checksum of the header is wrong")
    end = header.find(NUL, 0, 100)
    name = header[: 100 if end < 0 else end].decode("utf-8", "surrogateescape")
    # POSIX splits a prefix off a name above 100 bytes. GNU headers, known by a blank, have times in its place.
    if header[345] and header[262] != 0x20:
        name = f"{text_field(header[345:500])}/{name}"
    return header[156], _size(header[124:136]), name


@lru_cache(4096)
def _adler_for(field: bytes) -> int:
    """Return the low half of the Adler-32 of a header with this checksum."""
    return number(field) - 8 * 0x20 + sum(field) + 1


def _is_sum(header: bytes, field: bytes) -> bool:
    """Return whether `field` is the sum of unsigned, or of signed, bytes."""
    stored = number(field)
    counted = header[:148] + header[156:]
    total = sum(counted) + 256
    if stored == total:
        return True
    # Some old writers summed signed bytes. Zero is the value of an empty field, not of a checksum.
    return stored != 0 and stored == total - 256 * sum(byte > 127 for byte in counted)


def number(raw: bytes) -> int:
    """Return a number field: octal digits, or base-256 after a byte 0x80."""
    digits = raw.rstrip(b" \0")
    if digits.isdigit():  # unlike int(), isdigit() lets no sign, underscore or prefix pass
        try:
            return int(digits, 8)
        except ValueError:
            raise ValueError(
                f"a number field is not octal (it begins with the bytes {raw[:4].hex(' ')})"
            ) from None
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:], "big")
    match = _OCTAL.fullmatch(raw.split(NUL, 1)[0])  # bytes after the first NUL do not count
    if match is None:
        begins = raw[:4].hex(" ")
        raise ValueError(
            f"a number field is neither octal nor a base-256 number above zero (it begins with the bytes {begins})"
        )
    return int(match[1] or b"0", 8)


_size = lru_cache(4096)(number)  # records often have one size


def text_field(raw: bytes) -> str:
    """Return a field up to its first NUL; bytes not UTF-8 become surrogates."""
    return raw.partition(NUL)[0].decode("utf-8", "surrogateescape")


def may_be_header(block: bytes) -> bool:
    """Return whether a block of less than 512 bytes may be a cut header.

    It then begins with a name, filled up with NULs, and an octal mode.

    Example:
        >>> may_be_header(b"a.jpg".ljust(100, NUL) + b"0000644"), may_be_header(b"PK" + bytes(200))
        (True, False)
    """
    mode = block[100:108]
    has_mode = not mode.strip(b"01234567 \0") and (len(mode) < 8 or mode != bytes(8))
    return _NAME.fullmatch(block[:100]) is not None and has_mode


def pax_records(payload: bytes) -> dict[str, str]:
    r"""Return path, linkpath and size of a PAX header, and whether sparse.

    Each record is ``b"%d %s=%s\n"``: its length, keyword, value. All are checked, most are not needed.

    Example:
        >>> pax_records(b"14 path=a.jpg\n" b"16 comment=none\n")
        {'path': 'a.jpg'}
    """
    said = {}
    pos = 0
    while pos < len(payload) and payload[pos]:
        match = _RECORD.match(payload, pos)
        end = pos + int(match[1]) if match else 0
        if not match or not match.end() < end <= len(payload) or payload[end - 1] != 0x0A:
            raise ValueError(f"byte {pos} of a PAX header is not the beginning of a record")
        keyword = match[2]
        if keyword in (b"path", b"linkpath", b"size"):
            value = payload[match.end() : end - 1]
            said[keyword.decode()] = value.decode("utf-8", "surrogateescape")
        elif keyword.startswith(b"GNU.sparse."):
            said["sparse"] = "yes"
        pos = end
    return said


_TIMES = {size: b"%d mtime=" % size for size in range(10, 100)}


def is_only_time(payload: bytes) -> bool:
    r"""Return whether a PAX header is one valid record of a time of change.

    Python's tarfile and webdataset write one before each member.

    Example:
        >>> is_only_time(b"20 mtime=1234567890\n"), is_only_time(b"14 path=a.jpg\n")
        (True, False)
    """
    begins = _TIMES.get(len(payload))
    return begins is not None and payload.startswith(begins) and payload.endswith(b"\n")


class Link(str):
    """The data of a member that is a link: the name of its target.

    That of a hard link is the name of a member, that of a symbolic one a path relative to the link.

    Example:
        >>> link = Link("a.jpg", symbolic=True)
        >>> link, link.symbolic
        ('a.jpg', True)
    """

    __slots__ = ("symbolic",)
    symbolic: bool

    def __new__(cls, target: str, symbolic: bool = False) -> Link:
        """Return `target` as a link."""
        self = super().__new__(cls, target)
        self.symbolic = symbolic
        return self

    def __reduce__(self) -> tuple[type[Link], tuple[str, bool]]:
        return Link, (str(self), self.symbolic)


class TooLarge(int):
    """Number of bytes of a member that was skipped because of its size."""

    __slots__ = ()


class LinkTargets:
    """Possible targets of links: data of members by normalised name.

    Of members with the same name the last one counts.

    Example:
        >>> targets = LinkTargets()
        >>> targets.add("a/./x.jpg", b"1")
        >>> targets.find("a/y.jpg", Link("x.jpg", symbolic=True)), targets.find("a/y.jpg", Link("x.jpg"))
        (b'1', None)
    """

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def add(self, name: str, data: bytes) -> None:
        """Add a member."""
        self._data[posixpath.normpath(name)] = data

    def forget(self, name: str, data: bytes) -> None:
        """Take a member out, unless another of its name came after it."""
        name = posixpath.normpath(name)
        if self._data.get(name) is data:
            del self._data[name]

    def find(self, name: str, link: Link) -> bytes | None:
        """Return the bytes that the link called `name` refers to, if any."""
        target = posixpath.join(posixpath.dirname(name), link) if link.symbolic else str(link)
        return self._data.get(posixpath.normpath(target))
