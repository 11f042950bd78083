"""Audio fields, by soundfile (extra ``[audio]``)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from torchdata_ais.codecs.handlers import extension, names
from torchdata_ais.codecs.optional import require

if TYPE_CHECKING:
    import torch

AUDIO_EXTENSIONS = frozenset(names("flac mp3 sox wav m4a ogg wma opus aif aiff au"))


def require_audio() -> None:
    """Raise `MissingLibraryError` if audio cannot be decoded here."""
    require("soundfile", "decoding audio")


def torch_audio(name: str, data: bytes) -> tuple[torch.Tensor, int] | None:
    """Decode an audio field to (float32 tensor of shape (channels, frames) in -1..1, frames per second).

    Returns None for fields with other endings than ``flac mp3 sox wav m4a ogg wma opus aif aiff au``. What
    libsndfile cannot read (``m4a``, ``wma``, ``sox``) fails as such.

    Memory: the whole clip, 4 bytes a value.
    """
    if extension(name) not in AUDIO_EXTENSIONS:
        return None
    import torch

    soundfile = require("soundfile", "decoding audio")
    frames, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return torch.from_numpy(frames).T.contiguous(), int(rate)
