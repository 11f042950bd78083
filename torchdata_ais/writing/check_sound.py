"""Whether a sound is whole, for ``check=`` of conversions."""

from __future__ import annotations

import importlib.util
import io

from torchdata_ais.codecs.handlers import extension

_SOUNDS = frozenset(["flac", "mp3", "wav", "ogg", "opus", "aif", "aiff", "au"])
_OPEN = (0, 0xFFFFFFFF)  # what a program writes that does not know the length yet


def checked_sound(name: str, data: bytes) -> bytes | None:
    """Decode a sound field once, where soundfile is installed; a WAV file is also measured by what its header says.

    Returns None for fields that are no sound.

    Raises:
        ValueError: It is cut.
        Exception: What libsndfile says of it.

    Example:
        >>> checked_sound("wav", b"RIFF" + (100).to_bytes(4, "little") + b"WAVE")
        Traceback (most recent call last):
        ValueError: the sound is cut: its header says 108 bytes, and there are 12
    """
    if extension(name) not in _SOUNDS:
        return None
    said = int.from_bytes(data[4:8], "little")
    if data[:4] == b"RIFF" and said not in _OPEN and said + 8 > len(data):
        raise ValueError(f"the sound is cut: its header says {said + 8} bytes, and there are {len(data)}")
    if importlib.util.find_spec("soundfile"):
        import soundfile

        soundfile.read(io.BytesIO(data), dtype="float32")
    return data
