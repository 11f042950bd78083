"""Image decoding by Pillow: formats, size, orientation, 16 bits, masks."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from torchdata_ais.codecs.crop import Frame, Part, shrinking
from torchdata_ais.codecs.resize import MAX_PIXELS, Size, check_pixels
from torchdata_ais.errors import DecodeError
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.tar import kind_of

_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TILE_SIDES = (323, 322)  # tags of TIFF: height, width
_FIRST_TURNED = 5  # orientations 5 to 8 swap height and width
# Orientations that bring the last row, or column, to the front.
_BOTTOM_UP, _RIGHT_TO_LEFT = (3, 4, 7, 8), (2, 3, 6, 7)

# Opened by content, so a refused format is refused under any file name. EPS is a program that Pillow hands
# to Ghostscript; the others can be named by Pillow but not decoded.
_REFUSED = frozenset(["EPS", "BUFR", "FITS", "GRIB", "HDF5", "MPEG", "WMF"])
_COMMON = ("JPEG", "PNG", "GIF", "BMP", "PPM")

# Grey PNGs of 2 and 4 bits are spread over 0..255 when loaded; masks want the numbers that were stored.
_SPREAD = {"L;2": 85, "L;4": 17}


class Options(NamedTuple):
    """Options of decoding; see `torchdata_ais.Decoder`.

    `frame_of` gives the frame of a picture of (height, width), after its orientation.
    """

    frame_of: Callable[[int, int], Frame]
    scale_16: bool = False
    exif: bool = False
    max_pixels: int = MAX_PIXELS


def load(data: bytes, mode: str, options: Options, *, resize: bool) -> tuple[Image.Image, Frame, int]:
    """Decode to a PIL image in `mode`.

    Returns the image, its remaining frame, and the factor by which the JPEG decoder has shrunk it, if that is exact
    enough. With `resize` it is cut and resized. No image, and too many pixels, as stored or as requested, are a
    `DecodeError`.
    """
    image, orientation, frame = _opened(data, options)
    frame, scale = _drafted(image, orientation, frame)
    image.load()  # a cut file is an OSError here
    check_pixels(image.size, image.size, options.max_pixels)  # some formats know it only now
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in {"PNG", "PPM"})
    plain = _turned(image, orientation)
    if image.mode in ("I", "F") and not deep:
        _check_eight_bits(plain)
    if deep and options.scale_16:
        values = np.asarray(plain).astype(np.uint32)
        plain = Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 becomes 255, rounded
    converted = plain.convert(mode)  # always a copy: a plain Image that holds no file
    if not resize:
        return converted, frame, scale
    return frame.resized_cut(converted, scale), frame._replace(cut=None), 1


def _check_eight_bits(image: Any) -> None:
    """Raise `DecodeError` unless all numbers are whole and in 0..255.

    Pillow cuts others off: fractions are black, large numbers white.
    """
    values = np.asarray(image)
    if values.size and not (values.min() >= 0 and values.max() <= 255 and (values == np.rint(values)).all()):
        kind = "floating-point numbers" if image.mode == "F" else "whole numbers of 32 bits"
        raise DecodeError.at(
            f"the image has {kind} from {values.min():g} to {values.max():g}, which eight bits do not hold",
            todo=Remedy(
                in_programs(
                    'Decode it as it is stored: by the spec "mask", or imagehandler("mask", "depth.tif")'
                )
            ),
        )


def _drafted(image: Any, orientation: int, frame: Frame) -> tuple[Frame, int]:
    """Let the JPEG decoder shrink a large JPEG; return the factor.

    Its last row and column then include pixels that the picture lacks. Turning may bring them to the top or to the
    left: the frame that is returned counts from there.
    """
    stored = image.size
    width, height = stored[::-1] if orientation >= _FIRST_TURNED else stored
    scale = shrinking(height, width, frame)
    if scale == 1 or not isinstance(image, JpegImageFile):
        return frame, 1
    image.draft(None, (stored[0] // scale, stored[1] // scale))
    if image.size == stored:
        return frame, 1
    if frame.cut is not None:
        top, left, tall, wide = frame.cut
        top += -height % scale if orientation in _BOTTOM_UP else 0
        left += -width % scale if orientation in _RIGHT_TO_LEFT else 0
        frame = frame._replace(cut=Part(top, left, tall, wide))
    return frame, scale


def load_mask(data: bytes, options: Options) -> tuple[NDArray[Any], Frame]:
    """Decode to the stored (H, W) numbers, and their remaining frame.

    They are palette indexes or 16-bit values, for example, as uint8, uint16, int32 or float32. Several values a pixel,
    and too many pixels, are a `DecodeError`.
    """
    image, orientation, frame = _opened(data, options)
    raw = image.tile[0].args if image.tile else None
    spread = _SPREAD.get(raw if isinstance(raw, str) else "", 1)
    image.load()
    plain = _turned(image, orientation)
    if len(plain.getbands()) != 1:
        raise DecodeError.at(f"a mask has one value a pixel, and this image is {plain.mode}")
    values = np.array(plain)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    return values // spread if spread > 1 else values, frame


def _opened(data: bytes, options: Options) -> tuple[Any, int, Frame]:
    """Return an image before decoding, its orientation, and its frame."""
    image = open_image(data, options.max_pixels)
    orientation = _orientation(image) if options.exif or image.format == "TIFF" else 1
    if image.format == "TIFF" and orientation >= _FIRST_TURNED and _is_turned(image):
        orientation = 1
    height, width = image.size if orientation >= _FIRST_TURNED else image.size[::-1]
    frame = options.frame_of(height, width)
    check_pixels((height, width), frame.size, options.max_pixels)
    return image, orientation, frame


def _is_turned(image: Any) -> bool:
    """Return whether a TIFF has its upright size before it is loaded.

    Pillow turns it when it is loaded, whatever the options; some versions state the size of that before.
    """
    stored = (image.tag_v2.get(_TIFF_WIDTH), image.tag_v2.get(_TIFF_HEIGHT))
    return bool(image.size == stored[::-1])


def _orientation(image: Any) -> int:
    """Return the EXIF orientation, 1 to 8; 1 for text and damaged EXIF."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - Pillow's parser raises any exception; the picture may be sound
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _turned(image: Any, orientation: int) -> Any:
    """Return the upright image."""
    return image if orientation == 1 else ImageOps.exif_transpose(image)


def open_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Any:
    """Open an image without decoding it, within `max_pixels`.

    The images inside of it must be within them, too. Too many pixels, and no image, are a `DecodeError`.
    """
    for size in _inner_sizes(data):  # before Pillow looks: it decodes icons when they are opened
        check_pixels(size, size, max_pixels)
    try:
        image = _identified(data)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError.at(
            f"the image has too many pixels, also for max_pixels={max_pixels}: {error}",
            todo=Remedy(
                in_programs("Raise PIL.Image.MAX_IMAGE_PIXELS, and max_pixels=, if images may be that large")
            ),
        ) from error
    check_pixels(image.size[::-1], image.size[::-1], max_pixels)
    if image.format == "TIFF":
        tile = [image.tag_v2.get(tag) for tag in _TILE_SIDES]
        if all(isinstance(side, int) for side in tile):
            check_pixels((tile[0], tile[1]), (tile[0], tile[1]), max_pixels)
    return image


def _inner_sizes(data: bytes) -> Iterator[Size]:
    """Yield (height, width) of the pictures inside of an icon."""
    if data[:4] == b"\0\0\1\0":  # ICO
        for at in range(6, min(6 + 16 * int.from_bytes(data[4:6], "little"), len(data) - 15), 16):
            start = int.from_bytes(data[at + 12 : at + 16], "little")
            head = data[start : start + 24]
            if len(head) == 24:
                yield _png_size(head) or _dib_size(head)
    elif data[:4] == b"icns":
        at = 8
        while at + 8 <= len(data):
            head = data[at + 8 : at + 208]
            size = _png_size(head) or _jpeg_2000_size(head)
            if size is not None:
                yield size
            at += max(8, int.from_bytes(data[at + 4 : at + 8], "big"))


def _png_size(head: bytes) -> Size | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or len(head) < 24:
        return None
    width, height = struct.unpack_from(">II", head, 16)
    return height, width


def _dib_size(head: bytes) -> Size:
    """Return the size of a bitmap in an icon, which states twice its height."""
    if head[0] == 12:
        width, height = struct.unpack_from("<HH", head, 4)
    else:
        width, height = map(abs, struct.unpack_from("<ii", head, 4))
    return height // 2, width


def _jpeg_2000_size(head: bytes) -> Size | None:
    at = head.find(b"ihdr")
    if head.startswith(b"\xff\x4f\xff\x51") and len(head) >= 16:
        width, height = struct.unpack_from(">II", head, 8)
    elif 0 <= at <= len(head) - 12:
        height, width = struct.unpack_from(">II", head, at + 4)
    else:
        return None
    return height, width


def _identified(data: bytes) -> Any:
    """Open without decoding: common formats first, then all plug-ins."""
    with contextlib.suppress(UnidentifiedImageError):
        return Image.open(io.BytesIO(data), formats=_COMMON)
    with contextlib.suppress(UnidentifiedImageError):
        Image.init()
        formats = [name for name in Image.ID if name not in _REFUSED]  # plug-ins of others among them
        return Image.open(io.BytesIO(data), formats=formats)
    kind = kind_of(data) if data else "there are none"
    raise DecodeError.at(f"the {len(data)} bytes are no image that Pillow can read: {kind}")
