"""The fast path for JPEG: simplejpeg, where it is installed (extra ``[fast]``) and gives Pillow's pixels.

Only plain 8-bit colour JPEGs are taken. Whatever is grey, CMYK, damaged or odd in any way is left to
Pillow, so that results and errors are the same with and without the extra.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_ais.codecs.resize import MAX_PIXELS, Size, check_pixels, dct_scale, target_size
from torchdata_ais.errors import DecodeError


@functools.cache
def _simplejpeg() -> Any:
    """The module, or None."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def decode_rgb(
    data: bytes, size: Size | None, shorter: int | None, max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.uint8], Size] | None:
    """Decode to (H, W, 3) pixels and the size they are still to be resized to; None leaves it to Pillow.

    Raises:
        DecodeError: More than `max_pixels`, as stored or as asked for.
    """
    simplejpeg = _simplejpeg()
    if simplejpeg is None or data[:3] != b"\xff\xd8\xff":
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if space != "YCbCr":
            return None
        target = target_size(height, width, size, shorter)
        check_pixels((height, width), target, max_pixels)
        scale = dct_scale(height, width, target)
        # The smallest size the decoder may choose is the one Pillow's draft mode gives: rounded up.
        least = {"min_height": -(-height // scale), "min_width": -(-width // scale)} if scale > 1 else {}
        # strict: without it a cut file is half an image and the rest grey.
        return simplejpeg.decode_jpeg(data, strict=True, **least), target
    except DecodeError:  # a ValueError, too
        raise
    except ValueError:
        return None
