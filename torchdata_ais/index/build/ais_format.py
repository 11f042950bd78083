"""Format of AIStore's own shard index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import xxhash

from torchdata_ais.errors import NonAdjacentKeyError, ShardError
from torchdata_ais.index import ShardSamples
from torchdata_ais.index.build.by_reading import PlacedMember, UnusableError, group_members, placed_members
from torchdata_ais.tar import TarReader
from torchdata_ais.tar.window import BLOCK, PassableBlocks

_SEED = 1103515245
_HEAD = 11  # version, format, kind of checksum; XXH64 of the rest
_MOST = 1 << 20  # members that AIStore takes into an index
_GAP = 64 << 10
_TAIL = 10752  # end marker and padding to a record of 10 KiB have no more bytes
_BEYOND = 10 << 10
_MERGED = 64 << 10  # bytes between two gaps that cost less than another request
_RANGE = 4 << 20
_RANGES = 8  # in any shard; one more for each MiB of a large one
_READ = 1 << 20  # bytes of the gaps in any shard; a quarter of a large one


class ClusterIndex(NamedTuple):
    """AIStore's index of one shard.

    `members` has the offset of the last header, bytes and name of each regular member, by offset.
    """

    checksum: str
    size: int
    members: list[tuple[int, int, str]]


def parse_shard_index(data: bytes) -> ClusterIndex:
    """Return the parsed object of ``.sys-shardidx``, or raise `UnusableError`."""
    if len(data) < _HEAD:
        raise UnusableError("its index is cut")
    if data[0] != 1 or data[1] != 0 or data[2] != 1:
        raise UnusableError(f"its index is of version {data[0]}, format {data[1]}, checksum {data[2]}")
    if xxhash.xxh64_intdigest(data[_HEAD:], _SEED) != int.from_bytes(data[3:_HEAD], "big"):
        raise UnusableError("its index does not have its checksum")
    try:
        return _payload(data)
    except (IndexError, ValueError) as error:
        raise UnusableError(f"its index cannot be understood ({error})") from error


def _payload(data: bytes) -> ClusterIndex:
    _, at = _text(data, _HEAD)
    checksum, at = _text(data, at)
    size, at = _uvarint(data, at)
    count, at = _uvarint(data, at)
    if count > _MOST:
        raise ValueError(f"{count} members")
    members: list[tuple[int, int, str]] = []
    add = members.append
    for _ in range(count):
        length = data[at]
        at += 1
        if length > 127:
            length, at = _uvarint(data, at - 1)
        name = data[at : at + length]
        offset, at = _uvarint(data, at + length)
        member_size, at = _uvarint(data, at)
        add((offset, member_size, name.decode("utf-8", "surrogateescape")))
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow")
    members.sort()
    return ClusterIndex(checksum, size, members)


def _text(data: bytes, at: int) -> tuple[str, int]:
    length, at = _uvarint(data, at)
    if at + length > len(data):
        raise ValueError("a name reaches beyond its end")
    return data[at : at + length].decode("utf-8", "surrogateescape"), at + length


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        at += 1
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return value | byte << shift, at + 1


def samples_in(
    found: ClusterIndex, url: str, read: Callable[[int, int], bytes] | None = None
) -> ShardSamples:
    """Return the samples of a shard, by its regular members.

    The index does not name links and extension headers, which are in the gaps between its members and after the last
    one. With `read` the gaps are read, and the samples are those that `index_shard` finds. Without it a sample begins
    where the regular member before it ends, and ends at the last header of the next sample's first regular member. The
    last sample then reaches 10 KiB beyond its last member, or to the shard's end.

    Memory: the rows, and with `read` 4 MiB of the shard.

    Raises:
        UnusableError: There is more than headers and links between members, or there are too many gaps. Read the shard.
    """
    if len(found.members) >= _MOST:
        raise UnusableError(f"it has {_MOST} members or more, of which the rest is in no index")
    stop = 0
    if found.members:
        offset, size, _ = found.members[-1]
        stop = offset + BLOCK + size + -size % BLOCK
    tail = found.size - stop
    if not 2 * BLOCK <= tail <= _TAIL:
        raise UnusableError(f"{tail} bytes follow the last member")
    try:
        if read is not None:
            return group_members(_exactly_placed(found, url, read), url)
        return group_members(_placed(found.members), url, end=min(stop + _BEYOND, found.size))
    except NonAdjacentKeyError as error:
        raise UnusableError(f"the key {error.key!r} comes back") from None


def _placed(members: list[tuple[int, int, str]]) -> Iterator[PlacedMember]:
    """Yield the members, each from the end of the one before it."""
    end = 0
    for offset, size, name in members:
        if not 0 <= offset - end <= _GAP or offset % BLOCK:
            raise UnusableError(
                f"{offset - end} bytes stand before byte {offset} that are no member"
                if offset - end > _GAP
                else f"a member begins at byte {offset}, within another one"
            )
        after = offset + BLOCK + size + -size % BLOCK
        yield name, size, end, offset, after
        end = after


def _exactly_placed(
    found: ClusterIndex, url: str, read: Callable[[int, int], bytes]
) -> Iterator[PlacedMember]:
    """Yield the members of index and gaps, each from its first header."""
    named = list(_placed(found.members))
    stop = named[-1][-1] if named else 0
    gaps = [(begin, offset + BLOCK) for _, _, begin, offset, _ in named if begin < offset]
    ranges = iter(_merged([*gaps, (stop, found.size)], found.size))
    first, data = 0, b""

    def taken(begin: int, end: int) -> bytes:
        nonlocal first, data
        while first + len(data) < end:
            first, last = next(ranges)
            data = read(first, last - first)
            if len(data) != last - first:
                raise UnusableError(f"it ends before byte {last}")
        return data[begin - first : end - first]

    for name, size, begin, offset, after in named:
        if begin == offset:
            yield name, size, offset, offset, after
            continue
        member = None
        for member in _in_gap(taken(begin, offset + BLOCK), begin, url, ends=False):
            yield member
        if member is None or (member[0], member[1], member[-1]) != (name, size, after):
            raise UnusableError(f"byte {offset} is not the header of {name!r}")
    yield from _in_gap(taken(stop, found.size), stop, url, ends=True)


def _merged(gaps: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the ranges to read: gaps that are close together are one."""
    merged = [gaps[0]]
    for begin, end in gaps[1:]:
        first, last = merged[-1]
        if begin - last <= _MERGED and end - first <= _RANGE:
            merged[-1] = first, end
        else:
            merged.append((begin, end))
    if len(merged) > _RANGES + size // _READ or sum(b - a for a, b in merged) > max(_READ, size // 4):
        raise UnusableError("too many places in it have extension headers or links")
    return merged


def _in_gap(data: bytes, start: int, url: str, *, ends: bool) -> Iterator[PlacedMember]:
    """Yield the members in bytes that reach to a member's data, or to the end."""
    reader = TarReader(
        _Gap(data), url=url, start=start, require_end=ends, max_member_bytes=0, skip_large=True
    )
    try:
        yield from placed_members(reader)
    except ShardError as error:
        raise UnusableError(f"{error.what}") from error
    if not reader.seekable:
        raise UnusableError("it has a global PAX header")


class _Gap(PassableBlocks):
    """One block, after which the absent data of a member can be skipped."""

    def __init__(self, data: bytes) -> None:
        self._blocks = iter((data,))

    def __next__(self) -> bytes:
        return next(self._blocks)

    def pass_over(self, size: int) -> int:
        return size
