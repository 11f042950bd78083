"""Reader of tar archives: blocks in, members out.

Missing or damaged parts are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torchdata_ais.errors import BadHeaderError
from torchdata_ais.tar.errors import Faults
from torchdata_ais.tar.header import (
    NUL,
    Link,
    TooLarge,
    is_only_time,
    may_be_header,
    pax_records,
    read_header,
    text_field,
)
from torchdata_ais.tar.window import BLOCK, Window
from torchdata_ais.tar.writer import MAX_NAME_BYTES

Member = tuple[str, "bytes | Link | TooLarge", int, int]
"""Name, data, offsets of its first (extension) header and of the next member's."""

_EXTENSION_LIMIT = 1 << 20  # bytes of one PAX header, which may hold further attributes
_EXTENSIONS_LIMIT = 2 << 20  # bytes of all extension headers of one member
_SHOWN = 100  # of a name that is too long

# Kinds of member. Those that are not named here are regular files, as POSIX has it.
_V7_FILE = 0
_FILE = ord("0")
_LINKS = {ord("1"): False, ord("2"): True}  # whether symbolic
_DIRECTORY = ord("5")
_NO_FILES = frozenset(b"3456")  # devices, directories, pipes
_NOTES = frozenset(b"VDAI")  # GNU volume label and directory dump, Solaris ACL and inode: with data
_REFUSED = {
    ord("S"): "a sparse member",
    ord("M"): "a member that begins in another volume",
    ord("N"): "a table of long names, of a kind given up long ago,",
}
_SPECIAL = frozenset(_LINKS) | _NO_FILES | _NOTES | frozenset(_REFUSED)
# Kinds of header that say something of the members after them.
_LONG_NAMES = {ord("L"): "path", ord("K"): "linkpath"}  # GNU's, by the words that PAX has for the same
_PAX = ord("x")
_PAX_GLOBAL = ord("g")
_EXTENSIONS = frozenset(b"LKxXg")


class TarReader:
    """Members of one tar archive that arrives in blocks, each complete.

    Takes:
        `blocks`: the archive (decompressed) as `bytes` of any size, pulled one by one as members are requested, to
            the very end, so that checksums over all of it are verified.

    Yields:
        `Member` tuples ``(name, data, offset, next_offset)``. `data` is `bytes` for a regular file and for a
        kind unknown to POSIX, `Link` for a hard or symbolic link. Directories, devices and pipes are passed
        over. Reading can begin again at `next_offset`: pass it as `start`, with the blocks from there.

    Order: that of the archive. A second archive after the end of the first (``cat a.tar b.tar``) is read, too.

    Memory: the largest member and an eighth of it, plus two blocks; while an extension header is read, 2 MiB. Of such
    headers only names, link targets and sizes are kept, of at most 64 KiB each.

    Args:
        blocks: See above. A reader reads them once.
        url: The name of the archive in errors.
        start: The offset in the archive at which `blocks` begins. A header must begin there.
        require_end: Whether the end marker, at least one block of zeros, must be there. Without it an archive cut
            between two members looks complete.
        max_member_bytes: Larger members are an error, before any memory is spent on them.
        skip_large: Pass over larger members instead, and yield `TooLarge` for their data.
        want: Called with every name; where it returns False the member is passed over without a copy.

    Attributes:
        seekable: False after a global PAX header that changes the members after it. Then the header at `next_offset`
            is not complete, and reading cannot begin there.

    Raises:
        TruncatedShardError: The archive ends in a header, in a member, or without its end marker.
        BadHeaderError: A header is damaged, or of a kind that cannot be read as a stream; or a name is longer than 64
            KiB; or a single block of zeros is between members.
        TrailingDataError: The bytes after the end are not an archive.
        NotATarError: The first block is not a tar header.
        ShardError: A member is larger than `max_member_bytes`, and `skip_large` is not set.

    Example:
        >>> from torchdata_ais.testing import shard_bytes
        >>> archive = shard_bytes({"a.cls": b"3", "a.txt": b"tree"})
        >>> [(name, data, offset) for name, data, offset, _ in TarReader([archive])]
        [('a.cls', b'3', 0), ('a.txt', b'tree', 1024)]
    """

    def __init__(
        self,
        blocks: Iterable[bytes | memoryview],
        *,
        url: str = "",
        start: int = 0,
        require_end: bool = True,
        max_member_bytes: int | None = None,
        skip_large: bool = False,
        want: Callable[[str], bool] | None = None,
    ) -> None:
        self.seekable = True
        self._window = Window(blocks, start)
        self._faults = Faults(url)
        self._start = start
        self._require_end = require_end
        self._max_member_bytes = max_member_bytes
        self._skip_large = skip_large
        self._want = want
        self._extended_at = -1  # where the extension headers of the next member begin; -1: it has none
        self._next: dict[str, str] = {}  # overrides for the next member
        self._all: dict[str, str] = {}  # overrides of global headers for all later members
        self._joint = -1  # where another archive was found after the end of one

    # One loop with many branches: tar decides the kind of a member by several fields in turn.
    def __iter__(self) -> Iterator[Member]:  # noqa: C901
        window, want, limit = self._window, self._want, self._max_member_bytes
        while True:
            # Usual members, whole in the block at hand, by local variables: a third less time. All others are below.
            at, base, begin = window.at, window.base, self._extended_at
            is_usual = want is None and not (self._next or self._all)
            block = window.block if is_usual and isinstance(window.block, bytes) else b""
            room = len(block)
            while at + BLOCK <= room:
                try:
                    kind, size, name = read_header(block[at : at + BLOCK])
                except ValueError:
                    break
                content = at + BLOCK
                after = content + size + -size % BLOCK
                if after > room:
                    break
                if kind == _FILE and (limit is None or size <= limit):
                    yield (
                        name,
                        block[content : content + size],
                        base + at if begin < 0 else begin,
                        base + after,
                    )
                    begin = -1
                elif kind == _PAX and begin < 0 and is_only_time(block[content : content + size]):
                    begin = base + at
                else:
                    break
                at = after
            window.at, self._extended_at, block = at, begin, b""
            begin = offset = window.offset
            header = window.take(BLOCK)
            if len(header) < BLOCK or not (header[0] or header.strip(NUL)):
                if self._goes_on(header, offset):
                    continue
                return
            try:
                kind, size, name = read_header(header)
            except ValueError as error:
                if offset == self._start == 0 and header[257:262] != b"ustar":  # a mark of POSIX and GNU tar
                    raise self._faults.not_a_tar(header) from None
                if offset == self._joint:
                    raise self._faults.after_the_end(offset) from None
                raise self._faults.bad_header(str(error), offset) from None
            if kind in _EXTENSIONS:
                self._extend(kind, size, offset, name)
                continue
            target = ""
            if self._extended_at >= 0 or self._all:
                begin, name, size, target = self._override(offset, name, size)
            if kind == _V7_FILE and name.endswith("/"):
                kind = _DIRECTORY
            wanted = want is None or want(name)
            if kind in _SPECIAL:
                if kind in _REFUSED:
                    raise self._faults.refused(_REFUSED[kind], offset, name)
                following = offset + BLOCK
                if kind in _LINKS and wanted:
                    yield name, Link(target or text_field(header[157:257]), _LINKS[kind]), begin, following
                if kind not in _NOTES:
                    continue  # links, devices and other special members have no data, whatever their size field
                wanted = False
            following = offset + BLOCK + size + -size % BLOCK
            large = wanted and limit is not None and size > limit
            if large and not self._skip_large:
                raise self._faults.too_large(size, limit or 0, name, offset)
            if large or not wanted:
                if window.skip(size + -size % BLOCK):
                    raise self._faults.truncated("inside a member that is passed over", window.offset, name)
                if large:
                    yield name, TooLarge(size), begin, following
                continue
            data = window.take_padded(size)
            if data is None:
                what = f"inside a member of {size} byte{'' if size == 1 else 's'}"
                raise self._faults.truncated(what, window.offset, name)
            yield name, data, begin, following
            del data  # or this frame would keep it until the next member is there

    def _extend(self, kind: int, size: int, offset: int, name: str) -> None:
        """Read an extension header for the next member or, if global, for all."""
        is_long_name = kind in _LONG_NAMES
        limit = MAX_NAME_BYTES + 1 if is_long_name else _EXTENSION_LIMIT  # GNU's names end with a NUL
        before = offset - self._extended_at if self._extended_at >= 0 else 0
        if before > _EXTENSIONS_LIMIT:
            raise self._faults.too_long(
                f"{before} bytes of extension headers", _EXTENSIONS_LIMIT, offset, name
            )
        if size > limit:
            begins = text_field(self._window.take(_SHOWN)) if is_long_name else name
            raise self._faults.too_long(f"an extension header of {size} bytes", limit, offset, begins)
        payload = self._window.take_padded(size)
        if payload is None:
            raise self._faults.truncated("inside an extension header", self._window.offset)
        if is_long_name:
            said = {_LONG_NAMES[kind]: text_field(payload)}
        else:
            try:
                said = pax_records(payload)
            except ValueError as error:
                raise self._faults.bad_header(str(error), offset) from None
        for word, value in said.items():
            if len(value) > MAX_NAME_BYTES:
                what = f"an extension header with a {word} of {len(value)} characters"
                raise self._faults.too_long(what, MAX_NAME_BYTES, offset, value[:_SHOWN])
        if kind == _PAX_GLOBAL:
            self._all |= said
            self.seekable = self.seekable and not self._all
            return
        if self._extended_at < 0:
            self._extended_at = offset
        self._next |= said  # the last of two headers is right, as for GNU tar, libarchive and Go

    def _override(self, offset: int, name: str, size: int) -> tuple[int, str, int, str]:
        """Return offset, name, size and link target, by the extension headers."""
        begin = offset if self._extended_at < 0 else self._extended_at
        said = self._all | self._next
        self._extended_at = -1
        self._next = {}
        name = said.get("path") or name
        if said.get("sparse"):
            raise self._faults.refused(_REFUSED[ord("S")], begin, name)
        if digits := said.get("size"):
            if not (digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) < 20):
                raise self._faults.bad_header(f"the PAX header has a size of {digits[:40]!r}", begin, name)
            size = int(digits)
        return begin, name, size, said.get("linkpath", "")

    def _goes_on(self, block: bytes, offset: int) -> bool:
        """Judge a block that is not a header; return whether an archive follows."""
        if block.strip(NUL):
            if offset == self._start == 0 and (NUL not in block or not may_be_header(block)):
                raise self._faults.not_a_tar(block)
            if offset == self._joint:
                raise self._faults.after_the_end(offset)
            raise self._faults.truncated("inside a header", self._window.offset)
        if self._extended_at >= 0:
            raise self._faults.truncated("between an extension header and its member", self._window.offset)
        if len(block) < BLOCK:
            if offset == 0:
                where = "before the first header" if block else "an empty object"
                raise self._faults.truncated(where, self._window.offset)
            if self._require_end:
                raise self._faults.no_end(self._window.offset)
            return False
        try:
            follows = self._window.skip_zeros()
        except BadHeaderError as error:  # in a compressed shard: data behind the stream
            raise self._faults.after_the_end(self._window.offset, error.what) from error
        if not follows:
            return False
        self._joint = self._window.offset
        if self._joint < offset + 2 * BLOCK:
            # An end marker has two. Most likely a header was overwritten with zeros.
            raise self._faults.bad_header("one block of zeros stands alone before more data", offset)
        self._all = {}
        return True


def usual_members(
    archive: bytes | memoryview, start: int, key: str, fields: Iterable[str], sizes: Iterable[int]
) -> list[tuple[str, bytes, int, str]] | None:
    """Return the members of an indexed sample, or None.

    Each is a name, data, offset and field. None if the sample has other members than these fields, or if one is not
    usual: whole regular files, at most with a PAX header of a time. A `TarReader` reads the others, slower, and raises
    the errors. `start` is the offset of the archive, which has no end. Its bytes are known to be those that were
    indexed, so a header with the expected name and size is not checked again.

    Example:
        >>> from torchdata_ais.testing import shard_bytes
        >>> archive = shard_bytes({"a.cls": b"3", "a.txt": b"tree"})[:2048]
        >>> usual_members(archive, 0, "a", ["cls", "txt"], [1, 4])
        [('a.cls', b'3', 0, 'cls'), ('a.txt', b'tree', 1024, 'txt')]
        >>> usual_members(archive, 0, "a", ["cls"], [1])
    """
    found: list[tuple[str, bytes, int, str]] = []
    at, begins = 0, f"{key}."
    length = len(begins)
    try:
        for field, expected in zip(fields, sizes, strict=True):
            begin, name, size = start + at, begins + field, expected
            raw = name.encode("utf-8", "surrogateescape") + NUL
            is_expected = (
                archive[at : at + len(raw)] == raw
                and archive[at + 124 : at + 136] == b"%011o\0" % size
                and archive[at + 156] == _FILE
                and not archive[at + 345]  # no more of the name
            )
            if not is_expected:
                kind, size, name = read_header(bytes(archive[at : at + BLOCK]))
                if kind == _PAX and is_only_time(bytes(archive[at + BLOCK : at + BLOCK + size])):
                    at += BLOCK + size + -size % BLOCK
                    kind, size, name = read_header(bytes(archive[at : at + BLOCK]))
                if kind != _FILE or not name.startswith(begins) or name[length:].lower() != field:
                    return None
            at += BLOCK
            found.append((name, bytes(archive[at : at + size]), begin, field))
            at += size + -size % BLOCK
    except (ValueError, IndexError):  # no header; the archive ends
        return None
    return found if at == len(archive) else None
