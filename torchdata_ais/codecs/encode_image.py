"""Arrays, tensors and PIL images to image files."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class Format(NamedTuple):
    """A file format: Pillow's name for it, and the modes it stores without loss of channels or depth."""

    name: str
    modes: tuple[str, ...]


_JPEG = Format("JPEG", ("L", "RGB", "CMYK"))
_TIFF = Format("TIFF", ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"))

FORMATS: dict[str, Format] = {
    **dict.fromkeys(["jpg", "jpeg", "img", "image"], _JPEG),
    "png": Format("PNG", ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    "pbm": Format("PPM", ("1",)),
    "pgm": Format("PPM", ("L", "I;16")),
    "ppm": Format("PPM", ("RGB",)),
    **dict.fromkeys(["tif", "tiff"], _TIFF),
    "webp": Format("WEBP", ("RGB", "RGBA")),
    "gif": Format("GIF", ("1", "L", "P", "RGB")),
    "bmp": Format("BMP", ("1", "L", "P", "RGB")),
}

# Modes that hold everything a mode holds, the closest first.
_WIDER = {"1": ("L", "RGB"), "L": ("RGB",), "P": ("RGB",), "LA": ("RGBA",)}

# Numbers that left 0..1 by rounding are put back, as WebDataset does; more is an error.
_SLACK = 0.001


def encode_image(value: Any, extension: str, quality: int = 100) -> bytes:
    """Encode an image as the format of `extension` says.

    Args:
        value: A PIL image; an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); a tensor (H, W) or (C, H, W).
            uint8 0..255, bool, floats 0..1 (rounded to the nearest of 256 levels), uint16 in (H, W).
        extension: One of `FORMATS`.
        quality: For JPEG and WebP, 1 to 100; a WebP of 100 is lossless.

    Raises:
        TypeError: The value is no image.
        ValueError: Numbers out of range, or channels that the format cannot store.
    """
    image = value if isinstance(value, Image.Image) else _to_pil(value)
    form = FORMATS[extension]
    stream = io.BytesIO()
    _fitted(image, form, extension).save(stream, format=form.name, **_options(form.name, quality))
    return stream.getvalue()


def _options(name: str, quality: int) -> dict[str, Any]:
    if name == "JPEG":
        return {"quality": quality}
    if name == "WEBP":  # exact: keep the colours of transparent pixels
        return {"lossless": True, "exact": True} if quality >= 100 else {"quality": quality}
    return {}


def _fitted(image: Image.Image, form: Format, extension: str) -> Image.Image:
    wider = _WIDER.get(image.mode, ())
    if image.mode == "P" and "transparency" in image.info:
        wider = ("RGBA",)
    for mode in (image.mode, *wider):
        if mode in form.modes:
            return image if mode == image.mode else image.convert(mode)
    raise ValueError(f"{extension} cannot store an image of mode {image.mode}; convert it or use png or tiff")


def _to_pil(value: Any) -> Image.Image:
    pixels = _pixels(value)
    if pixels.dtype == np.bool_:
        return Image.fromarray(pixels)
    if pixels.dtype.kind == "f":
        if not (pixels.size and pixels.min() > -_SLACK and pixels.max() < 1 + _SLACK):  # false for NaN, too
            raise ValueError("floating-point images must lie in 0..1")
        pixels = np.rint(np.clip(pixels.astype(np.float64), 0, 1) * 255).astype(np.uint8)
    if pixels.dtype == np.uint8 or (pixels.dtype == np.uint16 and pixels.ndim == 2):
        return Image.fromarray(np.ascontiguousarray(pixels))
    raise ValueError(f"an image of {pixels.dtype} and shape {pixels.shape} cannot be stored; make it uint8")


def _pixels(value: Any) -> NDArray[Any]:
    """Return (H, W), (H, W, 3) or (H, W, 4)."""
    if isinstance(value, np.ndarray):
        pixels: NDArray[Any] = value
    elif hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor, without importing torch
        pixels = value.detach().cpu().numpy()
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    else:
        raise TypeError(f"an image is a PIL image, an array or a tensor, not {type(value).__name__}")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] in {3, 4}):
        raise ValueError(
            f"shape {tuple(value.shape)} is no image: arrays are (H, W[, C]), tensors ([C,] H, W)"
        )
    return pixels
