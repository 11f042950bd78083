"""Audio and video fields."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from torchdata_ais._util.versions import require
from torchdata_ais.codecs.handlers import extension, names
from torchdata_ais.errors import DecodeError

if TYPE_CHECKING:
    import torch


AUDIO_EXTENSIONS = frozenset(names("flac mp3 sox wav m4a ogg wma opus aif aiff au"))


def require_audio() -> None:
    """Raise `MissingLibraryError` if audio cannot be decoded here."""
    require("soundfile", "decoding audio")


def torch_audio(name: str, data: bytes) -> tuple[torch.Tensor, int] | None:
    """Decode an audio field to (samples, frames per second).

    The samples are a float32 tensor of shape (channels, frames) in -1..1.

    Returns None for fields with other endings than ``flac mp3 sox wav m4a ogg wma opus aif aiff au``. Formats that
    libsndfile cannot read (``m4a``, ``wma``, ``sox``) raise its error.

    Memory: the whole clip, 4 bytes a value.
    """
    if extension(name) not in AUDIO_EXTENSIONS:
        return None
    import torch

    soundfile = require("soundfile", "decoding audio")
    frames, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return torch.from_numpy(frames).T.contiguous(), int(rate)


VIDEO_EXTENSIONS = frozenset(names("mp4 m4v mkv ogv mjpeg avi mov h264 mpg mpeg webm wmv"))


def require_video() -> None:
    """Raise `MissingLibraryError` if video cannot be decoded here."""
    require("av", "decoding video")


def torch_video(name: str, data: bytes) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]] | None:
    """Decode a video field to (frames, audio, info).

    ``frames`` is a uint8 tensor (T, H, W, 3), ``audio`` a float32 tensor (channels, K) without channels if the video
    has none, ``info`` has ``video_fps`` and ``audio_fps`` where they are known. Returns None for fields with other
    endings than ``mp4 m4v mkv ogv mjpeg avi mov h264 mpg mpeg webm wmv``.

    Memory: every frame, H x W x 3 bytes each. Write a handler of your own to take a few frames of long clips.
    """
    if extension(name) not in VIDEO_EXTENSIONS:
        return None
    import torch

    frames, sound, info = _read(data)
    if not frames and not sound:
        raise DecodeError.at(f"the {len(data)} bytes have neither pictures nor sound")
    pictures = torch.stack(frames) if frames else torch.empty((0, 1, 1, 3), dtype=torch.uint8)
    return pictures, torch.cat(sound, 1) if sound else torch.empty((0, 0)), info


def _read(data: bytes) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, float]]:
    import torch

    av = require("av", "decoding video")
    frames: list[torch.Tensor] = []
    sound: list[torch.Tensor] = []
    info: dict[str, float] = {}
    with av.open(io.BytesIO(data)) as container:
        streams: list[Any] = [*container.streams.video[:1], *container.streams.audio[:1]]
        planar = None
        for frame in container.decode(streams):
            if isinstance(frame, av.VideoFrame):
                frames.append(torch.from_numpy(frame.to_ndarray(format="rgb24")))
                continue
            planar = planar or av.AudioResampler(format="fltp")
            sound.extend(torch.from_numpy(part.to_ndarray()) for part in planar.resample(frame))
        if planar is not None:
            sound.extend(torch.from_numpy(part.to_ndarray()) for part in planar.resample(None))
        for stream in streams:
            if stream.type == "video" and stream.average_rate:
                info["video_fps"] = float(stream.average_rate)
            if stream.type == "audio":
                info["audio_fps"] = int(stream.rate)
    return frames, sound, info
