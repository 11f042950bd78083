"""Image decoding: specs of the results, and the handler."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais._util.arguments import check_number, did_you_mean
from torchdata_ais.codecs import pillow
from torchdata_ais.codecs.crop import Crop, Frame, resized, shrinking
from torchdata_ais.codecs.handlers import (
    FIELD_KINDS,
    Place,
    ending_by_sign,
    ends_with,
    extension,
    names,
    nowhere,
)
from torchdata_ais.codecs.resize import (
    MAX_PIXELS,
    Size,
    check_asked,
    check_pixels,
    checked_size,
    framed_nearest,
    framed_pixels,
    planes_of,
)
from torchdata_ais.errors import DecodeError, UsageError

if TYPE_CHECKING:
    import torch

SixteenBit = Literal["clip", "scale"]

ImageSpecName = Literal[
    "l8", "rgb8", "rgba8", "l", "rgb", "rgba", "torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb", "torch",
    "rgbtorch", "torchrgba", "pill", "pil", "pilrgb", "pilrgba", "mask", "torchmask",
]  # fmt: skip
"""The keys of `IMAGE_SPECS`."""


class ImageSpec(NamedTuple):
    """Result of decoding an image: container, numbers and Pillow mode."""

    container: Literal["numpy", "torch", "pil"]
    numbers: Literal["uint8", "float", "stored"]
    mode: Literal["L", "RGB", "RGBA", "mask"]


IMAGE_SPECS: dict[ImageSpecName, ImageSpec] = {
    "l8": ImageSpec("numpy", "uint8", "L"),
    "rgb8": ImageSpec("numpy", "uint8", "RGB"),
    "rgba8": ImageSpec("numpy", "uint8", "RGBA"),
    "l": ImageSpec("numpy", "float", "L"),
    "rgb": ImageSpec("numpy", "float", "RGB"),
    "rgba": ImageSpec("numpy", "float", "RGBA"),
    "torchl8": ImageSpec("torch", "uint8", "L"),
    "torchrgb8": ImageSpec("torch", "uint8", "RGB"),
    "torchrgba8": ImageSpec("torch", "uint8", "RGBA"),
    "torchl": ImageSpec("torch", "float", "L"),
    "torchrgb": ImageSpec("torch", "float", "RGB"),
    "torch": ImageSpec("torch", "float", "RGB"),
    "rgbtorch": ImageSpec("torch", "float", "RGB"),
    "torchrgba": ImageSpec("torch", "float", "RGBA"),
    "pill": ImageSpec("pil", "uint8", "L"),
    "pil": ImageSpec("pil", "uint8", "RGB"),
    "pilrgb": ImageSpec("pil", "uint8", "RGB"),
    "pilrgba": ImageSpec("pil", "uint8", "RGBA"),
    "mask": ImageSpec("numpy", "stored", "mask"),
    "torchmask": ImageSpec("torch", "stored", "mask"),
}

IMAGE_EXTENSIONS = frozenset(FIELD_KINDS["image"])

# Names that writers of WebDataset shards give to JPEGs, and that others use for disk images and scans:
# taken for an image only if the bytes are one.
_MAYBE_IMAGE = frozenset(["img", "image"])

# Formats that Pillow opens once a plug-in for them is registered.
_BY_PLUGIN = frozenset(["heic", "heif", "hif", "jxl"])


@dataclass(frozen=True)
class ImageHandler:
    """Handler of image fields with one spec; made by `imagehandler`.

    Options that are None are taken from the decoding stage the handler is given to.
    """

    spec: ImageSpecName
    fields: tuple[str, ...] | None = None
    size: Size | None = None
    shorter: int | None = None
    sixteen_bit: SixteenBit | None = None
    exif: bool | None = None
    max_pixels: int | None = None
    crop: Crop | None = None

    def __call__(self, name: str, data: bytes, seed: int | None = None, place: Place = nowhere) -> Any:
        """Return the decoded image, or None where `name` is not one of the fields."""
        return self.decode(data, seed, place) if self._claims(name, data) else None

    def decode(self, data: bytes, seed: int | None = None, place: Place = nowhere) -> Any:
        """Decode one image.

        Args:
            data: The file.
            seed: The seed of a random crop; None: torch's own generator.
            place: The memory for a uint8 tensor.
        """
        container, numbers, mode = IMAGE_SPECS[self.spec]
        most = MAX_PIXELS if self.max_pixels is None else self.max_pixels
        options = pillow.Options(self._framing(seed), self.sixteen_bit == "scale", bool(self.exif), most)
        if container == "pil" and not (self.size or self.shorter or self.crop):
            return pillow.load(data, mode, options, resize=False)[0]
        if mode == "mask":
            values = framed_nearest(*pillow.load_mask(data, options))
            return values if container == "numpy" else _values_to_tensor(values)
        pixels, frame, scale = _pixels(data, mode, options)
        pixels = framed_pixels(pixels, frame, scale)
        if container == "torch":
            return (
                planes_of(pixels, place)
                if numbers == "uint8"
                else planes_of(pixels, nowhere).float().div_(255)
            )
        pixels = np.ascontiguousarray(pixels)
        if container == "pil":
            return Image.fromarray(pixels)
        return np.divide(pixels, np.float32(255), dtype=np.float32) if numbers == "float" else pixels

    @property
    def has_one_shape(self) -> bool:
        """Return whether all images become uint8 tensors of one shape."""
        container, numbers, _ = IMAGE_SPECS[self.spec]
        return container == "torch" and numbers == "uint8" and (self.size or self.crop) is not None

    @property
    def is_random(self) -> bool:
        """Return whether the same bytes may give different images."""
        return self.crop is not None and self.crop.is_random

    def _framing(self, seed: int | None) -> Callable[[int, int], Frame]:
        """Return a function from (height, width) to a frame, equal in each call."""
        crop = self.crop
        if crop is None:
            return resized(self.size, self.shorter)
        own = seed_of_torch() if seed is None and crop.is_random else seed or 0
        return lambda height, width: crop.frame(height, width, random.Random(own))

    def filled(
        self,
        size: Size | None,
        shorter: int | None,
        crop: Crop | None,
        sixteen_bit: SixteenBit,
        exif: bool,
        max_pixels: int,
    ) -> ImageHandler:
        """Return the handler with these options as defaults."""
        own_size = self.size is not None or self.shorter is not None or self.crop is not None
        filled = replace(
            self,
            size=self.size if own_size else size,
            shorter=self.shorter if own_size else shorter,
            crop=self.crop if own_size else crop,
            sixteen_bit=self.sixteen_bit or sixteen_bit,
            exif=exif if self.exif is None else self.exif,
            max_pixels=max_pixels if self.max_pixels is None else self.max_pixels,
        )
        least = filled.size or (filled.shorter or 1, filled.shorter or 1)
        check_asked(least if filled.crop is None else filled.crop.at_least(), filled.max_pixels or max_pixels)
        return filled

    def is_for(self, name: str) -> bool:
        """Return whether fields of this name may be decoded."""
        if self.fields is not None:
            return ends_with(name, self.fields)
        last = extension(name)
        if last in _BY_PLUGIN:
            return "." + last in Image.EXTENSION
        return last in IMAGE_EXTENSIONS or last in _MAYBE_IMAGE

    def may_be_for(self, name: str) -> bool:
        """Return whether it may decode such fields, perhaps with a plug-in."""
        return self.is_for(name) or (self.fields is None and extension(name) in _BY_PLUGIN)

    def _claims(self, name: str, data: bytes) -> bool:
        if self.fields is None and extension(name) in _MAYBE_IMAGE:
            return ending_by_sign(data) in ("jpg", "png")
        return self.is_for(name)


def imagehandler(
    spec: ImageSpecName,
    extensions: str | Iterable[str] | None = None,
    *,
    size: int | Size | None = None,
    shorter: int | None = None,
    sixteen_bit: SixteenBit | None = None,
    exif: bool | None = None,
    max_pixels: int | None = None,
    crop: Crop | None = None,
) -> ImageHandler:
    """Return a handler that decodes image fields by `spec`, all or some.

    ==================================  ==========================================================
    ``l8 rgb8 rgba8``                   ndarray, uint8 0..255, (H, W), (H, W, 3), (H, W, 4)
    ``l rgb rgba``                      ndarray, float32 0..1, same shapes
    ``torchl8 torchrgb8 torchrgba8``    tensor, uint8 0..255, (H, W), (3, H, W), (4, H, W)
    ``torchl torchrgb torchrgba``       tensor, float32 0..1, same shapes; ``torch`` and
                                        ``rgbtorch`` are ``torchrgb``
    ``pill pil pilrgb pilrgba``         PIL image in mode L, RGB, RGB, RGBA
    ``mask torchmask``                  ndarray or tensor (H, W) of the numbers as stored: palette
                                        indexes, class ids, 16-bit depth; resized by nearest value
    ==================================  ==========================================================

    Takes:
        spec: One of the names above.
        extensions: Fields to decode, such as ``"trimap.png"``; every image field if None. Put a handler with
            `extensions` before a spec for all images: the first one with the field decodes it.
        size, shorter, crop, sixteen_bit, exif, max_pixels: As for `Decoder`; those not given are taken from there.

    Raises:
        UsageError: Unknown spec, or options that contradict each other.

    Example:
        >>> from torchdata_ais.codecs import Decoder
        >>> decode = Decoder(imagehandler("mask", "trimap.png"), "torchrgb8", size=224)
    """
    if spec not in IMAGE_SPECS:
        specs = [*IMAGE_SPECS, "audio", "video"]
        hint = did_you_mean(str(spec), specs) or f"The specs are {' '.join(specs)}"
        raise UsageError.at(f"there is no spec {spec!r} for decoding", todo=hint)
    check_sixteen_bit(sixteen_bit)
    check_number(max_pixels, 1, "max_pixels", optional=True)
    fields = None if extensions is None else names(extensions, "the extensions")
    check_one_size(size, shorter, crop)
    pair = checked_size(size, shorter)
    return ImageHandler(spec, fields, pair, shorter, sixteen_bit, exif, max_pixels, crop)


def check_one_size(size: object, shorter: object, crop: object) -> None:
    """Raise `UsageError` if a size and a crop are given, or a wrong crop."""
    if crop is not None and not isinstance(crop, Crop):
        raise UsageError.at(
            f"crop={crop!r:.60} is no crop",
            todo="pass RandomResizedCrop(224), CenterCrop(224) or ResizeCrop(256, 224)",
        )
    if crop is not None and (size is not None or shorter is not None):
        name = "size" if size is not None else "shorter"
        raise UsageError.at(
            f"{name}= and a crop are both given", todo="the crop says the size: leave the other out"
        )


def seed_of_torch() -> int:
    """Return a seed from torch's generator, which loaders seed in each worker."""
    import torch

    return int(torch.empty((), dtype=torch.int64).random_())


def check_sixteen_bit(choice: str | None) -> None:
    """Raise `UsageError` unless `choice` is one."""
    if choice not in (None, "clip", "scale"):
        raise UsageError.at(f'sixteen_bit must be "clip" or "scale", not {choice!r}')


def _pixels(data: bytes, mode: str, options: pillow.Options) -> tuple[NDArray[np.uint8], Frame, int]:
    """Decode to (H, W) or (H, W, C) pixels, and the frame still to be applied."""
    if mode == "RGB" and not (options.exif and (b"Exif\0\0" in data or b"Orientation" in data)):
        fast = decode_rgb(data, options.frame_of, options.max_pixels)
        if fast is not None:
            return fast
    # Pillow weighs colours by alpha when it resizes; torch does not know which channel is alpha.
    image, frame, scale = pillow.load(data, mode, options, resize=mode == "RGBA")
    return np.array(image), frame, scale


@functools.cache
def _simplejpeg() -> Any:
    """Return the module of the extra ``[fast]``, or None."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def decode_rgb(
    data: bytes, frame_of: Callable[[int, int], Frame], max_pixels: int
) -> tuple[NDArray[np.uint8], Frame, int] | None:
    """Decode a plain 8-bit colour JPEG: pixels, frame, shrink factor.

    None leaves it to Pillow: grey, CMYK, damaged or unusual ones, so that results and errors are the same without
    the extra. `frame_of` is called with height and width, before anything is decoded. More than `max_pixels`, as
    stored or as requested, are a `DecodeError`.
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


def _values_to_tensor(values: NDArray[Any]) -> torch.Tensor:
    import torch

    # torch can do little with uint16
    return torch.from_numpy(values.astype(np.int32) if values.dtype == np.uint16 else values)
