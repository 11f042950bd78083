"""Writer of tar archives: members in, blocks out.

The format is USTAR, with PAX headers only for values that USTAR cannot represent.
"""

from __future__ import annotations

from torchdata_ais.errors import UsageError
from torchdata_ais.tar.header import NUL
from torchdata_ais.tar.window import BLOCK

RECORD = 20 * BLOCK  # zeros fill an archive up to a multiple, as `tar` does
MAX_NAME_BYTES = 64 << 10  # of a name or link target, read or written: 16 times the limit of systems
Buffer = bytes | bytearray | memoryview
_OCTAL_11 = 8**11  # the first number that 11 octal digits cannot say


class TarBuilder:
    """Encoder of members as bytes of an archive, one at a time.

    It counts them. The same calls give the same bytes: nothing depends on the clock, the user or the machine. Names
    of up to 100 ASCII characters (up to 255, where a slash is in the right place) and sizes below 8 GiB take one
    USTAR header; others get a PAX header in front, 1024 bytes or more.

    Takes: names and data, by `member`.

    Memory: the result of one call; data is passed on without a copy.

    Args:
        mtime: Modification time of the members in whole seconds.
        mode: Permission bits of the members.
        user: Name of their owner, at most 31 bytes.
        group: Name of their group, at most 31 bytes.

    Example:
        >>> [len(block) for block in TarBuilder().member("a.txt", b"tree")]
        [512, 4, 508]
    """

    def __init__(self, *, mtime: float = 0, mode: int = 0o444, user: str = "", group: str = "") -> None:
        if not 0 <= mtime < _OCTAL_11:
            raise UsageError.at(f"mtime={mtime} is out of range", todo="pass seconds since 1970, below 8**11")
        self._mtime = b"%011o\0" % int(mtime)
        self._mode = b"%07o\0" % (mode & 0o7777)
        # magic, version, owner, group, and numbers of a device, which a file is not
        self._tail = b"ustar\x0000" + _name_field(user) + _name_field(group) + bytes(16)

    def member(self, name: str, data: Buffer) -> list[Buffer]:
        """Return the blocks of one member: header, data, padding.

        Args:
            name: Its path in the archive.
            data: Its content.

        Raises:
            UsageError: The name is empty, too long, ends with a slash, holds a NUL or half a character; the time
                cannot be represented in USTAR.
        """
        size = memoryview(data).nbytes
        header = self._headers(name, size)
        padding = -size % BLOCK
        blocks: list[Buffer] = [header]
        if size:
            blocks.append(data)
        if padding:
            blocks.append(bytes(padding))
        return blocks

    def _headers(self, name: str, size: int) -> bytes:
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
            if raw.decode("utf-8", "ignore").encode() != raw:
                records += _record(b"hdrcharset", b"BINARY")
            records += _record(b"path", raw)
            # What readers that do not know PAX shall see.
            split = b"", bytes(byte if byte < 128 else ord("?") for byte in raw[-100:].lstrip(b"/"))
        if size >= _OCTAL_11:
            records += _record(b"size", b"%d" % size)
            size = 0
        header = self._header(*split, b"0", size)
        if not records:
            return header
        extension = self._header(b"", b"././@PaxHeader", b"x", len(records))
        return extension + records + bytes(-len(records) % BLOCK) + header

    def _header(self, prefix: bytes, name: bytes, kind: bytes, size: int) -> bytes:
        front = name.ljust(100, NUL) + self._mode + b"0000000\0" * 2 + b"%011o\0" % size + self._mtime
        back = kind + bytes(100) + self._tail + prefix.ljust(167, NUL)
        return front + b"%06o\0 " % (sum(front) + 8 * 0x20 + sum(back)) + back


def archive_size(content: int) -> int:
    """Return the size of an archive whose members take `content` bytes.

    These include headers and padding.

    Example:
        >>> archive_size(0), archive_size(9216), archive_size(9728)
        (10240, 10240, 20480)
    """
    return -(-(content + 2 * BLOCK) // RECORD) * RECORD


def _name_field(name: str) -> bytes:
    raw = name.encode("utf-8")
    if len(raw) > 31 or NUL in raw:
        raise UsageError.at(
            f"{name!r} is not a name of an owner or group", todo="use at most 31 bytes, no NUL"
        )
    return raw.ljust(32, NUL)


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return prefix and name fields of a USTAR header; None if too long."""
    if not raw.isascii():
        return None
    if len(raw) <= 100:
        return b"", raw
    cut = raw.find(b"/", len(raw) - 101)
    return (raw[:cut], raw[cut + 1 :]) if 0 < cut <= 155 else None


def _record(keyword: bytes, value: bytes) -> bytes:
    """Return a PAX record, which begins with its own length, digits included."""
    rest = len(keyword) + len(value) + 3  # blank, equals sign, newline
    length = rest + 1
    while rest + len(str(length)) != length:
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)
