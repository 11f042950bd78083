"""Fast decoding of JPEG by simplejpeg, if it equals Pillow's.

It is installed by the extra ``[fast]``. Only plain 8-bit colour JPEGs are decoded here. Pillow decodes grey, CMYK,
damaged or unusual ones, so that results and errors are the same with and without the extra.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_ais.codecs.crop import Frame, shrinking
from torchdata_ais.codecs.resize import check_pixels
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
    data: bytes, frame_of: Callable[[int, int], Frame], max_pixels: int
) -> tuple[NDArray[np.uint8], Frame, int] | None:
    """Decode to (H, W, 3) pixels, their frame, and their shrink factor.

    None leaves it to Pillow. `frame_of` is called with height and width, before anything is decoded. More than
    `max_pixels`, as stored or as requested, are a `DecodeError`.
    """
    simplejpeg = _simplejpeg()
    if simplejpeg is None or data[:3] != b"\xff\xd8\xff":
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if space != "YCbCr":
            return None
        frame = frame_of(height, width)
        check_pixels((height, width), frame.size, max_pixels)
        scale = shrinking(height, width, frame)
        # The smallest size the decoder may choose is the one Pillow's draft mode gives: rounded up.
        least = {"min_height": -(-height // scale), "min_width": -(-width // scale)} if scale > 1 else {}
        # strict: without it a cut file is half an image and the rest grey.
        return simplejpeg.decode_jpeg(data, strict=True, **least), frame, scale
    except DecodeError:  # a ValueError, too
        raise
    except ValueError:
        return None
