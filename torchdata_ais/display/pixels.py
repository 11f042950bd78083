"""Values of image fields to pictures: tensors, arrays and encoded bytes, whatever their layout and range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais.codecs import IMAGE_EXTENSIONS
from torchdata_ais.codecs.pillow import open_image
from torchdata_ais.codecs.signs import ending_by_sign
from torchdata_ais.errors import UsageError

_CHANNELS = (1, 3, 4)
_TOLERANCE = 1e-3  # what resizing adds to a range that was 0 to 1

# Colours of mask values 1, 2, 3 ..., told apart also by those who see few colours; 0 is left as it is.
_PALETTE = [
    (230, 159, 0),
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (240, 228, 66),
    (86, 180, 233),
]


def as_array(value: Any) -> NDArray[Any] | None:
    """Return a tensor or array as an array, anything else as None. Nothing is copied that need not be."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # a tensor, asked without importing torch
        tensor = value.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.float()  # bfloat16 has no array
        array: NDArray[Any] = tensor.numpy()
        return array
    return None


def is_image(value: Any) -> bool:
    """Return whether this is one image: a Pillow image, an image file, or an array of two or three dimensions."""
    if isinstance(value, bytes | bytearray):
        return ending_by_sign(value) in IMAGE_EXTENSIONS
    if isinstance(value, Image.Image):
        return True
    shape: Sequence[int] = getattr(value, "shape", ())
    if len(shape) == 2:
        return min(shape) > 1
    return len(shape) == 3 and (shape[0] in _CHANNELS or shape[2] in _CHANNELS)


def is_planar(value: Any) -> bool:
    """Return whether the channels of this image stand first, as torch has it."""
    first, last = value.shape[0] in _CHANNELS, value.shape[2] in _CHANNELS
    return bool(first and (not last or hasattr(value, "detach")))


def to_picture(value: Any, mean: Sequence[float] | None, std: Sequence[float] | None) -> Image.Image:
    """Return an image in RGB.

    Args:
        value: A Pillow image, the bytes of an image file, or an array: H x W, H x W x C or C x H x W.
        mean: What was subtracted from each channel, in the range 0 to 1; None if nothing was.
        std: What each channel was divided by then.

    Without `mean` and `std` floats from 0 to 1 and numbers from 0 to 255 are taken as they are; any other range
    is stretched, each image by itself, so that a normalised image is recognisable.
    """
    if isinstance(value, bytes | bytearray):
        value = open_image(bytes(value))
    if isinstance(value, Image.Image):
        return _flat(value)
    array = as_array(value)
    if array is None or array.ndim not in (2, 3):
        raise UsageError.at(f"a {type(value).__name__} is no image", todo="name the field with image=")
    if array.ndim == 3 and is_planar(value):
        array = array.transpose(1, 2, 0)
    if mean is not None or std is not None:
        array = np.clip(array * np.asarray(1.0 if std is None else std) + np.asarray(mean or 0.0), 0.0, 1.0)
    array = _bytes(array)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return _flat(Image.fromarray(np.ascontiguousarray(array)))


def to_mask(value: Any) -> NDArray[np.uint8]:
    """Return a mask as H x W numbers; one that was decoded as a picture (k/255 in three channels) is brought back."""
    if isinstance(value, bytes | bytearray):
        value = open_image(bytes(value))
    array = np.asarray(value) if isinstance(value, Image.Image) else as_array(value)
    if array is None or array.ndim not in (2, 3):
        raise UsageError.at(f"a {type(value).__name__} is no mask", todo="name the field with mask=")
    if array.ndim == 3:
        array = array[0] if is_planar(array) else array[:, :, 0]
    if array.dtype.kind == "f":
        array = np.rint(array * 255 if array.size and array.max() <= 1 else array)
    numbers: NDArray[np.uint8] = np.clip(array, 0, 255).astype(np.uint8)
    return numbers


def tinted(picture: Image.Image, mask: NDArray[np.uint8], opacity: float) -> Image.Image:
    """Return a picture with the values of a mask above 0 in colours over it."""
    mask = np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST))
    colours = np.array([(0, 0, 0)] + [_PALETTE[value % len(_PALETTE)] for value in range(255)], np.uint8)
    tint = Image.fromarray(colours[mask])
    share = Image.fromarray(np.where(mask == 0, 0, round(opacity * 255)).astype(np.uint8))
    return Image.composite(tint, picture, share)


def _flat(image: Image.Image) -> Image.Image:
    """Return an image in RGB, what is transparent on white."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_bytes(np.asarray(image))).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return numbers of any kind as 0 to 255."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        high: NDArray[np.uint8] = np.right_shift(array, 8).astype(np.uint8)
        return high
    numbers = np.nan_to_num(array.astype(np.float32))
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    if array.dtype.kind == "f" and least >= -_TOLERANCE and most <= 1 + _TOLERANCE:
        numbers = numbers * 255
    elif least < 0 or most > 255:
        numbers = (numbers - least) * (255 / max(most - least, 1e-12))
    result: NDArray[np.uint8] = np.clip(np.rint(numbers), 0, 255).astype(np.uint8)
    return result
