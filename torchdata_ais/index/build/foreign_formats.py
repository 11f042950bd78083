"""File formats of the indexes of other tools."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from torchdata_ais._util.files import open_regular
from torchdata_ais.errors import ObjectChangedError, SampleIndexError
from torchdata_ais.index import IndexedShard, ShardEntry
from torchdata_ais.index.build.by_reading import (
    PlacedMember,
    check_seekable,
    group_members,
    headers_in,
    index_shard,
    not_addressable,
    placed_members,
)
from torchdata_ais.store import StoreOptions, file_url, open_blocks
from torchdata_ais.store.objects.files import open_error
from torchdata_ais.tar import PassableBlocks, is_compressed
from torchdata_ais.urls import parse_url

Member = tuple[int, int, str]
"""Offset of the last header, bytes and name, as in AIStore's own index."""

_DALI = b"v1."
_HEADER = 512
_COMPONENT = re.compile(r"(\S{1,255}) (\d+) (\d+) ((?:.*?\.)?\1)(?: |\Z)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-7]{3})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Claim(NamedTuple):
    """Entry of one shard in another tool's index; None is unknown.

    `where` is the file with the entry, `offsets` are where each sample begins, and at last where they end. `members`
    has the places of regular members.
    """

    where: str
    shard: str
    offsets: list[int] | None = None
    members: list[Member] | None = None
    samples: int | None = None
    size: int | None = None


def unfitting(index: str, shard: str, what: str, key: str | None = None) -> SampleIndexError:
    """Return the error for an index that does not fit the shard."""
    return SampleIndexError.at(
        f"{index}: the index does not fit {shard}: {what}",
        todo="make it again with the tool that made it, or index the shards here: torchdata-ais index",
        url=shard,
        key=key,
    )


def claim_in_idx(data: bytes, index: str, shard: str) -> Claim:
    r"""Return the entry in an ``.idx`` file of wds2idx, Energon or Lhotse.

    Example:
        >>> claim_in_idx(b"v1.2 1\njpg 512 9 a.jpg cls 1536 1 a.cls\n", "s.idx", "s.tar").members
        [(0, 9, 'a.jpg'), (1024, 1, 'a.cls')]
        >>> import struct
        >>> claim_in_idx(struct.pack("<3Q", 0, 2048, 4096), "s.tar.idx", "s.tar").offsets
        [0, 2048, 4096]
    """
    if data.startswith(_DALI):
        return _dali(data.decode("utf-8", "surrogateescape"), index, shard)
    if not data or len(data) % 8:
        raise unfitting(index, shard, f"{len(data)} bytes are no whole number of offsets of 8 bytes")
    offsets = np.frombuffer(data, dtype="<u8")
    if (offsets > np.uint64(2**62)).any() or (offsets[1:] <= offsets[:-1]).any():
        raise unfitting(index, shard, "its offsets do not ascend")
    return Claim(index, shard, offsets=offsets.astype(np.int64).tolist())


def _dali(text: str, index: str, shard: str) -> Claim:
    head, _, rest = text.partition("\n")
    version, _, count = head.partition(" ")
    if version != "v1.2":
        raise unfitting(
            index, shard, f"it is of version {version!r}, and names of members stand in version v1.2 only"
        )
    lines = rest.removesuffix("\n").split("\n") if rest else []
    if count.strip() != str(len(lines)):
        raise unfitting(index, shard, f"it says {count.strip()[:20]} samples, and {len(lines)} stand in it")
    members: list[Member] = []
    for number, line in enumerate(lines, 2):
        at = 0
        while at < len(line):
            found = _COMPONENT.match(line, at)
            if found is None:
                raise unfitting(index, shard, f"line {number} cannot be understood from character {at} on")
            members.append((int(found[2]) - _HEADER, int(found[3]), _unescaped(found[4])))
            at = found.end()
    members.sort()
    return Claim(index, shard, members=members)


def _unescaped(name: str) -> str:
    """Return a name of wds2idx without the escapes that GNU tar prints."""
    if "\\" not in name:
        return name
    plain = _ESCAPE.sub(
        lambda found: chr(int(found[1], 8)) if found[1] else _ESCAPED.get(found[2], found[2]), name
    )
    try:
        return plain.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return plain


def energon_counts(whole: dict[str, Any], index: str) -> dict[str, int]:
    """Return how many samples each shard has, by Energon's ``.info.json``."""
    counts = whole.get("shard_counts")
    if not isinstance(counts, dict) or not all(isinstance(count, int) for count in counts.values()):
        raise _not_understood(index, "it has no shard_counts")
    return counts


def wids_claims(whole: dict[str, Any], index: str) -> list[Claim]:
    """Return the entries of a wids shard index, below its base or folder.

    Example:
        >>> whole = {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3, "filesize": 10240}]}
        >>> [claim[1:] for claim in wids_claims(whole, "data/index.json")]
        [('data/a.tar', None, None, 3, 10240)]
    """
    if whole.get("wids_version") != 1:
        raise _not_understood(index, f"wids_version is {whole.get('wids_version')!r}, not 1")
    lists = [whole]
    for part in whole.get("datasets") or []:
        if not isinstance(part, dict) or "source_url" in part:
            raise _not_understood(
                index, "it refers to other indexes: open those, and join them with concat()"
            )
        lists.append(part)
    claims = []
    for part in lists:
        base = part.get("base") or whole.get("base") or posixpath.dirname(index)
        for row in part.get("shardlist") or []:
            if not (isinstance(row, dict) and isinstance(row.get("url"), str)):
                raise _not_understood(index, "a shard has no url")
            if not isinstance(row.get("nsamples"), int):
                raise _not_understood(index, f"{row['url']} has no nsamples")
            size = row.get("filesize")
            claims.append(
                Claim(
                    index,
                    _merged(str(base), row["url"]),
                    samples=row["nsamples"],
                    size=size if isinstance(size, int) else None,
                )
            )
    return claims


def _merged(base: str, url: str) -> str:
    return url if urlsplit(url).scheme or url.startswith("/") or not base else posixpath.join(base, url)


def json_in(data: bytes, index: str) -> dict[str, Any]:
    """Return the JSON object that an index is."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        raise _not_understood(index, "it is no JSON") from None
    if not isinstance(whole, dict):
        raise _not_understood(index, "it is no JSON object")
    return whole


def _not_understood(index: str, what: str) -> SampleIndexError:
    return SampleIndexError.at(
        f"{index}: this is no index that can be read: {what}",
        todo="open .nv-meta/.info.json, files .idx, or a JSON of wids; or index the shards: torchdata-ais index",
        url=index,
    )


_BLOCK_BYTES = 8 << 10


def index_headers(url: str, options: StoreOptions) -> IndexedShard:
    """Return a shard's index entry; of a local file by its headers alone.

    Memory: a block.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> shard, samples = index_headers(example_shards(counts=(2,))[0], StoreOptions())
        >>> samples.keys, samples.starts, samples.xxh64
        (['00000', '00001'], [0, 1536], None)
    """
    place = parse_url(url)
    if place.kind != "file":
        return index_shard(url, options)
    before = file_url(place.name)
    with _opened(place.name) as blocks:
        reader = headers_in(blocks, url)
        samples = group_members(placed_members(reader), url)
    check_seekable(reader, place.uri)
    if file_url(place.name).version != before.version:
        raise ObjectChangedError.at(f"{url}: it changed while it was read", todo="index it anew", url=url)
    return ShardEntry(str(place.uri), before.size, None, before.version), samples


def members_of(url: str, options: StoreOptions) -> Iterator[PlacedMember]:
    """Yield the members of a shard; anything but a local file is read whole."""
    place = parse_url(url)
    with _opened(place.name) if place.kind == "file" else open_blocks(place, options) as blocks:
        yield from placed_members(headers_in(blocks, url))


@contextmanager
def _opened(path: str) -> Iterator[_FileBlocks]:
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:
        raise open_error(path, error) from error
    with file:
        if is_compressed(os.pread(file.fileno(), 512, 0)):
            raise not_addressable(path, "it is compressed")
        yield _FileBlocks(file.fileno(), path)


class _FileBlocks(PassableBlocks):
    """Blocks of a file, small ones: data between headers are not needed."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path, self._offset = fd, path, 0
        self._size = os.fstat(fd).st_size

    def __next__(self) -> bytes:
        try:
            block = os.pread(self._fd, _BLOCK_BYTES, self._offset)
        except OSError as error:
            raise open_error(self._path, error) from error
        if not block:
            raise StopIteration
        self._offset += len(block)
        return block

    def pass_over(self, size: int) -> int:
        passed = max(0, min(size, self._size - self._offset))
        self._offset += passed
        return passed
