"""Draws the contact sheets of the guides: drawn pets with their classes and masks, and random crops of one of them.

``python docs/pets_figure.py FOLDER`` writes ``pets.jpg`` and ``crops.jpg``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from torchdata_ais import AISSourceLister, ais_loader, contact_sheet
from torchdata_ais.examples.pets import CLASSES, make_shards

COLUMNS, SIZE = 4, 120  # labels are readable on a phone


def pets(shard: Path) -> Image.Image:
    """Return eight pets with their classes and masks."""
    samples = AISSourceLister(str(shard)).load_tar().group_samples().decode("pil")
    return contact_sheet(list(samples), columns=COLUMNS, size=SIZE, classes=CLASSES)


def crops(shard: Path) -> Image.Image:
    """Return the crops that one pet gets in eight epochs."""
    samples = AISSourceLister(str(shard)).load_tar().group_samples()
    pipe = samples.decode("torchrgb8", random_resized_crop=112, flip=0.5, only="image.jpg cls")
    with ais_loader(pipe, seed=0) as loader:
        found = [next(iter(loader)) for _ in loader.epochs(8)]
    return contact_sheet(found, columns=COLUMNS, size=SIZE, classes=CLASSES)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (stored := Path(folder, "pets.tar")).write_bytes(next(make_shards([8])))
        for name, sheet in (("pets", pets(stored)), ("crops", crops(stored))):
            sheet.save(Path(sys.argv[1], f"{name}.jpg"), quality=88)
