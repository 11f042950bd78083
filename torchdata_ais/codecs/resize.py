"""Resize and normalize pixels.

Measured on one core, 500x375 RGB to 224x224, antialiased bilinear: torch 0.22 ms from an (H, W, 3) array (0.45 ms
from planes), Pillow 1.05 ms; grey: torch 0.29 ms, Pillow 0.41 ms. The pixels agree within one level. So torch resizes
all results, PIL images too (JPEG to a PIL image of 224x224: 1.35 ms, by Pillow alone 2.24 ms); except RGBA, where
only Pillow weighs colours by alpha.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais._util.formatting import value_text
from torchdata_ais.errors import DecodeError, UsageError
from torchdata_ais.errors.text import Remedy

if TYPE_CHECKING:
    import torch

    from torchdata_ais.codecs.crop import Frame, Part
    from torchdata_ais.codecs.handlers import Place


Size = tuple[int, int]  # height and width in pixels

MAX_PIXELS = 89_478_485
"""Default of the most pixels of an image, stored or requested: Pillow warns of more."""


def checked_size(size: int | Size | None, shorter: int | None) -> Size | None:
    """Return `size` as (height, width), checked together with `shorter`."""
    if size is not None and shorter is not None:
        raise UsageError.at(
            f"size={size!r} and shorter={shorter!r} are both given",
            todo="Use size= for exactly that size, or shorter= to keep the aspect",
        )
    pair = (size, size) if isinstance(size, int) else size
    if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        raise UsageError.at(
            f"size={size!r} is neither a number nor (height, width)", todo="write size=224 or size=(224, 320)"
        )
    for number in [*(pair or ()), *([] if shorter is None else [shorter])]:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UsageError.at(f"an image size must be a whole number of at least 1, not {number!r}")
    return None if pair is None else (pair[0], pair[1])


def target_size(height: int, width: int, size: Size | None, shorter: int | None) -> Size:
    """Return the (height, width) an image of `height` x `width` is resized to.

    Example:
        >>> target_size(375, 500, (224, 224), None), target_size(375, 500, None, 256)
        ((224, 224), (256, 341))
        >>> target_size(375, 500, None, None)
        (375, 500)
    """
    if size is not None:
        return size
    if shorter is None:
        return height, width
    if height <= width:
        return shorter, max(1, shorter * width // height)
    return max(1, shorter * height // width), shorter


def check_pixels(size: Size, target: Size, limit: int) -> None:
    """Raise `DecodeError` if an image has too many pixels.

    Its `size` counts, and each size on the way to `target`. Width is resized first: an image of one column becomes
    one of the target's width, at its full height.

    Example:
        >>> check_pixels((1, 20000), target_size(1, 20000, None, 224), MAX_PIXELS)
        Traceback (most recent call last):
        torchdata_ais.errors.DecodeError: An image of 1 x 20000 pixels would become 224 x 4480000, more than \
max_pixels=89478485. Raise max_pixels= if images may be that large, or ask for size=
    """
    if size[0] * size[1] > limit:
        raise DecodeError.at(
            f"the image has {size[0]} x {size[1]} pixels (height x width), more than max_pixels={limit}",
            todo="Raise max_pixels= if images may be that large",
        )
    on_the_way = (size[0], target[1])
    for height, width in (target, on_the_way):
        if height * width > limit:
            raise DecodeError.at(
                f"an image of {size[0]} x {size[1]} pixels would become {height} x {width}, more than"
                f" max_pixels={limit}",
                todo=Remedy("Raise max_pixels= if images may be that large", "ask for size="),
            )


def check_asked(asked: Size, limit: int) -> None:
    """Raise `UsageError` if every image would become too large."""
    height, width = asked
    if height * width > limit:
        raise UsageError.at(
            f"images of {height} x {width} pixels and more are asked for, above max_pixels={limit}",
            todo=Remedy("ask for smaller ones", "raise max_pixels="),
        )


def dct_scale(height: int, width: int, target: Size) -> int:
    """Return the largest shrink factor (1, 2, 4, 8) for a JPEG decoder.

    The result stays at or above `target`. Powers of two only: other factors cost more than they save (500x375 at 5/8:
    1.20 ms, in full 0.99 ms).

    Example:
        >>> dct_scale(375, 500, (224, 224)), dct_scale(1000, 900, (224, 224))
        (1, 4)
    """
    most = min(height // target[0], width // target[1])
    return next((scale for scale in (8, 4, 2) if most >= scale), 1)


def resize_pixels(pixels: NDArray[np.uint8], target: Size) -> NDArray[np.uint8]:
    """Resize (H, W) or (H, W, 3) uint8 pixels, antialiased bilinear."""
    import torch

    # Turned by numpy: each operation of torch lets go of Python's lock, and waits for it while other threads decode.
    if pixels.shape[:2] == target:
        return pixels
    small = np.empty((*target, *pixels.shape[2:]), np.uint8)
    resize()(torch.from_numpy(_images(pixels)), target, torch.from_numpy(_images(small)))
    return small


def _images(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return pixels as torch's (1, C, H, W), in the memory they are in."""
    return pixels[None, None] if pixels.ndim == 2 else pixels[None].transpose(0, 3, 1, 2)


@functools.cache
def resize() -> Callable[[torch.Tensor, Size, torch.Tensor], object]:
    """Return torch's antialiased resize function of images.

    It writes images of (height, width) into given memory. ``interpolate`` calls it after 60 us of argument checks for
    every image. With memory in the byte order of images, the result is not turned into planes: 60 us less, of which a
    copy takes 37 back.
    """
    import torch

    try:
        found: Callable[..., object] = torch._C._nn._upsample_bilinear2d_aa
    except AttributeError:  # not a public name of torch
        return lambda images, size, out: out.copy_(
            torch.nn.functional.interpolate(
                images, size=size, mode="bilinear", align_corners=False, antialias=True
            )
        )
    return lambda images, size, out: found(images, size, False, None, out=out)


def framed_pixels(pixels: NDArray[np.uint8], frame: Frame, scale: int) -> NDArray[np.uint8]:
    """Cut, resize and mirror (H, W) or (H, W, 3) pixels by `frame`.

    They are `scale` times smaller than they are stored; the parts of `frame` count in pixels as stored. The array may
    be a view.
    """
    if frame.cut is None:
        small = resize_pixels(pixels, frame.size)
    elif scale == 1:
        top, left, height, width = frame.cut
        small = resize_pixels(pixels[top : top + height, left : left + width], frame.size)
    else:
        # Its edges lie between pixels that were shrunk: Pillow resizes such a part, torch cannot.
        small = np.array(frame.resized_cut(Image.fromarray(pixels), scale))
    if frame.window is not None:
        small = window_of(small, frame.window)
    return small[:, ::-1] if frame.mirrored else small


def planes_of(pixels: NDArray[np.uint8], place: Place) -> torch.Tensor:
    """Return pixels as contiguous planes (H, W) or (C, H, W), put in `place`."""
    import torch

    planes = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    found = place(planes.shape)
    if found is None:
        return torch.from_numpy(np.ascontiguousarray(planes))
    np.copyto(found.numpy(), planes)
    return found


def window_of(pixels: NDArray[Any], part: Part) -> NDArray[Any]:
    """Return a part of (H, W) or (H, W, C) pixels, padded with zeros."""
    top, left, height, width = part
    inside = pixels[max(top, 0) : top + height, max(left, 0) : left + width]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.zeros((height, width, *pixels.shape[2:]), pixels.dtype)
    down, right = max(-top, 0), max(-left, 0)
    padded[down : down + inside.shape[0], right : right + inside.shape[1]] = inside
    return padded


def framed_nearest(values: NDArray[Any], frame: Frame) -> NDArray[Any]:
    """Cut, resize and mirror (H, W) values of any type, by the nearest one."""
    if frame.cut is not None:
        top, left, height, width = frame.cut
        values = values[top : top + height, left : left + width]
    picked = resize_nearest(values, frame.size)
    if frame.window is not None:
        picked = window_of(picked, frame.window)
    return np.ascontiguousarray(picked[:, ::-1] if frame.mirrored else picked)


def resize_nearest(values: NDArray[Any], target: Size) -> NDArray[Any]:
    """Resize (H, W) values, such as labels of a mask, by the nearest one."""
    height, width = values.shape
    if (height, width) == target:
        return values
    rows = (np.arange(target[0]) * 2 + 1) * height // (2 * target[0])
    columns = (np.arange(target[1]) * 2 + 1) * width // (2 * target[1])
    picked: NDArray[Any] = values[rows[:, None], columns]
    return picked


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Normalize:
    """Make uint8 images floats: ``(x / 255 - mean) / std``.

    It runs in the main process. Workers send uint8, a quarter of the bytes; the device computes. It accepts results
    of ``torchrgb8``, in batches and alone.

    Args:
        mean: Of each channel, for values from 0 to 1. Default: ImageNet's.
        std: Of each channel.
        dtype: Of the result; None is float32. Halves are computed in float32.

    Memory:
        The result, and once more as much while halves are made.

    Raises:
        UsageError: `mean` and `std` have not as many channels, or a deviation is not above 0; other images than uint8.

    Example:
        >>> import torch
        >>> normalize = Normalize(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
        >>> images = torch.full((64, 3, 224, 224), 255, dtype=torch.uint8)
        >>> normalize(images.to("cpu", non_blocking=True)).unique().tolist()
        [2.0]
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET[0],
        std: Sequence[float] = IMAGENET[1],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        try:
            self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        except (TypeError, ValueError):
            raise UsageError.at(
                f"mean={mean!r:.60} and std={std!r:.60} are not numbers", todo="pass one a channel of each"
            ) from None
        if len(self.mean) != len(self.std) or not self.std or not all(one > 0 for one in self.std):
            raise UsageError.at(
                f"mean={self.mean} and std={self.std} do not fit",
                todo="pass as many numbers of each as images have channels, deviations above 0",
            )
        self.dtype = dtype
        self._on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return (..., C, H, W) floats of (..., C, H, W) uint8 images.

        They are on the same device and in the same layout.
        """
        import torch

        if not isinstance(images, torch.Tensor):
            raise UsageError.at(
                f"Normalize was given {value_text(images)}",
                todo="pass ais_loader(pipe, normalize=Normalize()), or write .map_tuple(Normalize(), None)",
            )
        channels = images.shape[-3] if images.ndim >= 3 else 0
        if images.dtype != torch.uint8 or channels != len(self.mean):
            raise UsageError.at(
                f"Normalize of {len(self.mean)} channels was given {tuple(images.shape)} of {images.dtype}",
                todo='pass uint8 images (..., C, H, W), as .decode("torchrgb8") gives them',
            )
        if images.device not in self._on:
            mean, std = (
                torch.tensor(row, dtype=torch.float64).view(-1, 1, 1) for row in (self.mean, self.std)
            )
            factors = ((255 * std).reciprocal(), -mean / std)
            self._on[images.device] = tuple(one.float().to(images.device) for one in factors)  # type: ignore[assignment]
        scale, shift = self._on[images.device]
        normal = images.to(torch.float32).mul_(scale).add_(shift)
        return normal if self.dtype is None else normal.to(self.dtype)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_on": {}}

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"
