"""Shards for the differential tests: names, formats, compression and damage, each case as the bytes of its shards."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Iterable
from typing import Any

from torchdata_ais.testing import shard_bytes

BLOCK = 512
THREE = [(f"{key}.{field}", f"{key}{field}".encode() * 60) for key in "abc" for field in ("jpg", "cls")]
"""Three samples of two fields; each member is a block of header and a block of data."""

NAMES = [
    *("a.jpg", "./a.jpg", "a..jpg", "d.x/a.b.jpg", "d/e/a.jpg", "a.", "a.JPG", "A.jpg", "noext", "d.x/noext"),
    *(
        ".hidden",
        "d/.hidden",
        "img_v1.2.jpg",
        "x.__foo__",
        "__m__",
        "__d__/x",
        "__d__/x.txt",
        "d/__m__/x.txt",
    ),
    *(
        "__m__.txt",
        "a b.txt",
        "ä/ö.txt",
        "a.tar.gz",
        "-a.txt",
        "a.txt ",
        "1.cls",
        "_a.jpg",
        "d/_a.jpg",
        "._a.jpg",
    ),
]


def tar(members: Iterable[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT, **fields: Any) -> bytes:
    """Return an archive of exactly its members and two blocks of zeros."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
        end = archive.offset
    return out.getvalue()[:end] + bytes(2 * BLOCK)


def special(name: str, kind: bytes, target: str = "") -> bytes:
    """Return the header of a member without data."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info.tobuf(tarfile.USTAR_FORMAT)


def v7(shard: bytes) -> bytes:
    """Return `shard` with the headers of 1979: no magic, no user names."""
    old = bytearray(shard)
    for at in headers(shard):
        header = old[at : at + BLOCK]
        header[257:] = bytes(BLOCK - 257)
        header[156:157] = b"\0"
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        old[at : at + BLOCK] = header
    return bytes(old)


def headers(shard: bytes) -> list[int]:
    """Return where the headers of `shard` begin."""
    with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
        return [member.offset for member in archive]


def with_bad_header(index: int) -> bytes:
    shard = bytearray(tar(THREE))
    shard[headers(bytes(shard))[index] + 100] ^= 1
    return bytes(shard)


_whole = tar(THREE)
_gz = gzip.compress(_whole, mtime=0)

CASES: dict[str, list[bytes]] = {
    **{f"name {name}": [tar([(name, b"1"), ("z.cls", b"2")])] for name in NAMES},
    "empty member": [tar([("a.txt", b""), ("a.cls", b"1")])],
    "no members": [tar([])],
    "no members with a key": [tar([("README", b"x")])],
    "member without key in between": [tar([("a.jpg", b"1"), ("README", b"x"), ("a.cls", b"2")])],
    "two shards with the same keys": [_whole, _whole],
    "last key of one shard is first of the next": [tar([("a.jpg", b"1")]), tar([("a.cls", b"2")])],
    "folders": [special("d/", tarfile.DIRTYPE) + tar([("d/a.txt", b"1"), ("d/a.cls", b"2")])],
    "fifo and device": [special("f.txt", tarfile.FIFOTYPE) + special("c.txt", tarfile.CHRTYPE) + _whole],
    "format v7": [v7(_whole)],
    "format ustar": [_whole],
    "format gnu": [tar(THREE, tarfile.GNU_FORMAT)],
    "format pax": [tar(THREE, tarfile.PAX_FORMAT)],
    "pax float mtime": [tar(THREE, tarfile.PAX_FORMAT, mtime=1234567890.5)],
    "gnu long name": [tar([("d" * 272 + ".txt", b"1"), ("z.cls", b"2")], tarfile.GNU_FORMAT)],
    "pax long name": [tar([("d" * 272 + "/é.txt", b"1"), ("z.cls", b"2")], tarfile.PAX_FORMAT)],
    "ustar prefix": [tar([("p" * 90 + "/" + "n" * 90 + ".txt", b"1")])],
    "base-256 number": [tar(THREE, tarfile.GNU_FORMAT, mtime=1 << 40)],
    "blocked as tar does": [shard_bytes(THREE)],
    "gz": [_gz],
    "bz2": [bz2.compress(_whole)],
    "xz": [lzma.compress(_whole)],
    "gz of two members": [gzip.compress(_whole[:1500]) + gzip.compress(_whole[1500:])],
    "gz with a wrong checksum": [_gz[:-8] + b"\0\0\0\0" + _gz[-4:]],
    "gz without checksum and length": [_gz[:-8]],
    "gz cut": [_gz[: len(_gz) // 2]],
    "field twice": [tar([("a.jpg", b"1"), ("a.jpg", b"2"), ("b.cls", b"3")])],
    "field twice but for case": [tar([("a.jpg", b"1"), ("a.JPG", b"2"), ("b.cls", b"3")])],
    "field __key__": [tar([("a.__key__", b"1"), ("b.cls", b"3")])],
    "keys that come back": [tar([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"), ("b.cls", b"4")])],
    "apple double": [tar([("d/a.cls", b"1"), ("d/._a.jpg", b"x"), ("d/a.jpg", b"2")])],
    "field __bad__": [tar([("a.jpg", b"1"), ("a.__bad__", b"1"), ("b.cls", b"2")])],
    "hard link": [tar([("a.jpg", b"1")])[:-1024] + special("a.png", tarfile.LNKTYPE, "a.jpg") + bytes(1024)],
    "symbolic link": [
        tar([("a.jpg", b"1")])[:-1024] + special("a.png", tarfile.SYMTYPE, "a.jpg") + bytes(1024)
    ],
    "link out of the shard": [special("a.png", tarfile.SYMTYPE, "/etc/passwd") + tar([("a.jpg", b"1")])],
    "no end": [_whole[:-1024]],
    "one block of end": [_whole[:-512]],
    "zeros only": [bytes(1024)],
    "no bytes": [b""],
    "html": [b"<html><body>404</body></html>" * 40],
    "json": [b'{"status": 404, "message": "no such bucket"}'],
    "zero block in the middle": [tar(THREE[:2])[:-1024] + bytes(512) + tar(THREE[2:])],
    "two archives in one": [tar(THREE[:2]) + tar(THREE[2:])],
    "cut, then the same key": [_whole[: 2 * BLOCK + 600], tar([("a.cls", b"other"), ("z.cls", b"z")])],
    **{f"header {index} damaged": [with_bad_header(index)] for index in range(6)},
    **{
        f"cut at {cut}": [_whole[:cut]]
        for index in range(0, 12, 3)
        for cut in (index * BLOCK + 1, index * BLOCK + 200, index * BLOCK + 511, (index + 1) * BLOCK)
    },
}
