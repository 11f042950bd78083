"""A data set of drawn pets, in the shape of Oxford-IIIT Pet.

It needs no download and no license. Each sample is a 500x375 photo-like JPEG, its trimap (1 animal, 2 background, 3
outline, exact to the pixel, since both are drawn from the same shapes) and the class. The same seed gives the same
samples.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageDraw

from torchdata_ais.testing import shard_bytes

SIZE = (500, 375)
"""Width and height of every image, in pixels."""

Point = tuple[float, float]
Shape = Sequence[Point]


def make_pet(index: int, seed: int = 0) -> dict[str, Any]:
    """Return one sample of the data set `seed`.

    Args:
        index: Which one. Each depends on (seed, index) alone, so that they can be drawn in any order.
        seed: Which data set.

    Returns:
        ``{"__key__": "sample_000007", "cls": b"3", "image.jpg": bytes, "trimap.png": bytes}``.

    Example:
        >>> sample = make_pet(7)
        >>> sample["__key__"], sample["image.jpg"][:2].hex(), sorted(sample)
        ('sample_000007', 'ffd8', ['__key__', 'cls', 'image.jpg', 'trimap.png'])
    """
    rng = random.Random(f"pets/{seed}/{index}")
    label = rng.randrange(len(CLASSES))
    image = _background(rng)
    trimap = Image.new("L", SIZE, 2)
    _draw(image, trimap, ANIMALS[CLASSES[label]], rng)
    return {
        "__key__": f"sample_{index:06d}",
        "cls": str(label).encode(),
        "image.jpg": _encoded(image, "JPEG", quality=85),
        "trimap.png": _encoded(trimap, "PNG", compress_level=1),
    }


def make_pets(count: int, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield samples ``start ... start + count - 1`` of the data set `seed`.

    See `make_pet`.
    """
    for index in range(start, start + count):
        yield make_pet(index, seed)


def uneven_sizes(total: int, shards: int, seed: int = 0) -> list[int]:
    """Split `total` samples over `shards` shards of very different sizes.

    Each has at least one.

    Example:
        >>> uneven_sizes(100, 4)
        [8, 24, 30, 38]
    """
    rng = random.Random(f"sizes/{seed}")
    weights = [math.exp(rng.gauss(0.0, 0.7)) for _ in range(shards)]
    spare = total - shards
    sizes = [1 + int(spare * weight / sum(weights)) for weight in weights]
    sizes[-1] += total - sum(sizes)
    return sizes


def make_shards(sizes: Iterable[int], seed: int = 0, start: int = 0) -> Iterator[bytes]:
    """Yield one tar shard of so many samples for each of `sizes`.

    Keys run on from `start`.

    Memory:
        One shard.
    """
    for size in sizes:
        yield shard_bytes(
            (f"{sample['__key__']}.{field}", value)
            for sample in make_pets(size, seed, start)
            for field, value in sample.items()
            if field != "__key__"
        )
        start += size


def _encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _background(rng: random.Random) -> Image.Image:
    """A blurred mix of colours: a few random pixels, enlarged."""
    pixels = bytes(110 + value // 2 for value in rng.randbytes(60))
    return Image.frombytes("RGB", (5, 4), pixels).resize(SIZE, Image.Resampling.BILINEAR)


# -- animals, drawn in a square from -1 to 1, y downwards


class Animal(NamedTuple):
    """Parts of an animal from back to front, and marks (eyes, a nose) on top."""

    body: Sequence[Shape]
    marks: Sequence[Shape]


def _ellipse(x: float, y: float, width: float, height: float, turn: float = 0.0) -> Shape:
    cos, sin = math.cos(turn), math.sin(turn)
    corners = [(width * math.cos(k * math.pi / 14), height * math.sin(k * math.pi / 14)) for k in range(28)]
    return [(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in corners]


def _pair(shape: Shape) -> list[Shape]:
    return [shape, [(-x, y) for x, y in shape]]


def _face(eye_x: float, eye_y: float) -> list[Shape]:
    return [*_pair(_ellipse(eye_x, eye_y, 0.09, 0.12)), _ellipse(0, eye_y + 0.35, 0.12, 0.08)]


ANIMALS: dict[str, Animal] = {
    "cat": Animal(
        [*_pair([(0.1, -0.45), (0.68, -1.0), (0.74, -0.1)]), _ellipse(0, 0.12, 0.8, 0.7)], _face(0.32, 0.0)
    ),
    "dog": Animal(
        [
            _ellipse(0, 0, 0.6, 0.8),
            *_pair(_ellipse(0.62, 0.05, 0.2, 0.6, -0.2)),
            _ellipse(0, 0.4, 0.36, 0.34),
        ],
        _face(0.24, -0.15),
    ),
    "rabbit": Animal(
        [*_pair(_ellipse(0.28, -0.45, 0.14, 0.55, 0.15)), _ellipse(0, 0.4, 0.55, 0.55)], _face(0.22, 0.3)
    ),
    "mouse": Animal(
        [*_pair(_ellipse(0.58, -0.35, 0.42, 0.42)), _ellipse(0, 0.25, 0.52, 0.62)], _face(0.2, 0.2)
    ),
    "fish": Animal(
        [[(0.4, 0), (1.0, -0.55), (1.0, 0.55)], _ellipse(-0.2, 0, 0.8, 0.45)],
        [_ellipse(-0.65, -0.1, 0.1, 0.1)],
    ),
    "snail": Animal(
        [_ellipse(-0.78, 0.2, 0.15, 0.45), _ellipse(0, 0.55, 1.0, 0.18), _ellipse(0.2, 0, 0.58, 0.58)],
        [_ellipse(-0.78, 0.0, 0.07, 0.09), _ellipse(0.2, 0, 0.14, 0.14)],
    ),
}

CLASSES = tuple(ANIMALS)
"""Names of the numbers in ``cls``."""


def _draw(image: Image.Image, trimap: Image.Image, animal: Animal, rng: random.Random) -> None:
    """Draw the animal and its trimap at random place, size, colour and angle."""
    scale = rng.uniform(85, 160)
    x0, y0 = (rng.uniform(scale, side - scale) for side in SIZE)
    turn = rng.uniform(-0.35, 0.35)
    cos, sin = math.cos(turn) * scale, math.sin(turn) * scale

    def place(shape: Shape) -> Shape:
        return [(x0 + x * cos - y * sin, y0 + x * sin + y * cos) for x, y in shape]

    picture, mask = ImageDraw.Draw(image), ImageDraw.Draw(trimap)
    fur, ink = tuple(rng.randrange(70, 250) for _ in range(3)), (25, 20, 20)
    for shape in animal.body:
        picture.polygon(place(shape), fill=fur, outline=ink, width=5)
        mask.polygon(place(shape), fill=1, outline=3, width=5)
    for shape in animal.marks:
        picture.polygon(place(shape), fill=ink)
