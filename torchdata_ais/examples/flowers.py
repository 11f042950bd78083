"""Drawn flowers of several kinds, of different sizes as photographs are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFilter

Colour = tuple[int, int, int]


class Flower(NamedTuple):
    """Look of a kind: its petals, their width for their length, the middle."""

    petals: int
    width: float
    colours: tuple[Colour, ...]
    middle: float
    middle_colour: Colour


KINDS = {
    "daisy": Flower(16, 0.16, ((250, 250, 245), (240, 235, 250)), 0.28, (245, 195, 40)),
    "sunflower": Flower(22, 0.2, ((250, 200, 20), (245, 175, 10)), 0.45, (85, 50, 20)),
    "poppy": Flower(4, 0.8, ((215, 40, 30), (230, 80, 40)), 0.2, (30, 30, 35)),
    "cornflower": Flower(9, 0.3, ((60, 90, 215), (90, 70, 200)), 0.22, (120, 60, 170)),
    "forget-me-not": Flower(5, 0.62, ((120, 180, 240), (150, 170, 245)), 0.22, (250, 225, 80)),
    "cosmos": Flower(8, 0.45, ((230, 120, 190), (200, 70, 150)), 0.2, (240, 180, 40)),
}

FLOWERS = tuple(KINDS)
"""Names of the labels."""


def make_flowers(count: int, seed: int = 0) -> Iterator[tuple[Image.Image, int]]:
    """Yield pictures with the number of their kind.

    The same seed gives the same pictures.

    Example:
        >>> [(picture.size, FLOWERS[label]) for picture, label in make_flowers(2)]
        [((320, 213), 'daisy'), ((240, 320), 'daisy')]
    """
    for index in range(count):
        rng = random.Random(f"flowers/{seed}/{index}")
        label = rng.randrange(len(FLOWERS))
        size = rng.choice([(320, 240), (240, 320), (320, 213), (280, 280)])
        yield _drawn(KINDS[FLOWERS[label]], size, rng), label


def _drawn(kind: Flower, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """Draw one flower in front of some blurred green."""
    picture = Image.new("RGB", size, (rng.randrange(40, 90), rng.randrange(110, 170), rng.randrange(40, 80)))
    draw = ImageDraw.Draw(picture)
    for _ in range(60):
        x, y, shade = rng.randrange(size[0]), rng.randrange(size[1]), rng.randrange(-40, 40)
        draw.line((x, y, x + rng.randrange(-30, 30), y - 50), (60 + shade, 140 + shade, 60 + shade), 6)
    picture = picture.filter(ImageFilter.GaussianBlur(4))
    draw = ImageDraw.Draw(picture)
    length = min(size) * rng.uniform(0.3, 0.44)
    x0, y0 = size[0] * rng.uniform(0.4, 0.6), size[1] * rng.uniform(0.4, 0.6)
    draw.line((x0, y0, x0 + rng.uniform(-30, 30), size[1]), (50, 110, 45), 9)
    turn = rng.uniform(0, 1)
    for number in range(kind.petals):
        angle = 2 * math.pi * (number + turn) / kind.petals
        draw.polygon(_petal(x0, y0, length, kind.width, angle), rng.choice(kind.colours), (90, 80, 70))
    radius = length * kind.middle
    draw.ellipse((x0 - radius, y0 - radius, x0 + radius, y0 + radius), kind.middle_colour)
    return picture


def _petal(x0: float, y0: float, length: float, width: float, angle: float) -> list[tuple[float, float]]:
    cos, sin = math.cos(angle), math.sin(angle)
    corners = []
    for step in range(25):
        along = (1 - math.cos(2 * math.pi * step / 24)) / 2 * length
        across = math.sin(2 * math.pi * step / 24) * width * length / 2
        corners.append((x0 + along * cos - across * sin, y0 + along * sin + across * cos))
    return corners
