"""Images: the specs that say what to decode to, and the handler that does it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais.arguments import check_number, did_you_mean
from torchdata_ais.codecs import jpeg, pillow
from torchdata_ais.codecs.handlers import ends_with, extension, names
from torchdata_ais.codecs.resize import (
    MAX_PIXELS,
    Size,
    check_asked,
    checked_size,
    resize_nearest,
    resize_pixels,
)
from torchdata_ais.errors import UsageError

if TYPE_CHECKING:
    import torch

SixteenBit = Literal["clip", "scale"]


class ImageSpec(NamedTuple):
    """What an image becomes: in which container, as which numbers, in which Pillow mode."""

    container: Literal["numpy", "torch", "pil"]
    numbers: Literal["uint8", "float", "stored"]
    mode: Literal["L", "RGB", "RGBA", "mask"]


IMAGE_SPECS: dict[str, ImageSpec] = {
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

# Left out on purpose, though Pillow knows the names: h5 hdf mpg mpeg fit fits grib bufr wmf emf are data it
# cannot decode, and ps eps are programs that it hands to Ghostscript.
IMAGE_EXTENSIONS = frozenset(
    names(
        "png apng jpg jpeg jpe jfif webp gif bmp dib tif tiff avif jp2 j2k jpc jpf jpx j2c "
        "pbm pgm ppm pnm tga icb vda vst ico cur icns psd dds sgi rgb rgba bw ras pcx dcx pcd "
        "blp fli flc ftc ftu gbr im iim msp pxr xbm xpm"
    )
)

# Names that writers of WebDataset shards give to JPEGs, and that others use for disk images and scans:
# taken for an image only if the bytes are one.
_MAYBE_IMAGE = frozenset(["img", "image"])
SURE_SIGNS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True)
class ImageHandler:
    """Decodes image fields as one spec says; made by `imagehandler`.

    Options that are None are taken from the decoding stage the handler is given to.
    """

    spec: str
    fields: tuple[str, ...] | None = None
    size: Size | None = None
    shorter: int | None = None
    sixteen_bit: SixteenBit | None = None
    exif: bool | None = None
    max_pixels: int | None = None

    def __call__(self, name: str, data: bytes) -> Any:
        """Return the decoded image, or None where `name` is not one of the fields."""
        return self.decode(data) if self._claims(name, data) else None

    def decode(self, data: bytes) -> Any:
        """Decode one image: `data` is the file."""
        container, numbers, mode = IMAGE_SPECS[self.spec]
        most = MAX_PIXELS if self.max_pixels is None else self.max_pixels
        options = pillow.Options(self.size, self.shorter, self.sixteen_bit == "scale", bool(self.exif), most)
        if container == "pil" and not (self.size or self.shorter):
            return pillow.load(data, mode, options, resize=False)[0]
        if mode == "mask":
            values = resize_nearest(*pillow.load_mask(data, options))
            return values if container == "numpy" else _values_to_tensor(values)
        pixels, target = _pixels(data, mode, options)
        if container == "torch":
            return _planes_to_tensor(resize_pixels(pixels, target), numbers == "float")
        if pixels.shape[:2] != target:
            planes = resize_pixels(pixels, target)
            pixels = (planes if planes.ndim == 2 else planes.permute(1, 2, 0)).numpy()
        if container == "pil":
            return Image.fromarray(pixels)
        return np.divide(pixels, np.float32(255), dtype=np.float32) if numbers == "float" else pixels

    def filled(
        self, size: Size | None, shorter: int | None, sixteen_bit: SixteenBit, exif: bool, max_pixels: int
    ) -> ImageHandler:
        """Return the handler with these options where it has none of its own."""
        own_size = self.size is not None or self.shorter is not None
        filled = replace(
            self,
            size=self.size if own_size else size,
            shorter=self.shorter if own_size else shorter,
            sixteen_bit=self.sixteen_bit or sixteen_bit,
            exif=exif if self.exif is None else self.exif,
            max_pixels=max_pixels if self.max_pixels is None else self.max_pixels,
        )
        check_asked(filled.size, filled.shorter, filled.max_pixels or max_pixels)
        return filled

    def _claims(self, name: str, data: bytes) -> bool:
        if self.fields is not None:
            return ends_with(name, self.fields)
        last = extension(name)
        return last in IMAGE_EXTENSIONS or (last in _MAYBE_IMAGE and data.startswith(SURE_SIGNS))


def imagehandler(
    spec: str,
    extensions: str | Iterable[str] | None = None,
    *,
    size: int | Size | None = None,
    shorter: int | None = None,
    sixteen_bit: SixteenBit | None = None,
    exif: bool | None = None,
    max_pixels: int | None = None,
) -> ImageHandler:
    """Return a handler that decodes images as `spec` says, for all image fields or for some.

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
            `extensions` before a spec for all images: the first one that knows the field decodes it.
        size, shorter, sixteen_bit, exif, max_pixels: As for `build_decoder`; those not given are taken from there.

    Raises:
        UsageError: Unknown spec, or options that contradict each other.

    Example:
        >>> from torchdata_ais.codecs import build_decoder
        >>> decode = build_decoder(imagehandler("mask", "trimap.png"), "torchrgb8", size=224)
    """
    if spec not in IMAGE_SPECS:
        specs = [*IMAGE_SPECS, "audio", "video"]
        hint = did_you_mean(str(spec), specs) or f"The specs are {' '.join(specs)}"
        raise UsageError.at(f"there is no spec {spec!r} for decoding", todo=hint)
    check_sixteen_bit(sixteen_bit)
    check_number(max_pixels, 1, "max_pixels", optional=True)
    fields = None if extensions is None else names(extensions, "the extensions")
    return ImageHandler(spec, fields, checked_size(size, shorter), shorter, sixteen_bit, exif, max_pixels)


def check_sixteen_bit(choice: str | None) -> None:
    """Raise `UsageError` unless `choice` is one."""
    if choice not in (None, "clip", "scale"):
        raise UsageError.at(f'sixteen_bit must be "clip" or "scale", not {choice!r}')


def _pixels(data: bytes, mode: str, options: pillow.Options) -> tuple[NDArray[np.uint8], Size]:
    """Decode to (H, W) or (H, W, C) pixels and the size they are still to be resized to."""
    if mode == "RGB" and not (options.exif and (b"Exif\0\0" in data or b"Orientation" in data)):
        fast = jpeg.decode_rgb(data, options.size, options.shorter, options.max_pixels)
        if fast is not None:
            return fast
    # Pillow weighs colours by alpha when it resizes; torch does not know which channel is alpha.
    image, target = pillow.load(data, mode, options, resize=mode == "RGBA")
    return np.array(image), target


def _planes_to_tensor(planes: torch.Tensor, as_float: bool) -> torch.Tensor:
    """Make (H, W) or (C, H, W) contiguous, and a fraction of 255 if asked for."""
    import torch

    planes = planes.contiguous()
    return planes.to(torch.float32).div_(255) if as_float else planes


def _values_to_tensor(values: NDArray[Any]) -> torch.Tensor:
    import torch

    # torch can do little with uint16
    return torch.from_numpy(values.astype(np.int32) if values.dtype == np.uint16 else values)
