"""Audio and video fields."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchdata_ais._util.versions import require
from torchdata_ais.codecs import audio_frames, containers
from torchdata_ais.codecs.containers import Measure
from torchdata_ais.codecs.handlers import extension, names
from torchdata_ais.errors import DecodeError
from torchdata_ais.tar import kind_of

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
    whole, least, most = measured(data)
    try:
        frames, rate = _decoded(soundfile, whole)
    except soundfile.LibsndfileError as error:  # its text has an address in memory
        why = str(error.error_string).rstrip(".")
        if "does not exist" in why:
            why = f"it is no sound ({kind_of(data) if data else 'there is nothing'})"
        raise DecodeError.at(f"libsndfile cannot read the {len(data)} bytes: {why}") from error
    if not least <= len(frames) <= (len(frames) if most is None else most):
        raise DecodeError.at(
            f"the file is cut, or a length in it is wrong: it says {least} frames, and {len(frames)} were decoded"
        )
    return torch.from_numpy(frames).T.contiguous(), rate


def _decoded(soundfile: Any, data: bytes) -> tuple[NDArray[np.float32], int]:
    """Return the samples, (frames, channels), and the rate."""
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        rate, how = int(file.samplerate), {"dtype": "float32", "always_2d": True}
        if file.frames * file.channels <= _PLAUSIBLE * len(data):
            return file.read(file.frames, **how), rate
        blocks = list(itertools.takewhile(len, iter(lambda: file.read(_BLOCK_FRAMES, **how), None)))
        return np.concatenate(blocks or [np.empty((0, file.channels), np.float32)]), rate


_PLAUSIBLE = 64  # values for each byte: a sound that says more is read in blocks
_BLOCK_FRAMES = 1 << 16


def measured(data: bytes) -> Measure:
    """Return the measure of a sound, by its content; of an unknown kind the bytes.

    Raises:
        DecodeError: It is cut, or its lengths contradict each other.

    Example:
        >>> import soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, [0.0] * 100, 8000, format="WAV")
        >>> measured(file.getvalue())[1:]
        (100, 100)
        >>> measured(file.getvalue()[:-1])
        Traceback (most recent call last):
        torchdata_ais.errors.DecodeError: The file is cut: its data chunk at byte 36 has 199 of 200 bytes
    """
    if data[:4] in (b"RIFF", b"RF64", b"BW64") and data[8:12] == b"WAVE":
        return containers.measure_wave(data)
    for magic, measure in _MEASURES.items():
        if data.startswith(magic):
            return measure(data)
    if data.startswith(b"OggS"):
        containers.check_ogg(data)
        return Measure(data)
    begin = audio_frames.behind_id3(data)
    if data.startswith(b"fLaC", begin):
        return audio_frames.measure_flac(data, begin)
    if begin or data[:1] in (b"\xff", b"\0"):
        return audio_frames.measure_mpeg(data, begin)
    return Measure(data)


_MEASURES: dict[bytes, Callable[[bytes], Measure]] = {
    b"riff\x2e\x91\xcf\x11": containers.measure_wave64,
    b"FORM": containers.measure_iff,
    b".snd": containers.measure_au,
    b"dns.": containers.measure_au,
    b"caff": containers.measure_caf,
    b"NIST_1A": containers.measure_nist,
}


def check_video(data: bytes) -> None:
    """Raise `DecodeError` if a video is cut.

    Seen in MP4 and QuickTime, Matroska and WebM, AVI and Ogg.
    """
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        containers.check_boxes(data)
    elif data.startswith(b"\x1a\x45\xdf\xa3"):
        containers.check_matroska(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        containers.check_avi(data)
    elif data.startswith(b"OggS"):
        containers.check_ogg(data)


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

    check_video(data)
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
