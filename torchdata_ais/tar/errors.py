"""Errors of damaged archives."""

from __future__ import annotations

from torchdata_ais.errors import (
    BadHeaderError,
    NotATarError,
    ShardError,
    TrailingDataError,
    TruncatedShardError,
)
from torchdata_ais.errors.text import Remedy, in_commands, in_programs

_KINDS = {
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"BZh": "a bzip2 file",
    b"LZIP": "an lzip file",
    b"\x5d\x00\x00": "an LZMA file",
    b"\xfd7zXZ\x00": "an xz file",
    b"\x04\x22\x4d\x18": "an LZ4 file",
    b"\x02\x21\x4c\x18": "an LZ4 file",
    b"\x89LZO": "an lzop file",
    b"\x1f\x9d": "a compress (.Z) file",
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF": "an HDF5 file",
    b"CDF": "a netCDF file",
    b"\x93NUMPY": "an npy file",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"SQLite format 3": "an SQLite data base",
    b"\xff\xd8\xff": "a JPEG picture",
    b"\x89PNG": "a PNG picture",
    b"GIF8": "a GIF picture",
    b"BM": "a BMP picture",
    b"II*\x00": "a TIFF picture",
    b"MM\x00*": "a TIFF picture",
    b"%PDF": "a PDF document",
    b"OggS": "an Ogg file",
    b"fLaC": "a FLAC file",
    b"ID3": "an MP3 file",
    b"\x1a\x45\xdf\xa3": "a Matroska or WebM video",
    b"\x7fELF": "a program",
    b"#!": "a script",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}


def kind_of(block: bytes) -> str:
    r"""Return in words the kind of file that begins with `block`.

    The words quote at most four bytes of it.

    Example:
        >>> kind_of(b"<!DOCTYPE html><p>Sign in"), kind_of(b"root:x:0:0:root"), kind_of(b"\x00\x01\x02\x03\x04")
        ('an HTML page', 'plain text', 'a file of unknown kind (it begins with the bytes 00 01 02 03)')
    """
    for magic, kind in _KINDS.items():
        if block.startswith(magic):
            return kind
    if block[:4] == b"RIFF":
        return {b"WAVE": "a WAV file", b"WEBP": "a WebP picture", b"AVI ": "an AVI video"}.get(
            block[8:12], "a RIFF file"
        )
    if block[4:8] == b"ftyp":
        return "an MP4 video"
    text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
    lowered = text[:200].lower()
    if lowered.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page"
    if text[:1] == b"<":
        return "an XML document"
    if text[:1] in (b"{", b"["):
        return "JSON"
    if text and all(byte in b"\t\n\r\f" or 32 <= byte < 127 or byte >= 128 for byte in text[:64]):
        return "plain text"
    return f"a file of unknown kind (it begins with the bytes {block[:4].hex(' ')})"


_REWRITE = "if the object is stored like this, write it again"
_PLAIN = (
    "write the shard again with plain members (GNU tar: without --sparse and --multi-volume; "
    "bsdtar: with --no-read-sparse)"
)


class Faults:
    """A maker of errors about one archive."""

    def __init__(self, url: str) -> None:
        self._url = url or None

    def truncated(self, where: str, end: int, member: str | None = None) -> TruncatedShardError:
        """The archive ends at byte `end`, `where` it should not."""
        what = f"the shard ends at byte {end}, {where}"
        return TruncatedShardError.at(what, todo=_REWRITE, url=self._url, member=member, offset=end)

    def no_end(self, end: int) -> TruncatedShardError:
        """The archive ends between two members."""
        what = f"the shard ends at byte {end} without an end marker, so that members may be missing"
        todo = Remedy(
            _REWRITE, "; if its writer never adds the marker, pass safety=Safety(require_end=False)"
        )
        return TruncatedShardError.at(what, todo=todo, url=self._url, offset=end)

    def bad_header(self, what: str, offset: int, member: str | None = None) -> BadHeaderError:
        """A header or extension header is damaged."""
        return BadHeaderError.at(
            f"{what}, at byte {offset}", todo=_REWRITE, url=self._url, member=member, offset=offset
        )

    def refused(self, what: str, offset: int, member: str | None = None) -> BadHeaderError:
        """A kind of member that cannot be read from a stream."""
        what = f"{what} cannot be read from a stream"
        return BadHeaderError.at(what, todo=_PLAIN, url=self._url, member=member, offset=offset)

    def too_long(self, what: str, limit: int, offset: int, member: str) -> BadHeaderError:
        """An extension header, or a name that begins with `member`, is too long."""
        return BadHeaderError.at(
            f"{what}, more than {limit}, at byte {offset}",
            todo="write the shard again with shorter names, and without large attributes (tar: no --xattrs)",
            url=self._url,
            member=member,
            offset=offset,
        )

    def after_the_end(self, offset: int, why: str = "") -> TrailingDataError:
        """Neither zeros nor another archive follow the end marker."""
        what = why or f"data that is not another archive follows the end of the archive, at byte {offset}"
        todo = (
            "write the object again without it: the archive before it is whole, and all its samples are read"
        )
        return TrailingDataError.at(what, todo=todo, url=self._url, offset=offset)

    def not_a_tar(self, block: bytes) -> NotATarError:
        """The first block is not a header."""
        todo = Remedy(
            in_programs("keep names that are not tar archives out of the listing with regex="),
            in_commands("name the shards alone, such as ais://bucket/train-"),
        )
        what = f"not a tar archive: {kind_of(block)}"
        return NotATarError.at(what, todo=todo, url=self._url, offset=0)

    def too_large(self, size: int, limit: int, member: str, offset: int) -> ShardError:
        """A member is larger than the caller allows."""
        return ShardError.at(
            f"a member has {size} bytes, more than max_member_bytes={limit}",
            todo="raise max_member_bytes if members may be this large",
            url=self._url,
            member=member,
            offset=offset,
        )
