"""Drawn pets with captions, and drawn shards for training."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from torchdata_ais import ShardWriter
from torchdata_ais.examples.pets import CLASSES, make_pets

COLOURS = {
    "red": (200, 90, 90),
    "green": (90, 200, 90),
    "blue": (90, 90, 200),
    "yellow": (210, 210, 90),
    "pink": (210, 90, 210),
    "turquoise": (90, 210, 210),
    "dark": (90, 90, 90),
    "pale": (210, 210, 210),
}
"""Names of colours, with their values; a caption has the nearest one."""


def make_captioned_pets(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield samples ``{"__key__", "jpg", "txt"}``.

    The text has the animal, its colour and its position.

    Example:
        >>> [sample["txt"] for sample in make_captioned_pets(2)]
        ['a pale dog in the middle', 'a red mouse in the middle']
    """
    for pet in make_pets(count, seed):
        yield {"__key__": pet["__key__"], "jpg": pet["image.jpg"], "txt": _caption(pet)}


def _caption(pet: dict[str, Any]) -> str:
    """Return the caption of a sample; the trimap has the animal's pixels."""
    animal = np.asarray(Image.open(io.BytesIO(pet["trimap.png"])))[::4, ::4] == 1
    pixels = np.asarray(Image.open(io.BytesIO(pet["image.jpg"])))[::4, ::4][animal]
    distances = {
        name: float(((np.median(pixels, 0) - np.array(rgb)) ** 2).sum()) for name, rgb in COLOURS.items()
    }
    colour = min(distances, key=distances.__getitem__)
    centre = animal.nonzero()[1].mean() / animal.shape[1]
    place = "on the left" if centre < 0.4 else "on the right" if centre > 0.6 else "in the middle"
    return f"a {colour} {CLASSES[int(pet['cls'])]} {place}"


def named_or_drawn(
    arguments: argparse.Namespace, folder: Path, make: Callable[[int, int], Iterable[dict[str, Any]]]
) -> tuple[Any, Any]:
    """Return the shards to train and to evaluate on.

    The arguments name them, or they are drawn.

    Args:
        arguments: With ``source``, ``held_out`` and ``samples``; for evaluation a fifth as many are drawn.
        folder: Folder for drawn ones.
        make: ``make(count, seed)`` draws samples.
    """
    if arguments.source:
        return arguments.source, arguments.held_out or arguments.source
    counts = {"train": arguments.samples, "valid": max(1, arguments.samples // 5)}
    for seed, (name, count) in enumerate(counts.items()):
        with ShardWriter(f"{folder}/{name}-%03d.tar", maxcount=50) as writer:
            for sample in make(count, seed):
                writer.write(sample)
    return f"{folder}/train-*.tar", f"{folder}/valid-*.tar"
