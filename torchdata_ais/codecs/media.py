"""Audio and video fields."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchdata_ais._util.versions import require
from torchdata_ais.codecs import audio_frames, containers
from torchdata_ais.codecs.containers import Measure
from torchdata_ais.codecs.handlers import FIELD_KINDS, extension
from torchdata_ais.errors import DecodeError
from torchdata_ais.tar import kind_of

if TYPE_CHECKING:
    import torch


AUDIO_EXTENSIONS = frozenset(FIELD_KINDS["audio"])


def torch_audio(name: str, data: bytes) -> tuple[torch.Tensor, int] | None:
    """Decode an audio field to (samples, frames per second).

    The samples are a float32 tensor of shape (channels, frames) in -1..1.

    Returns None for fields with other endings than ``flac mp3 mp2 mp1 mpga sox wav wave bwf rf64 w64 m4a aac ogg oga
    opus wma aif aiff aifc au snd caf sph nist``. WAV and FLAC of unknown length (written into a pipe) are read to
    their end.

    Memory: the whole clip, 4 bytes a value; twice that of more than 64 values a byte.

    Raises:
        DecodeError: The sound is cut, as its container shows; or libsndfile cannot read it (``m4a``, ``aac``, ``wma``,
            ``sox``).
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
            why = f"this is not a sound ({kind_of(data) if data else 'there is nothing'})"
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
        blocks = [file.read(_BLOCK_FRAMES, **how)]
        while len(blocks[-1]):
            blocks.append(file.read(_BLOCK_FRAMES, **how))
        return np.concatenate(blocks), rate


_PLAUSIBLE = 64  # values for each byte: a sound that says more is read in blocks
_BLOCK_FRAMES = 1 << 16


def measured(data: bytes) -> Measure:
    """Return the measure of a sound, by its content.

    Of an unknown kind it is the bytes alone.

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
    begin = audio_frames.after_id3(data)
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
    """Raise `DecodeError` if a video is cut, as its container shows."""
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        containers.check_boxes(data)
    elif data.startswith(b"\x1a\x45\xdf\xa3"):
        containers.check_matroska(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        containers.check_avi(data)
    elif data.startswith(b"OggS"):
        containers.check_ogg(data)


VIDEO_EXTENSIONS = frozenset(FIELD_KINDS["video"])


def torch_video(
    name: str,
    data: bytes,
    *,
    frames: int | None = None,
    seconds: tuple[float, float] | None = None,
    every: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]] | None:
    """Decode a video field to (frames, audio, info), all of it or a part.

    ``frames`` is a uint8 tensor (T, H, W, 3), ``audio`` a float32 tensor (channels, K) without channels if the video
    has none, ``info`` has ``video_fps`` and ``audio_fps`` where they are known. Returns None for fields with other
    endings than ``mp4 m4v mkv ogv mjpeg avi mov h264 mpg mpeg webm wmv``.

    Args:
        name: The field.
        data: The file.
        frames: Most frames to take; None for all.
        seconds: Begin and end of the part, from the beginning of the file; the end is not in it.
        every: Take each n-th frame of the part: ``video_fps`` is divided by it.

    Memory: H x W x 3 bytes for each frame that is taken, at most ``frames`` or ``(end - begin) * fps / every``; and as
    many bytes again while they are put together. 4 bytes for each value of the sound of that time.

    Raises:
        DecodeError: The video is cut, as its container shows; it has neither pictures nor sound; or no frame in the
            part.
    """
    if extension(name) not in VIDEO_EXTENSIONS:
        return None
    import torch

    check_video(data)
    av = require("av", "decoding video")
    info: dict[str, float] = {}
    begin, end = seconds or (0.0, math.inf)
    taken: list[torch.Tensor] = []
    sound: list[torch.Tensor] = []
    with contextlib.ExitStack() as opened:

        def open_file() -> Any:
            return opened.enter_context(av.open(io.BytesIO(data)))

        container = open_file()
        video, audio = container.streams.video[:1], container.streams.audio[:1]
        rate = float(video[0].average_rate or 0) if video else 0.0
        if video:
            shown = _between(av, container, open_file, "video", begin, end)
            for time, frame in itertools.islice(shown, 0, None, every):
                taken.append(torch.from_numpy(frame.to_ndarray(format="rgb24")))
                if len(taken) == frames:
                    end = min(end, time + every / rate) if rate else end
                    break
        if rate:
            info["video_fps"] = rate / every
        if audio:
            info["audio_fps"] = int(audio[0].rate)
            container = open_file() if video else container  # frames of both kinds alternate in the file
            frames_of_sound = _between(av, container, open_file, "audio", begin, end)
            sound += _sound(av, frames_of_sound, int(info["audio_fps"]), begin, end)
    if not taken and not sound:
        part = "" if seconds is None else f" between second {begin:g} and {seconds[1]:g}"
        raise DecodeError.at(f"the {len(data)} bytes have neither pictures nor sound{part}")
    pictures = torch.stack(taken) if taken else torch.empty((0, 1, 1, 3), dtype=torch.uint8)
    return pictures, torch.cat(sound, 1) if sound else torch.empty((0, 0)), info


def _between(
    av: Any, container: Any, open_file: Callable[[], Any], kind: str, begin: float, end: float
) -> Iterator[tuple[float, Any]]:
    """Yield the frames that are shown in a part, with their time.

    `begin` and `end` are seconds from the beginning of the file. A frame of sound may begin before `begin`. `open_file`
    opens the file again.
    """
    frames = _timed(av, container, kind, begin if kind == "video" else 0)
    first = next(frames, None)
    if first is None or first[0] > begin > 0:  # some formats jump to a later place
        frames = _timed(av, open_file(), kind, 0)
        first = next(frames, None)
    for time, frame in itertools.chain([] if first is None else [first], frames):
        if time >= end - _ROUNDING:
            return
        if time >= begin - _ROUNDING or (
            kind == "audio" and time + frame.samples / frame.sample_rate > begin
        ):
            yield time, frame


_ROUNDING = 1e-6  # seconds


def _timed(av: Any, container: Any, kind: str, begin: float) -> Iterator[tuple[float, Any]]:
    """Yield frames with their time, from one at or before `begin` on."""
    streams = [*container.streams.video[:1], *container.streams.audio[:1]]
    starts = [float(one.start_time * one.time_base) for one in streams if one.start_time is not None]
    start = min(starts, default=0.0)
    stream = next(one for one in streams if one.type == kind)
    shown = 1 / float(stream.average_rate) if kind == "video" and stream.average_rate else 0.0
    if begin and stream.start_time is not None:
        with contextlib.suppress(av.FFmpegError):
            container.seek(int((begin + start) * 1_000_000))
    for number, frame in enumerate(container.decode(stream)):
        yield number * shown if frame.time is None else frame.time - start, frame


def _sound(
    av: Any, frames: Iterator[tuple[float, object]], rate: int, begin: float, end: float
) -> Iterator[torch.Tensor]:
    """Yield the samples of the frames, those of the part alone."""
    import torch

    planar = av.AudioResampler(format="fltp")
    skip: int | None = None
    left = math.inf
    for time, frame in itertools.chain(frames, [(0.0, None)]):
        if skip is None and frame is not None:
            skip = max(round((begin - time) * rate), 0)
            left = math.inf if end == math.inf else round((end - max(begin, time)) * rate)
        for part in [] if skip is None else planar.resample(frame):
            values = torch.from_numpy(part.to_ndarray())[:, skip:]
            skip = max((skip or 0) - part.samples, 0)
            if values.shape[1] > left:
                values = values[:, : int(left)]
            left -= values.shape[1]
            yield values


def checked_media(name: str, data: bytes) -> bytes | None:
    """Check that a sound or a video is complete; return it.

    A sound is also decoded once, where soundfile is installed. Returns None for other fields.

    Raises:
        DecodeError: It is cut, or cannot be decoded.

    Example:
        >>> checked_media("wav", b"RIFF" + (100).to_bytes(4, "little") + b"WAVE")
        Traceback (most recent call last):
        torchdata_ais.errors.DecodeError: The file is cut, or a length in it is wrong: there is no data chunk before its end at byte 12
    """  # noqa: E501 - the output of a doctest cannot be folded
    ending = extension(name)
    if ending in VIDEO_EXTENSIONS or ending == "m4a":  # the container of MP4
        check_video(data)
        return data
    if ending not in AUDIO_EXTENSIONS or ending in _UNREAD:
        return None
    if importlib.util.find_spec("soundfile"):
        torch_audio(name, data)
    else:
        measured(data)
    return data


_UNREAD = frozenset(["m4a", "aac", "wma", "sox"])  # by libsndfile
