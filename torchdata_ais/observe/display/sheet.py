"""`contact_sheet`: tiles with labels in one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import UsageError
from torchdata_ais.observe.display.rows import find, rows_of, text_of, tinted, to_mask, to_picture

_GAP = 6
_STRIP = 18  # height of the line under a tile
_FONT_SIZE = 12
_COLUMNS = 8
_INK = (40, 40, 40)
_FRAME = (225, 225, 225)


class _Tile(NamedTuple):
    picture: Image.Image
    lines: list[str]


@checked
def contact_sheet(
    samples_or_batch: object,
    *,
    objects: int = 64,
    columns: int | None = None,
    size: int = 160,
    image: str | int | None = None,
    label: str | int | bool | None = None,
    mask: str | int | bool | None = None,
    classes: Sequence[str] | Mapping[Any, object] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    opacity: float = 0.45,
) -> Image.Image:
    """Return a picture of samples in a grid, each with its label and mask.

    The label is below its image, the mask over it.

    Args:
        samples_or_batch: See above. Nothing of it is changed.
        objects: The most tiles.
        columns: Tiles in a row; default at most 8.
        size: Width and height in which each image is shown, in pixels; its aspect stays.
        image: Field name, or position in the tuple, of the image; default the first that is one.
        label: The same for the text; default ``cls`` with a caption below it, one of them, or else the key. False for
            none.
        mask: The same for the mask; default a second image of the same size that is named ``mask``, ``trimap`` or
            ``seg``, or has few different values. Values above 0 are tinted. False for none.
        classes: Names of the classes by number, or their numbers by name, as torchvision has them.
        mean: The number subtracted from each channel to normalise it (of 0 to 1); it is undone.
        std: The divisor after that.
        opacity: Of the mask, 0 to 1.

    Order:
        That of the samples, row by row.

    Memory:
        The picture: about ``3 * objects * (size + 6) * (size + 24)`` bytes.

    Raises:
        UsageError: Nothing to show, no image in a sample, or a field that is not there.

    Example:
        >>> import numpy as np
        >>> sample = {"__key__": "a", "jpg": np.zeros((20, 40, 3), np.uint8), "cls": 1}
        >>> contact_sheet([sample] * 3, classes=["cat", "dog"]).size
        (504, 190)
    """
    if objects < 1 or size < 8 or (columns is not None and columns < 1):
        raise UsageError.at(f"objects={objects}, size={size}, columns={columns} leave nothing to show")
    rows = rows_of(samples_or_batch, objects)
    if not rows:
        raise UsageError.at("there is nothing to show: the batch is empty")
    tiles = []
    for row in rows:
        found = find(row, image, label, mask)
        picture = to_picture(found.image, mean, std)
        picture.thumbnail((size, size))
        scale = size / max(picture.size)
        if scale > 1:  # small images grow, their pixels stay visible
            larger = tuple(max(1, round(side * scale)) for side in picture.size)
            picture = picture.resize((larger[0], larger[1]), Image.Resampling.NEAREST)
        if found.mask is not None:
            picture = tinted(picture, to_mask(found.mask), opacity)
        lines = [text_of(found.label, classes), text_of(found.caption, None)]
        tiles.append(_Tile(picture, [line for line in lines if line]))
    return _drawn(tiles, columns or min(len(tiles), _COLUMNS), size)


def _drawn(tiles: Sequence[_Tile], columns: int, size: int) -> Image.Image:
    strip = _STRIP * max(len(tile.lines) for tile in tiles)
    rows = math.ceil(len(tiles) / columns)
    sheet = Image.new("RGB", (columns * (size + _GAP) + _GAP, rows * (size + strip + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for index, tile in enumerate(tiles):
        left = _GAP + index % columns * (size + _GAP)
        top = _GAP + index // columns * (size + strip + _GAP)
        width, height = tile.picture.size
        draw.rectangle((left, top, left + size - 1, top + size - 1), outline=_FRAME)
        sheet.paste(tile.picture, (left + (size - width) // 2, top + (size - height) // 2))
        for number, line in enumerate(tile.lines):
            text = _fitted(draw, line, size)
            place = left + (size - draw.textlength(text, _font())) / 2, top + size + 2 + number * _STRIP
            draw.text(place, text, _INK, _font())
    return sheet


def _fitted(draw: ImageDraw.ImageDraw, text: str, width: int) -> str:
    """Return the text, shortened in the middle if it is too wide."""
    if isinstance(_font(), ImageFont.ImageFont):  # the small built-in font knows Latin letters only
        text = text.encode("latin-1", "replace").decode("latin-1")
    text = text if len(text) <= width else f"{text[: width // 2]}..{text[-(width // 2) :]}"
    keep = len(text)
    shown = text
    while keep > 1 and draw.textlength(shown, _font()) > width:
        keep -= 1
        shown = text[: keep - keep // 3] + ".." + text[len(text) - keep // 3 :]
    return shown


@lru_cache(1)
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    try:
        return ImageFont.load_default(size=_FONT_SIZE)
    except ImportError:  # a Pillow without FreeType
        return ImageFont.load_default()
