"""AIStore's own index of a shard, version 1: parsed, checked, and its members made samples."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from torchdata_ais.errors import NonAdjacentKeyError
from torchdata_ais.index import ShardSamples
from torchdata_ais.indexing.grouping import Grouper
from torchdata_ais.tar.window import BLOCK

__all__ = ["ClusterIndex", "IndexedMember", "UnusableError", "parse_shard_index", "samples_in"]

_SEED = 1103515245
_HEAD = 11  # version, format, kind of checksum; XXH64 of the rest
_MOST = 1 << 20  # members that AIStore takes into an index
_GAP = 64 << 10
_TAIL = 10752  # end marker and padding to a record of 10 KiB have no more bytes
_BEYOND = 10 << 10


class UnusableError(Exception):
    """The index of the cluster does not say where the samples of this shard stand; its text says why."""


class IndexedMember(NamedTuple):
    """A regular member: its name, the offset of its last header, its bytes."""

    name: str
    offset: int
    size: int


class ClusterIndex(NamedTuple):
    """What AIStore has found in one shard, by offset."""

    checksum: str
    size: int
    members: list[IndexedMember]


def parse_shard_index(data: bytes) -> ClusterIndex:
    """Return what an object of the bucket ``.sys-shardidx`` says.

    Raises:
        UnusableError: It is damaged, or of a form that this package does not know.
    """
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
    members = []
    for _ in range(count):
        name, at = _text(data, at)
        offset, at = _uvarint(data, at)
        length, at = _uvarint(data, at)
        members.append(IndexedMember(name, offset, length))
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow")
    members.sort(key=lambda member: member.offset)
    return ClusterIndex(checksum, size, members)


def _text(data: bytes, at: int) -> tuple[str, int]:
    length, at = _uvarint(data, at)
    if at + length > len(data):
        raise ValueError("a name reaches beyond its end")
    return data[at : at + length].decode("utf-8", "surrogateescape"), at + length


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def samples_in(found: ClusterIndex, url: str) -> ShardSamples:
    """Return the samples of a shard, by its regular members.

    A sample begins where the regular member before it ends, and ends at the first header of the next sample's first
    regular member: what an index does not name (links, extension headers) stands in between. The last one reaches 10
    KiB beyond its last member, or to the shard's end.

    Args:
        found: The members.
        url: The shard, for errors.

    Raises:
        UnusableError: What stands between members is more than headers and links, so that it must be read.
    """
    if len(found.members) >= _MOST:
        raise UnusableError(f"it has {_MOST} members or more, of which the rest is in no index")
    grouper = Grouper(url)
    end = 0
    try:
        for name, offset, size in found.members:
            if offset % BLOCK or offset < end:
                raise UnusableError(f"a member begins at byte {offset}, within another one")
            if offset - end > _GAP:
                raise UnusableError(f"{offset - end} bytes stand before byte {offset} that are no member")
            begin, end = end, offset + BLOCK + size + -size % BLOCK
            grouper.add(name, size, begin, end, header=offset)
    except NonAdjacentKeyError as error:
        raise UnusableError(f"the key {error.key!r} comes back") from None
    tail = found.size - end
    if not 2 * BLOCK <= tail <= _TAIL:
        raise UnusableError(f"{tail} bytes follow the last member")
    return grouper.finish(min(end + _BEYOND, found.size))
