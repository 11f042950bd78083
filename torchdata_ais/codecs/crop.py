"""Crops: the part and size of a picture, chosen before decoding.

The arithmetic is that of torchvision's transforms of the same names, so that equal random numbers give equal parts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from torchdata_ais._util.arguments import checked_options
from torchdata_ais.codecs.resize import Size, dct_scale, target_size
from torchdata_ais.errors import UsageError


class Part(NamedTuple):
    """A rectangle in a picture, in pixels; a `CenterCrop` may exceed it."""

    top: int
    left: int
    height: int
    width: int


class Frame(NamedTuple):
    """Transformation of a picture to an image.

    Attributes:
        cut: The part that is cut out of it; None for all.
        size: (height, width) after resizing this part.
        window: The returned part of the resized one; None for all. Beyond its edges it is black.
        mirrored: Whether left and right are swapped at the end.
    """

    cut: Part | None
    size: Size
    window: Part | None = None
    mirrored: bool = False

    def resized_cut(self, image: Image.Image, scale: int) -> Image.Image:
        """Return the cut of the picture, `scale` times smaller, resized by Pillow."""
        if self.cut is None:
            inner, box = image, None
        else:
            top, left, height, width = (edge / scale for edge in self.cut)
            right, bottom = left + width, top + height
            # First cut the surroundings: Pillow's filter would else reach over the edges of the box.
            around = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
            inner = image.crop(around)
            box = left - around[0], top - around[1], right - around[0], bottom - around[1]
        if inner.size == self.size[::-1] and box in (None, (0, 0, *inner.size)):
            return inner
        return inner.resize(self.size[::-1], Image.Resampling.BILINEAR, box)


def shrinking(height: int, width: int, frame: Frame) -> int:
    """Return the factor (1, 2, 4, 8) by which a JPEG may shrink for `frame`.

    Example:
        >>> shrinking(3000, 4000, Frame(Part(0, 0, 1000, 950), (224, 224)))
        4
    """
    if frame.cut is not None:
        _, _, height, width = frame.cut
    return dct_scale(height, width, frame.size)


def resized(size: Size | None, shorter: int | None) -> Callable[[int, int], Frame]:
    """Return a function from (height, width) to the frame of a whole picture."""
    return lambda height, width: Frame(None, target_size(height, width, size, shorter))


class Crop:
    """Base of `RandomResizedCrop`, `CenterCrop` and `ResizeCrop`."""

    __slots__ = ()

    is_random = False
    size: int | Size

    def frame(self, height: int, width: int, rng: random.Random) -> Frame:
        """Return the frame of a picture of `height` x `width`.

        `rng` gives the random numbers.
        """
        raise NotImplementedError

    def at_least(self) -> Size:
        """Return the (height, width) that every picture is resized to, or more."""
        return _pair(self.size)


@checked_options
@dataclass(frozen=True)
class RandomResizedCrop(Crop):
    """A random part, resized: torchvision's ``RandomResizedCrop`` and flip.

    At most ten times it draws a share of the area and an aspect. If none fits, it takes the middle of the picture.
    The result may be mirrored.

    Args:
        size: The size after resizing: one number, or (height, width).
        scale: The least and the largest share of the picture's area.
        ratio: The least and the largest width / height. The logarithm is drawn.
        flip: How probable it is that left and right are swapped.

    Raises:
        UsageError: Numbers out of these ranges.

    Example:
        >>> crop = RandomResizedCrop(224, scale=(0.08, 1.0), flip=0.5)
        >>> crop.frame(375, 500, random.Random(0)).cut
        Part(top=3, left=5, height=372, width=432)
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0

    is_random = True

    def __post_init__(self) -> None:
        _check_size(self.size, "random_resized_crop")
        _check_range(self.scale, "scale", 1.0)
        _check_range(self.ratio, "ratio", math.inf)
        if not _is_number(self.flip) or not 0 <= self.flip <= 1:
            raise UsageError.at(f"flip={self.flip!r} is no probability", todo="pass a number from 0 to 1")

    def frame(self, height: int, width: int, rng: random.Random) -> Frame:
        """Return the frame of a picture of `height` x `width`.

        ``rng.uniform`` draws the share of the area and the logarithm of the aspect, ``rng.randint`` top and left, and
        ``rng.random``, with ``flip=``, whether it is mirrored.
        """
        cut = self._cut(height, width, rng)
        whole = cut.height == height and cut.width == width
        mirrored = self.flip > 0 and rng.random() < self.flip
        return Frame(None if whole else cut, _pair(self.size), None, mirrored)

    def _cut(self, height: int, width: int, rng: random.Random) -> Part:
        narrowest, widest = self.ratio
        for _ in range(10):
            area = height * width * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(math.log(narrowest), math.log(widest)))
            wide = round(math.sqrt(area * aspect))
            tall = round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < tall <= height:
                return Part(rng.randint(0, height - tall), rng.randint(0, width - wide), tall, wide)
        tall, wide = height, width
        if width / height < narrowest:
            tall = min(height, max(1, round(width / narrowest)))
        elif width / height > widest:
            wide = min(width, max(1, round(height * widest)))
        return Part((height - tall) // 2, (width - wide) // 2, tall, wide)


@checked_options
@dataclass(frozen=True)
class CenterCrop(Crop):
    """The middle of the picture, not resized: torchvision's ``CenterCrop``.

    It is black where the picture is smaller.

    Args:
        size: One number, or (height, width).

    Raises:
        UsageError: `size` is not a size.

    Example:
        >>> CenterCrop(224).frame(375, 200, random.Random()).window
        Part(top=76, left=-12, height=224, width=224)
    """

    size: int | Size

    def __post_init__(self) -> None:
        _check_size(self.size, "center_crop")

    def frame(self, height: int, width: int, rng: random.Random) -> Frame:  # noqa: ARG002 - nothing is random
        """Return the frame of a picture of `height` x `width`."""
        return Frame(None, (height, width), _middle((height, width), _pair(self.size)))


@checked_options
@dataclass(frozen=True)
class ResizeCrop(Crop):
    """The middle of the resized picture: ``Resize`` and ``CenterCrop``.

    These are torchvision's. The shorter side decides the resized size.

    Args:
        shorter: The shorter side after resizing.
        size: The size of the middle: one number, or (height, width).

    Raises:
        UsageError: No sizes, or a middle that no resized picture has.

    Example:
        >>> ResizeCrop(256, 224).frame(375, 500, random.Random())
        Frame(cut=None, size=(256, 341), window=Part(top=16, left=58, height=224, width=224), mirrored=False)
    """

    shorter: int
    size: int | Size

    def __post_init__(self) -> None:
        _check_size(self.shorter, "resize_crop", pairs=False)
        _check_size(self.size, "resize_crop")
        if min(_pair(self.size)) > self.shorter:
            raise UsageError.at(
                f"resize_crop=({self.shorter}, {self.size}) takes more than is there",
                todo="The first number is the shorter side after resizing, the second what is cut out of it",
            )

    def frame(self, height: int, width: int, rng: random.Random) -> Frame:  # noqa: ARG002 - nothing is random
        """Return the frame of a picture of `height` x `width`."""
        size = target_size(height, width, None, self.shorter)
        return Frame(None, size, _middle(size, _pair(self.size)))

    def at_least(self) -> Size:
        """Return the (height, width) that every picture is resized to, or more."""
        return self.shorter, self.shorter


def crop_of(given: Crop | None, **named: object) -> Crop | None:
    """Return the one crop in `given` and the options of `Decoder`, or None.

    Raises:
        UsageError: There are two, or options without the crop they belong to.

    Example:
        >>> crop_of(None, random_resized_crop=224, flip=0.5)
        RandomResizedCrop(size=224, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), flip=0.5)
    """
    options: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    kinds = [name for name in ("random_resized_crop", "center_crop", "resize_crop") if name in options]
    if len(kinds) + (given is not None) > 1:
        both = [*(["crop"] if given is not None else []), *kinds]
        raise UsageError.at(f"{'= and '.join(both)}= are both given", todo="a picture is cropped once")
    size: Any = options.pop(kinds[0]) if kinds else None
    if kinds == ["random_resized_crop"]:
        return RandomResizedCrop(size, **options)
    if options:
        raise UsageError.at(
            f"{next(iter(options))}= belongs to random_resized_crop=, which is not given",
            todo="pass random_resized_crop=224, or RandomResizedCrop(224, ...) with it as crop=",
        )
    if kinds == ["center_crop"]:
        return CenterCrop(size)
    if kinds == ["resize_crop"]:
        if not isinstance(size, (tuple, list)) or len(size) != 2:
            raise UsageError.at(
                f"resize_crop={size!r:.60} is no pair", todo="pass (256, 224): shorter side, middle"
            )
        return ResizeCrop(*size)
    return given


def _pair(size: int | Size) -> Size:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _middle(size: Size, wanted: Size) -> Part:
    (top, left), (height, width) = map(_edge, size, wanted), wanted
    return Part(top, left, height, width)


def _edge(have: int, wanted: int) -> int:
    """Offset of the middle: half of the excess, rounded to even.

    Half of a deficit is rounded down.
    """
    return round((have - wanted) / 2) if have >= wanted else -((wanted - have) // 2)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_size(size: object, name: str, *, pairs: bool = True) -> None:
    numbers = size if pairs and isinstance(size, (tuple, list)) and len(size) == 2 else [size]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UsageError.at(
                f"{name}={size!r:.60} is no size",
                todo="pass a whole number of at least 1" + (", or (height, width)" if pairs else ""),
            )


def _check_range(pair: object, name: str, most: float) -> None:
    if (
        not isinstance(pair, (tuple, list))
        or len(pair) != 2
        or not all(map(_is_number, pair))
        or not 0 < pair[0] <= pair[1] <= most
        or math.isinf(pair[1])
    ):
        bound = "" if math.isinf(most) else f" of at most {most:g}"
        raise UsageError.at(
            f"{name}={pair!r:.60} is no range",
            todo=f"pass (least, largest), two numbers above 0{bound}",
        )
