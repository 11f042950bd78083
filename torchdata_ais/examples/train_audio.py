"""Train a classifier of sounds by their spectra. Needs soundfile.

::

    python -m torchdata_ais.examples.train_audio --samples 400 --epochs 4
    python -m torchdata_ais.examples.train_audio --source ais://sounds/train- --held-out ais://sounds/val- --classes 50

Clips are ``flac``, ``wav``, ``mp3`` or ``ogg``, classes ``cls``. Workers decode and cut clips to one length, at a place
that depends on seed, epoch and sample alone; spectra are made of whole batches, on the GPU where there is one.
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchdata_ais import ais_loader
from torchdata_ais._util.versions import require
from torchdata_ais.examples.captions import named_or_drawn
from torchdata_ais.examples.train import samples_of

RATE = 8000
"""Frames a second of the drawn sounds."""

SOUNDS = ("sine", "square", "saw", "noise")
"""Names of the numbers in ``cls``."""


def make_tones(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield samples ``{"__key__", "flac", "cls"}`` of tones.

    A tone has some pitch and shape, and is 0.5 to 1 s long.

    Raises:
        MissingLibraryError: soundfile is not installed.
    """
    soundfile = require("soundfile", "writing audio")
    for index in range(count):
        rng = random.Random(f"tones/{seed}/{index}")
        shape = rng.randrange(len(SOUNDS))
        phase = np.arange(rng.randrange(RATE // 2, RATE)) * rng.uniform(100, 900) / RATE
        out = io.BytesIO()
        soundfile.write(out, rng.uniform(0.1, 0.8) * _wave(SOUNDS[shape], phase), RATE, format="FLAC")
        yield {"__key__": f"tone_{index:06d}", "flac": out.getvalue(), "cls": str(shape).encode()}


def _wave(shape: str, phase: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values between -1 and 1 at these phases; 1 is a whole wave."""
    if shape == "noise":
        return np.random.default_rng(len(phase)).uniform(-1, 1, len(phase))
    if shape == "saw":
        return 2 * (phase % 1) - 1
    sine: npt.NDArray[np.float64] = np.sin(2 * np.pi * phase)
    return sine if shape == "sine" else np.sign(sine)


def crop(sample: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Put half a second of the clip, from anywhere in it, under ``wave``.

    Shorter clips are filled with silence.
    """
    wave, rate = next(sample[field] for field in ("flac", "wav", "mp3", "ogg") if field in sample)
    frames = rate // 2
    wave = nn.functional.pad(wave.mean(0), (0, max(0, frames - wave.shape[1])))
    begin = rng.randrange(len(wave) - frames + 1)
    return sample | {"wave": wave[begin : begin + frames].clone()}


def make_pipe(source: object, batch: int, *, shuffle: bool) -> Any:
    """Return the chain to batches of (waves, classes)."""
    clips = samples_of(source, shuffle=shuffle).decode("audio").map_sample(crop, rng=True)
    return clips.to_tuple("wave", "cls").batched(batch)


class SpectrumNet(nn.Module):
    """Logarithms of spectra, three convolutions over time, the mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.layers = nn.Sequential(
            *(nn.LazyConv1d(64, 3, 2), nn.LazyBatchNorm1d(), nn.ReLU()),
            *(nn.LazyConv1d(64, 3, 2), nn.LazyBatchNorm1d(), nn.ReLU()),
            *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.LazyLinear(classes)),
        )

    def forward(self, waves: Tensor) -> Tensor:
        """Return the scores of the classes."""
        spectra = torch.stft(waves, 256, 64, window=self.window, return_complex=True).abs()  # type: ignore[arg-type]
        scores: Tensor = self.layers((spectra + 1e-3).log())
        return scores


def main() -> None:
    """Train and evaluate."""
    arguments = _arguments()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # the workers need the other cores
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = named_or_drawn(arguments, Path(folder), make_tones)
        model = SpectrumNet(arguments.classes).to(device)
        model(torch.zeros(2, RATE // 2, device=device))  # the layers take their sizes from it
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        with ais_loader(
            make_pipe(train, arguments.batch, shuffle=True), num_workers=arguments.workers
        ) as loader:
            for epoch in range(arguments.epochs):
                for waves, labels in loader:
                    loss = nn.functional.cross_entropy(model(waves.to(device)), labels.to(device))
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)  # noqa: T201
        model.eval()
        right = clips = 0
        with torch.no_grad(), ais_loader(make_pipe(held_out, arguments.batch, shuffle=False)) as loader:
            for waves, labels in loader:
                right += int((model(waves.to(device)).argmax(1).cpu() == labels).sum())
                clips += len(labels)
    print(f"{right} of {clips} held-out clips are right")  # noqa: T201


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="shards to train on; default: drawn sounds")
    parser.add_argument("--held-out", help="shards to evaluate on")
    parser.add_argument("--classes", type=int, default=len(SOUNDS))
    parser.add_argument("--samples", type=int, default=400, help="drawn sounds, if no source is given")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    return parser.parse_args()


if __name__ == "__main__":
    main()
