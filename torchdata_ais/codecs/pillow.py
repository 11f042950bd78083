"""Images by Pillow: which formats may be opened, decoding at size, orientation, 16 bits, masks."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from torchdata_ais.codecs.resize import Size, target_size
from torchdata_ais.errors import DecodeError
from torchdata_ais.tar import kind_of

_ORIENTATION = 0x0112
_FIRST_TURNED = 5  # orientations 5 to 8 swap height and width

# Opened by content, so a refused format is refused under any file name. EPS is a program that Pillow hands
# to Ghostscript; the others can be named by Pillow but not decoded.
_REFUSED = frozenset(["EPS", "BUFR", "FITS", "GRIB", "HDF5", "MPEG", "WMF"])
_COMMON = ("JPEG", "PNG", "GIF", "BMP", "PPM")

# Grey PNGs of 2 and 4 bits are spread over 0..255 when loaded; masks want the numbers that were stored.
_SPREAD = {"L;2": 85, "L;4": 17}


class Options(NamedTuple):
    """How to decode; see `torchdata_ais.codecs.build_decoder`."""

    size: Size | None = None
    shorter: int | None = None
    scale_16: bool = False
    exif: bool = False


def load(data: bytes, mode: str, options: Options, *, resize: bool) -> tuple[Image.Image, Size]:
    """Decode to a PIL image in `mode`.

    Returns:
        The image, and the (height, width) asked for: already that size if `resize`, else still to be resized
        (but shrunk by the JPEG decoder where that is exact enough).
    """
    image = _open(data)
    width, height = image.size
    turned = options.exif and image.getexif().get(_ORIENTATION, 1) >= _FIRST_TURNED
    target = (
        target_size(width, height, options.size, options.shorter)
        if turned
        else target_size(height, width, options.size, options.shorter)
    )
    if isinstance(image, JpegImageFile) and target != (height, width):
        image.draft(None, target if turned else target[::-1])  # draft wants (width, height) as stored
    image.load()  # a cut file is an OSError here
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in {"PNG", "PPM"})
    plain: Image.Image = ImageOps.exif_transpose(image) if options.exif else image
    if deep and options.scale_16:
        values = np.asarray(plain).astype(np.uint32)
        plain = Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 becomes 255, rounded
    converted = plain.convert(mode)  # always a copy: a plain Image that holds no file
    if resize and converted.size != target[::-1]:
        converted = converted.resize(target[::-1], Image.Resampling.BILINEAR)
    return converted, target


def load_mask(data: bytes, options: Options) -> tuple[NDArray[Any], Size]:
    """Decode to the (H, W) numbers that are stored: palette indexes, 16-bit values, no conversion.

    Returns:
        uint8, uint16, int32 or float32 values, and the (height, width) they are still to be resized to.

    Raises:
        DecodeError: The image has several values a pixel.
    """
    image = _open(data)
    raw = image.tile[0].args if image.tile else None
    spread = _SPREAD.get(raw if isinstance(raw, str) else "", 1)
    image.load()
    plain: Image.Image = ImageOps.exif_transpose(image) if options.exif else image
    if len(plain.getbands()) != 1:
        raise DecodeError.at(f"a mask has one value a pixel, and this image is {plain.mode}")
    values = np.array(plain)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    height, width = values.shape
    return values // spread if spread > 1 else values, target_size(
        height, width, options.size, options.shorter
    )


def _open(data: bytes) -> Any:
    """Open without decoding. Only if none of the common formats fits are all of Pillow's plug-ins loaded."""
    with contextlib.suppress(UnidentifiedImageError):
        return Image.open(io.BytesIO(data), formats=_COMMON)
    with contextlib.suppress(UnidentifiedImageError):
        return Image.open(io.BytesIO(data), formats=_all_formats())
    kind = kind_of(data) if data else "there are none"
    raise DecodeError.at(f"the {len(data)} bytes are no image that Pillow can read: {kind}")


@functools.cache
def _all_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in Image.ID if name not in _REFUSED)
