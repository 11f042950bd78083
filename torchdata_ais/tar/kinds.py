"""What kind of file some bytes begin: for messages, which must not quote what a file says."""

from __future__ import annotations

_KINDS = {
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"\x04\x22\x4d\x18": "an LZ4 file",
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
    r"""Return what kind of file begins with `block`, in words that quote nothing of it but four bytes at most.

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
