"""Audio and video, and what is said where their libraries are absent."""

from __future__ import annotations

import base64
import builtins
import io
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from soundfile_values import EVERY, FILE

from torchdata_ais.codecs import Decoder, MissingLibraryError, torch_audio, torch_video
from torchdata_ais.errors import DecodeError, UsageError

STORED = json.loads(FILE.read_text())
"""Sounds, and their values as soundfile reads them; see soundfile_values.py."""


@pytest.mark.parametrize("name", STORED)
def test_audio_is_channels_by_frames_and_the_rate(name: str) -> None:
    row, field = STORED[name], "wav" if name == "wav24" else name
    data = base64.b64decode(row["data"])
    for spec in ("audio", "torch_audio", torch_audio):
        tensor, rate = Decoder(spec)({"__key__": "a", field: data})[field]
        assert rate == row["rate"]
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert tensor.shape == (2, row["frames"])
        assert np.abs(tensor.numpy().T[::EVERY] - np.array(row["values"])).max() < 1e-3


def test_audio_that_is_none_is_a_decode_error_and_other_fields_are_left_alone() -> None:
    with pytest.raises(DecodeError, match="Field 'wav'"):
        Decoder("audio")({"__key__": "a", "wav": b"RIFF...."})
    assert torch_audio(".txt", b"x") is None
    assert Decoder("audio")({"jpg": b"x"}) == {"jpg": b"x"}


def clip(frames: int = 6) -> bytes:
    av = pytest.importorskip("av")
    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as container:
        video = container.add_stream("ffv1", rate=Fraction(12))
        video.width, video.height, video.pix_fmt = 32, 24, "bgr0"
        audio = container.add_stream("pcm_s16le", rate=8000)
        audio.layout = "mono"
        for i in range(frames):
            pixels = np.full((24, 32, 3), i * 20, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        sound = av.AudioFrame.from_ndarray(np.full((1, 4000), 8192, np.int16), format="s16", layout="mono")
        sound.sample_rate = 8000
        container.mux(audio.encode(sound))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
    return stream.getvalue()


@pytest.mark.ci
def test_video_is_frames_audio_and_rates() -> None:
    data = clip()
    for spec in ("video", "torch_video", torch_video):
        frames, audio, info = Decoder(spec)({"__key__": "a", "avi": data})["avi"]
        assert (frames.dtype, tuple(frames.shape)) == (torch.uint8, (6, 24, 32, 3))
        assert frames[:, 0, 0, 0].tolist() == [0, 20, 40, 60, 80, 100]
        assert (audio.dtype, tuple(audio.shape)) == (torch.float32, (1, 4000))
        assert torch.allclose(audio, torch.tensor(0.25))
        assert info == {"video_fps": 12.0, "audio_fps": 8000}


@pytest.mark.ci
def test_video_that_is_none_is_a_decode_error() -> None:
    pytest.importorskip("av")
    with pytest.raises(DecodeError, match="Field 'mp4'"):
        Decoder("video")({"__key__": "a", "mp4": b"no video at all"})
    assert torch_video(".jpg", b"x") is None


@pytest.mark.parametrize(
    ("spec", "module"),
    [("audio", "soundfile"), (torch_audio, "soundfile"), ("video", "av"), (torch_video, "av")],
)
def test_an_absent_library_is_reported_when_the_pipe_is_built(
    spec: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(MissingLibraryError, match=rf'pip install "{module}"') as caught:
        Decoder(spec)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, UsageError)
