"""Sounds, videos and pictures that are cut at any byte, or have wrong lengths: an error, or the whole value."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from torchdata_ais import convert
from torchdata_ais.codecs import Decoder, torch_audio, torch_video
from torchdata_ais.codecs.media import check_video, measured
from torchdata_ais.errors import DecodeError
from torchdata_ais.testing import shard_bytes

# soundfile says so of seeks before the beginning that libsndfile tries in damaged files.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SOUNDS = {
    "wav": ("WAV", "PCM_16"),
    "wav of 24 bits": ("WAV", "PCM_24"),
    "wav of floats": ("WAV", "FLOAT"),
    "wav, ADPCM": ("WAV", "IMA_ADPCM"),
    "wav, GSM": ("WAV", "GSM610"),
    "wavex": ("WAVEX", "PCM_16"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "aifc": ("AIFF", "FLOAT"),
    "aifc, ADPCM": ("AIFF", "IMA_ADPCM"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "caf, ALAC": ("CAF", "ALAC_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "sph": ("NIST", "PCM_16"),
}


@functools.cache
def sound(kind: str, frames: int = 300) -> bytes:
    form, subtype = SOUNDS[kind]
    channels = 1 if "GSM" in kind or kind.endswith("c, ADPCM") else 2
    values = np.random.RandomState(0).randn(frames, channels) * 0.1
    file = io.BytesIO()
    soundfile.write(file, values, 48000 if kind == "opus" else 16000, format=form, subtype=subtype)
    return file.getvalue()


def decoded(data: bytes) -> torch.Tensor:
    found = torch_audio(".wav", data)
    assert found is not None
    return found[0]


def check(decode: Callable[[bytes], torch.Tensor], data: bytes, whole: torch.Tensor) -> str:
    """Return ``"error"`` or ``"whole"``; anything else fails."""
    try:
        found = decode(data)
    except DecodeError:
        return "error"
    assert found.shape == whole.shape
    assert torch.equal(found, whole)
    return "whole"


@pytest.mark.quick(8)
@pytest.mark.parametrize("kind", SOUNDS)
def test_a_sound_cut_at_any_byte_is_an_error_or_whole(kind: str) -> None:
    data = sound(kind)
    whole = decoded(data)
    theirs = soundfile.SoundFile(io.BytesIO(data))
    assert torch.equal(whole, torch.from_numpy(theirs.read(theirs.frames, "float32", always_2d=True).T))
    outcomes = [check(decoded, data[:end], whole) for end in range(len(data))]
    assert outcomes.count("whole") <= 1  # a byte of padding


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", SOUNDS)
def test_a_longer_sound_cut_at_some_bytes_is_an_error_or_whole(kind: str) -> None:
    data = sound(kind, 20_000)
    whole = decoded(data)
    for end in range(1, len(data), len(data) // 61):
        assert check(decoded, data[:end], whole) == "error"
        with pytest.raises(DecodeError, match=r"Field 'wav' of sample 'a'.*byte"):
            Decoder("audio")({"__key__": "a", "wav": data[:end]})


LENGTHS = {
    "wav": [(40, "<I"), (4, "<I")],
    "wavex": [(64, "<I")],
    "rf64": [(28, "<Q")],
    "w64": [(96, "<Q")],
    "aiff": [(42, ">I"), (22, ">I")],
    "au": [(8, ">I")],
    "caf": [(56, ">Q")],
    "sph": [],
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_a_changed_length_is_an_error_or_the_whole_sound(kind: str) -> None:
    data = sound(kind)
    whole = decoded(data)
    for at, form in LENGTHS[kind]:
        (size,) = struct.unpack_from(form, data, at)
        for other in (
            0,
            1,
            size - 1,
            size - 4,
            size - 40,
            size + 1,
            size + 4,
            2 * size,
            1 << 20,
            2**31 - 1,
            2**32 - 1,
        ):
            changed = bytearray(data)
            struct.pack_into(form, changed, at, other % (1 << 8 * struct.calcsize(form)))
            check(decoded, bytes(changed), whole)


@pytest.mark.parametrize("kind", ["flac", "mp3"])
def test_a_wrong_number_of_frames_is_an_error_or_the_whole_sound(kind: str) -> None:
    data = sound(kind, 20_000)
    whole = decoded(data)
    at = 22 if kind == "flac" else data.index(b"Xing") + 8
    (size,) = struct.unpack_from(">I", data, at)
    for other in (1, size - 1, size - 2, size // 2, size + 2, size + 100, 2**31):
        changed = bytearray(data)
        struct.pack_into(">I", changed, at, other)
        check(decoded, bytes(changed), whole)
    struct.pack_into(">I", changed, at, size + 1)  # of MP3 some encoders count their own frame
    if kind == "mp3":
        assert decoded(bytes(changed)).shape[1] >= whole.shape[1]
    else:
        assert check(decoded, bytes(changed), whole) == "error"


@pytest.mark.parametrize(
    ("riff", "size"),
    [
        (0, 0),
        (36, 0),
        (None, 0),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x7FFFF024, 0x7FFFF000),
        (None, 0x7FFFFFFF),
    ],
)
def test_a_wav_that_was_written_into_a_pipe_is_read_to_its_end(riff: int | None, size: int) -> None:
    data = bytearray(sound("wav"))
    if riff is not None:
        struct.pack_into("<I", data, 4, riff)
    struct.pack_into("<I", data, 40, size)
    assert torch.equal(decoded(bytes(data)), decoded(sound("wav")))
    silent = bytes(data[:44]) + bytes(400)
    assert decoded(silent).shape == (2, 100)
    for rest in (2, 3):
        with pytest.raises(DecodeError, match="cut: its last frame"):
            decoded(bytes(data[:-rest]))


def test_an_empty_wav_is_an_empty_sound() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros((0, 2)), 16000, format="WAV")
    assert decoded(file.getvalue()).shape == (2, 0)
    listed = file.getvalue() + b"LIST\4\0\0\0INFO"
    assert decoded(listed).shape == (2, 0)


def test_a_wav_with_chunks_behind_the_sound_is_read() -> None:
    data = sound("wav")
    for more in (b"LIST\4\0\0\0INFO", b"id3 \3\0\0\0abc\0", b"odd \3\0\0\0abcnext\0\0\0\0"):
        longer = bytearray(data + more)
        struct.pack_into("<I", longer, 4, len(longer) - 8)
        assert torch.equal(decoded(bytes(longer)), decoded(data))
    assert torch.equal(decoded(data + b"bytes behind the end of RIFF"), decoded(data))
    filled = bytearray(data + bytes(848))
    struct.pack_into("<I", filled, 4, len(filled) - 8)
    assert torch.equal(decoded(bytes(filled)), decoded(data))


def unknown(data: bytes) -> bytes:
    """Return a FLAC file as ffmpeg writes it into a pipe: without length and MD5."""
    changed = bytearray(data)
    changed[21] &= 0xF0
    changed[22:42] = bytes(20)
    return bytes(changed)


@pytest.mark.parametrize("frames", [1, 300, 20_000])
def test_a_flac_without_a_length_is_read_to_its_end(frames: int) -> None:
    data = sound("flac", frames)
    assert torch.equal(decoded(unknown(data)), decoded(data))
    tagged = unknown(data) + b"TAG" + bytes(125)
    assert torch.equal(decoded(tagged), decoded(data))
    step = max(1, len(data) // 61)
    for end in [*range(42, len(data), step), len(data) - 1]:
        with pytest.raises(DecodeError):
            decoded(unknown(data)[:end])


def mux_sound(container: Any, stream: Any, values: np.ndarray) -> None:
    """Encode 16-bit mono samples into a stream of a container."""
    av = pytest.importorskip("av")
    frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
    frame.sample_rate = stream.rate
    resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=stream.rate)
    for part in resampler.resample(frame):
        container.mux(stream.encode(part))
    container.mux(stream.encode(None))


def mp3(**options: str) -> bytes:
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="mp3", options=options) as container:
        stream = container.add_stream("libmp3lame", rate=44100)
        stream.layout = "mono"
        values = (np.random.RandomState(0).randn(1, 20_000) * 3000).astype(np.int16)
        mux_sound(container, stream, values)
    return file.getvalue()


def test_an_mp3_without_the_number_of_its_frames_must_end_with_a_whole_one() -> None:
    data = mp3(write_xing="0", id3v2_version="0")
    whole = decoded(data)
    assert torch.equal(whole[0], torch.from_numpy(soundfile.read(io.BytesIO(data), dtype="float32")[0]))
    shown = [end for end in range(len(data) - 1200, len(data)) if check_frames(data[:end], whole)]
    assert len(shown) <= 1200 // 200  # between two frames a cut cannot be seen


def check_frames(data: bytes, whole: torch.Tensor) -> bool:
    """Return whether a cut MP3 is taken for a shorter one: whole frames are missing then."""
    try:
        found = decoded(data)
    except DecodeError:
        return False
    assert (whole.shape[1] - found.shape[1]) % 1152 == 0
    return True


def test_a_variable_mp3_without_the_number_of_its_frames_is_read_to_its_end() -> None:
    data = sound("mp3", 20_000)
    frame = 0x48 if data[:4] == b"" else data.index(b"\xff", 4)
    while data[frame : frame + 2] != data[:2] or measured(data[frame:]).least < 15_000:
        frame = data.index(b"\xff", frame + 1)
    found = decoded(data[frame:])
    assert found.shape[1] >= 20_000
    assert soundfile.info(io.BytesIO(data[frame:])).frames < 20_000  # what its first frame makes of the size


@pytest.mark.parametrize(
    "tail",
    [
        b"TAG" + bytes(125),
        b"APETAGEX" + struct.pack("<III", 2000, 32, 0) + bytes(12) + b"TAG" + bytes(125),
        b"LYRICSBEGINtext000009LYRICS200TAG" + bytes(125),
        bytes(700),
        b"other words",
    ],
)
def test_tags_around_an_mp3_are_no_part_of_it(tail: bytes) -> None:
    data = sound("mp3", 20_000)
    tagged = b"ID3\4\0\0\0\0\2\0" + bytes(256) + data
    assert torch.equal(decoded(tagged + tail), decoded(data))
    with pytest.raises(DecodeError):
        decoded(tagged[: len(tagged) // 2] + tail)
    with pytest.raises(DecodeError, match="ID3 tag"):
        decoded(tagged[:200])


def test_bytes_between_the_frames_of_an_mp3_are_an_error() -> None:
    data = mp3(write_xing="0", id3v2_version="0")
    with pytest.raises(DecodeError, match="no frame at byte"):
        decoded(data[:500] + data[600:])


def test_an_ogg_page_that_is_missing_is_an_error() -> None:
    data = sound("ogg", 60_000)
    pages = [at for at in range(len(data)) if data.startswith(b"OggS\0", at)]
    assert len(pages) > 4
    with pytest.raises(DecodeError, match="a page before the one"):
        decoded(data[: pages[3]] + data[pages[4] :])
    with pytest.raises(DecodeError, match="end flag"):
        decoded(data[: pages[-1]])
    assert decoded(data + data).shape[1] >= decoded(data).shape[1]


@pytest.mark.parametrize("data", [b"", b"RIFF", b"no sound at all", bytes(100), b"\xff\xfb\x90\x00" * 3])
def test_messages_of_libsndfile_have_no_address_in_memory(data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decoded(data)
    assert "0x" not in str(caught.value)
    assert "regular file" not in str(caught.value)


def test_messages_of_other_libraries_have_no_address_in_memory() -> None:
    def failing(_: str, data: bytes) -> object:
        raise ValueError(f"cannot read {io.BytesIO(data)!r}")

    with pytest.raises(DecodeError, match=r"cannot read <_io.BytesIO object>\."):
        Decoder(failing)({"__key__": "a", "bin": b"x"})


# -- videos


@functools.cache
def clip(form: str, codec: str, sound_codec: str = "", frames: int = 8, **options: str) -> bytes:
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format=form, options=options) as container:
        video = container.add_stream(codec, rate=Fraction(12))
        video.width, video.height = 32, 32
        video.pix_fmt = {"ffv1": "bgr0", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        audio = container.add_stream(sound_codec, rate=48000) if sound_codec else None
        if audio is not None:
            audio.layout = "mono"
        rng = np.random.RandomState(0)
        for _ in range(frames):
            pixels = rng.randint(0, 255, (32, 32, 3)).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=video.pix_fmt)
            container.mux(video.encode(frame))
        if audio is not None:
            values = (rng.randn(1, 4000 * frames) * 3000).astype(np.int16)
            mux_sound(container, audio, values)
        container.mux(video.encode(None))
    return file.getvalue()


VIDEOS: dict[str, tuple[str, ...]] = {
    "mp4": ("mp4", "mpeg4", "aac"),
    "mov": ("mov", "mpeg4", "pcm_s16le"),
    "mkv": ("matroska", "mpeg4", "libmp3lame"),
    "webm": ("webm", "libvpx-vp9", "libopus"),
    "avi": ("avi", "ffv1", "pcm_s16le"),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", VIDEOS)
def test_a_video_cut_at_any_byte_is_an_error(kind: str) -> None:
    data = clip(*VIDEOS[kind], frames=2)
    check_video(data)
    for end in range(12, len(data)):
        with pytest.raises(DecodeError, match=r"byte \d"):
            check_video(data[:end])
    for end in range(12):
        with pytest.raises(DecodeError, match="Field 'mp4'"):
            Decoder("video")({"__key__": "a", "mp4": data[:end]})


def test_a_live_webm_cut_inside_an_element_is_an_error() -> None:
    data = clip("webm", "libvpx-vp9", "", 8, live="1")
    check_video(data)
    shown = []
    for end in range(40, len(data)):
        try:
            check_video(data[:end])
        except DecodeError:
            continue
        shown.append(end)
    assert len(shown) < 20  # between two elements a cut cannot be seen


@pytest.mark.ci
@pytest.mark.parametrize("kind", [*VIDEOS, "h264"])
def test_a_part_of_a_video_is_that_of_the_whole(kind: str) -> None:
    data = (
        clip(*VIDEOS.get(kind, ("h264", "libx264")), frames=30)
        if kind != "h264"
        else clip("h264", "libx264", "", 30)
    )
    whole, sound_, info = torch_video(".mp4", data) or (None, None, None)
    assert whole is not None
    assert sound_ is not None
    assert info is not None
    rate = info["video_fps"]

    def part(**options: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        found: tuple[torch.Tensor, torch.Tensor, dict[str, float]] = Decoder("video", **options)(
            {"__key__": "a", "mp4": data}
        )["mp4"]
        return found

    frames, audio, _ = part(frames=5)
    assert torch.equal(frames, whole[:5])
    assert torch.equal(audio, sound_[:, : audio.shape[1]])
    frames, audio, told = part(every=7)
    assert torch.equal(frames, whole[::7])
    assert torch.equal(audio, sound_)
    assert told["video_fps"] == rate / 7
    begin, end = 6 / rate, 18 / rate
    frames, audio, _ = part(seconds=(begin, end), every=2)
    assert torch.equal(frames, whole[6:18:2])
    if sound_.numel():
        assert abs(audio.shape[1] - 12 / rate * 48000) <= 1
    assert torch.equal(part(seconds=(begin, end), every=2, frames=3)[0], whole[6:12:2])
    with pytest.raises(DecodeError, match="neither pictures nor sound between second 50 and 60"):
        part(seconds=(50, 60))


# -- pictures and arrays

PICTURES = {
    "jpg": {},
    "progressive.jpg": {"progressive": True},
    "png": {},
    "webp": {},
    "lossless.webp": {"lossless": True},
    "tif": {},
    "lzw.tif": {"compression": "tiff_lzw"},
    "gif": {},
    "bmp": {},
    "ppm": {},
    "jp2": {},
    "avif": {},
    "tga": {},
    "mpo": {},
    "qoi": {},
}
CANNOT_SHOW = {"jp2"}
"""Formats whose decoders take a cut file for a picture; docs/limits.md has them."""


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_cut_at_any_byte_is_an_error_or_whole(name: str) -> None:
    ending = name.rpartition(".")[2]
    Image.init()
    form = Image.registered_extensions().get(f".{ending}", "")
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {form}")
    values = np.random.RandomState(0).randint(0, 255, (9, 11, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, form, **PICTURES[name])
    data = file.getvalue()
    decode = Decoder("torchrgb8")

    def seen(data: bytes) -> torch.Tensor:
        found: torch.Tensor = decode({"__key__": "a", ending: data})[ending]
        return found

    whole, wrong = seen(data), 0
    for end in range(len(data)):
        try:
            found = seen(data[:end])
        except DecodeError:
            continue
        wrong += not (found.shape == whole.shape and torch.equal(found, whole))
    assert bool(wrong) == (ending in CANNOT_SHOW), wrong


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "mp4"])
def test_convert_finds_cut_sounds_and_videos(kind: str, tmp_path: Any) -> None:
    data = clip(*VIDEOS["mp4"]) if kind == "mp4" else sound(kind, 20_000)
    for name, stored in {"whole": data, "cut": data[: len(data) // 2]}.items():
        (tmp_path / f"{name}.tar").write_bytes(shard_bytes({f"a.{kind}": stored}))
    assert convert(str(tmp_path / "whole.tar"), str(tmp_path / "one-%d.tar"), check=True).samples == 1
    with pytest.raises(DecodeError, match="cut"):
        convert(str(tmp_path / "cut.tar"), str(tmp_path / "two-%d.tar"), check=True)
