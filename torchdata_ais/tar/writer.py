"""Members in, blocks of a tar archive out: USTAR, with PAX headers only where USTAR cannot say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchdata_ais.errors import UsageError
from torchdata_ais.tar.header import NUL
from torchdata_ais.tar.window import BLOCK

__all__ = ["MAX_NAME_BYTES", "RECORD", "Buffer", "TarBuilder", "archive_size", "encode_archive"]

RECORD = 20 * BLOCK
"""An archive is filled up with zeros to a multiple of this many bytes, as `tar` does."""

Buffer = bytes | bytearray | memoryview

MAX_NAME_BYTES = 64 << 10
"""Longest name, and target of a link, that is written or read: 16 times what systems open."""

_OCTAL_11 = 8**11  # the first number that 11 octal digits cannot say


class TarBuilder:
    """Turns members into the bytes of an archive, one member at a time, and counts them.

    The same calls give the same bytes: nothing is taken from the clock, the user or the machine. Names of up to
    100 ASCII characters (up to 255, where a slash stands in the right place) and sizes below 8 GiB take one
    USTAR header; others get a PAX header in front, 1024 bytes or more.

    Takes: names and data, by `member`.

    Memory: what one call returns; data is passed on as it is, without a copy.

    Args:
        mtime: Modification time of the members in whole seconds, unless `member` is given another.
        mode: Permission bits of the members.
        user: Name of their owner, at most 31 bytes.
        group: Name of their group, at most 31 bytes.

    Attributes:
        size: The number of bytes returned so far.

    Example:
        >>> builder = TarBuilder()
        >>> [len(block) for block in builder.member("a.txt", b"tree")], builder.size
        ([512, 4, 508], 1024)
        >>> len(builder.end()), builder.size
        (9216, 10240)
    """

    def __init__(self, *, mtime: float = 0, mode: int = 0o444, user: str = "", group: str = "") -> None:
        self.size = 0
        self._mtime = _seconds(mtime)
        self._mode = b"%07o\0" % (mode & 0o7777)
        # magic, version, owner, group, and numbers of a device, which a file is not
        self._tail = b"ustar\x0000" + _name_field(user) + _name_field(group) + bytes(16)

    def member(self, name: str, data: Buffer, *, mtime: float | None = None) -> list[Buffer]:
        """Return the blocks of one member: header, data, padding. Count them.

        Args:
            name: Its path in the archive.
            data: Its content.
            mtime: Its modification time, cut to whole seconds.

        Raises:
            UsageError: The name is empty, too long, ends with a slash, holds a NUL or half a character; the time
                cannot be said in USTAR.
        """
        size = memoryview(data).nbytes
        header = self._headers(name, size, self._mtime if mtime is None else _seconds(mtime))
        padding = -size % BLOCK
        self.size += len(header) + size + padding
        blocks: list[Buffer] = [header]
        if size:
            blocks.append(data)
        if padding:
            blocks.append(bytes(padding))
        return blocks

    def member_size(self, name: str, size: int) -> int:
        """Return how many bytes `member` will return for a name and so many bytes of data.

        Example:
            >>> TarBuilder().member_size("a.txt", 513)
            1536
        """
        return len(self._headers(name, size, self._mtime)) + size + -size % BLOCK

    def end(self) -> bytes:
        """Return the end marker, two blocks of zeros, and the zeros that fill the last record. Count them."""
        zeros = bytes(archive_size(self.size) - self.size)
        self.size += len(zeros)
        return zeros

    def _headers(self, name: str, size: int, mtime: bytes) -> bytes:
        try:
            raw = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise UsageError.at(
                f"{name!r:.300} cannot be the name of a file in an archive: {error.reason}",
                todo="give it a name of real characters",
            ) from None
        if not raw or raw.endswith(b"/") or NUL in raw or len(raw) > MAX_NAME_BYTES:
            raise UsageError.at(
                f"{name!r:.300} cannot be the name of a file in an archive",
                todo="give it a name that is not empty, does not end with a slash, holds no NUL and has at most 64 KiB",
            )
        records = b""
        split = _split(raw)
        if split is None:
            if _is_not_utf8(raw):
                records += _record(b"hdrcharset", b"BINARY")
            records += _record(b"path", raw)
            # What readers that do not know PAX shall see.
            split = b"", bytes(byte if byte < 128 else ord("?") for byte in raw[-100:].lstrip(b"/"))
        if size >= _OCTAL_11:
            records += _record(b"size", b"%d" % size)
            size = 0
        header = self._header(*split, b"0", size, mtime)
        if not records:
            return header
        extension = self._header(b"", b"././@PaxHeader", b"x", len(records), mtime)
        return extension + records + bytes(-len(records) % BLOCK) + header

    def _header(self, prefix: bytes, name: bytes, kind: bytes, size: int, mtime: bytes) -> bytes:
        front = name.ljust(100, NUL) + self._mode + b"0000000\0" * 2 + b"%011o\0" % size + mtime
        back = kind + bytes(100) + self._tail + prefix.ljust(167, NUL)
        return front + b"%06o\0 " % (sum(front) + 8 * 0x20 + sum(back)) + back


def archive_size(content: int) -> int:
    """Return the size of an archive whose members take `content` bytes, headers and padding included.

    Example:
        >>> archive_size(0), archive_size(9216), archive_size(9728)
        (10240, 10240, 20480)
    """
    return -(-(content + 2 * BLOCK) // RECORD) * RECORD


def encode_archive(
    members: Iterable[tuple[str, Buffer]],
    *,
    mtime: float = 0,
    mode: int = 0o444,
    user: str = "",
    group: str = "",
) -> Iterator[Buffer]:
    """Yield the blocks of the archive that holds the `members`, end marker included.

    Takes:
        `members`: pairs of name and data. The other arguments are those of `TarBuilder`.

    Yields:
        Bytes-like objects, several a member.

    Order: that of `members`.

    Memory: one member.

    Raises:
        UsageError: See `TarBuilder`.

    Example:
        >>> len(b"".join(encode_archive([("a.cls", b"3"), ("a.txt", b"tree")])))
        10240
    """
    builder = TarBuilder(mtime=mtime, mode=mode, user=user, group=group)
    for name, data in members:
        yield from builder.member(name, data)
    yield builder.end()


def _seconds(mtime: float) -> bytes:
    if not 0 <= mtime < _OCTAL_11:
        raise UsageError.at(f"mtime={mtime} is out of range", todo="pass seconds since 1970, below 8**11")
    return b"%011o\0" % int(mtime)


def _name_field(name: str) -> bytes:
    raw = name.encode("utf-8")
    if len(raw) > 31 or NUL in raw:
        raise UsageError.at(
            f"{name!r} is not a name of an owner or group", todo="use at most 31 bytes, no NUL"
        )
    return raw.ljust(32, NUL)


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return a name as the prefix and name fields of a USTAR header, or None where it does not fit them."""
    if not raw.isascii():
        return None
    if len(raw) <= 100:
        return b"", raw
    cut = raw.find(b"/", len(raw) - 101)
    return (raw[:cut], raw[cut + 1 :]) if 0 < cut <= 155 else None


def _is_not_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _record(keyword: bytes, value: bytes) -> bytes:
    """Return a PAX record, which begins with its own length, the digits of the length included."""
    rest = len(keyword) + len(value) + 3  # blank, equals sign, newline
    length = rest + 1
    while rest + len(str(length)) != length:
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)
