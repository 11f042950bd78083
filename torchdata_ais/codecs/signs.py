"""What a file is by its first bytes, whatever its name."""

from __future__ import annotations

_SIGNS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"RIFF": "wav",
    b"fLaC": "flac",
    b"OggS": "ogg",
}


def ending_by_sign(data: bytes | bytearray) -> str:
    """Return the ending that files of this beginning have; "" where it is not known.

    Example:
        >>> ending_by_sign(b"GIF89a"), ending_by_sign(b"hello")
        ('gif', '')
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((ending for sign, ending in _SIGNS.items() if data.startswith(sign)), "")
