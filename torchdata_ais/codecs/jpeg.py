"""The fast path for JPEG: simplejpeg, where it is installed (extra ``[fast]``) and gives Pillow's pixels.

Only plain 8-bit colour JPEGs are taken. Whatever is grey, CMYK, damaged or odd in any way is left to
Pillow, so that results and errors are the same with and without the extra.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais.codecs.resize import Size, dct_scale, target_size


@functools.cache
def _simplejpeg() -> Any:
    """The module, or None."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def decode_rgb(data: bytes, size: Size | None, shorter: int | None) -> tuple[NDArray[np.uint8], Size] | None:
    """Decode to (H, W, 3) pixels and the size they are still to be resized to; None leaves it to Pillow."""
    simplejpeg = _simplejpeg()
    if simplejpeg is None or data[:3] != b"\xff\xd8\xff":
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if space != "YCbCr" or height * width > (Image.MAX_IMAGE_PIXELS or height * width):
            return None
        target = target_size(height, width, size, shorter)
        scale = dct_scale(height, width, target)
        # The smallest size the decoder may choose is the one Pillow's draft mode gives: rounded up.
        least = {"min_height": -(-height // scale), "min_width": -(-width // scale)} if scale > 1 else {}
        # strict: without it a cut file is half an image and the rest grey.
        return simplejpeg.decode_jpeg(data, strict=True, **least), target
    except ValueError:
        return None
