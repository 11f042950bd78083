"""Encoder: samples of values to samples of bytes."""

from __future__ import annotations

import gzip
import io
import json
import operator
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais._util.arguments import check_function
from torchdata_ais._util.versions import require
from torchdata_ais.codecs import tenbin
from torchdata_ais.codecs.handlers import INTEGER, by_name, ends_with, extension
from torchdata_ais.errors import NEVER_SKIPPED, AISError, EncodeError, EncodeUsageError, UsageError


class Format(NamedTuple):
    """A format of Pillow, and the modes whose channels and depth it keeps."""

    name: str
    modes: tuple[str, ...]


_JPEG = Format("JPEG", ("L", "RGB", "CMYK"))
_TIFF = Format("TIFF", ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"))

FORMATS: dict[str, Format] = {
    **dict.fromkeys(["jpg", "jpeg", "jpe", "jfif", "jfi", "pjpeg", "pjpg", "pjp", "img", "image"], _JPEG),
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


def encode_image(value: object, extension: str, quality: int = 100) -> bytes:
    """Encode an image in the format of `extension`, one of `FORMATS`.

    It is a PIL image, an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or a tensor (H, W) or (C, H, W). Numbers are
    uint8 0..255, bool, floats 0..1 (rounded to the nearest of 256 levels), or uint16 in (H, W). A WebP of quality 100
    is lossless.

    Raises:
        TypeError: The value is not an image.
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


def _to_pil(value: object) -> Image.Image:
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


Encoder = Callable[[dict[str, Any]], dict[str, Any]]
"""Function from a sample to one with bytes; fields with ``_`` in front are unchanged."""
EncoderSpec = bool | Mapping[str, Callable[[Any], object]] | Encoder | None
"""Argument of `build_encoder`: whether to encode, functions by field, or one for samples."""


@dataclass(frozen=True)
class FieldEncoder:
    """Encodes every field of a sample; made by `build_encoder`. Picklable."""

    custom: Mapping[str, Callable[[Any], object]] | None = None
    bytes_only: bool = False
    allow_pickle: bool = False
    quality: int = 100
    allow_nan: bool = False

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a new dict with the encoded fields."""
        return {
            field: value if field.startswith("_") else self._field(sample, field, value)
            for field, value in sample.items()
        }

    def _field(self, sample: dict[str, Any], field: str, value: object) -> bytes:
        try:
            return self.encode_field(field, value)
        except Exception as error:
            kind: type[AISError] = EncodeError
            if isinstance(error, NEVER_SKIPPED):
                if not isinstance(error, AISError) or error.place:
                    raise
                kind = type(error)
            key = sample.get("__key__")
            other = (
                "words go into txt"
                if isinstance(value, str)
                else "a name such as json or npy takes other values"
            )
            raise kind.at(
                f"field {field!r} of sample {key!r} cannot be written: {error or type(error).__name__}",
                todo=f"pass bytes, or what .{field} holds; {other}",
                url=sample.get("__url__"),
                key=key,
                field=field,
            ) from (error.with_traceback(None) if self.custom is None else error)  # without our own frames

    def encode_field(self, field: str, value: object) -> bytes:
        """Return the bytes of one field.

        Raises `ValueError` or `TypeError` if the format of the field's name cannot hold the value.
        """
        zipped = not self.bytes_only and field.lower().endswith(".gz")
        name = field[:-3] if zipped else field
        if isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(value)
            if data[:3] == _GZIP_MAGIC:  # copied from another shard as it was: once is enough
                return data
        elif self.bytes_only:
            if not isinstance(value, str):
                raise TypeError(f"it is {type(value).__name__}, not bytes, and encoding is switched off")
            data = value.encode("utf-8")
        elif self.custom is not None:
            data = self._by_custom(self.custom, name, value)
        else:
            data = self._by_table(extension(name), value)
        return gzip.compress(data, mtime=0) if zipped else data

    def _by_custom(self, custom: Mapping[str, Callable[[Any], Any]], name: str, value: object) -> bytes:
        # The longest ending wins: "seg.png" before "png".
        for ending in sorted(custom, key=len, reverse=True):
            if ends_with(name, [ending.lower().lstrip(".")]):
                data = custom[ending](value)
                return data.encode("utf-8") if isinstance(data, str) else bytes(data)
        if isinstance(value, str):
            return value.encode("utf-8")
        raise ValueError(f"the encoder has no entry for it, only for {' '.join(custom)}")

    def _by_table(self, last: str, value: object) -> bytes:
        if last in FORMATS:
            return encode_image(value, last, self.quality)
        encode = _ENCODERS.get(last)
        if encode is not None:
            return encode(value, self)
        if isinstance(value, str):
            return value.encode("utf-8")
        raise ValueError(
            f"no encoder for .{last} takes {type(value).__name__}; pass bytes, or encoder={{...}}"
        )


def build_encoder(
    spec: EncoderSpec = True,
    *,
    allow_pickle: bool = False,
    quality: int = 100,
    allow_nan: bool = False,
) -> Encoder:
    """Return the function that turns the values of a sample into bytes.

    bytes, bytearrays and memoryviews pass as they are in any field; ``.gz`` at the end of a name compresses
    uncompressed data, with reproducible bytes. A str is UTF-8, also in fields that are not in the table; in ``json``
    and ``cls`` it is the text of the file and must be valid as such.

    Takes:
        spec: True for the table of `FieldTable`, images included; False or None for samples of bytes and str;
            a dict from endings to functions of the value; or a function of the whole sample.
        allow_pickle: Let ``pkl`` fields be pickled: readers must run code to load them.
        quality: For JPEG and WebP, 1 to 100; WebP at 100 is lossless.
        allow_nan: Let NaN and infinities into ``json`` fields, where strict readers refuse them.

    Raises:
        UsageError: `spec` is something else, or `quality` out of range.

    Example:
        >>> encode = build_encoder()
        >>> encode({"__key__": "000", "cls": 7, "json": {"a": [1, 2]}, "txt": "cat"})
        {'__key__': '000', 'cls': b'7', 'json': b'{"a": [1, 2]}', 'txt': b'cat'}
    """
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise UsageError.at(f"quality must be 1 to 100, not {quality!r}")
    if spec is True:
        return FieldEncoder(allow_pickle=allow_pickle, quality=quality, allow_nan=allow_nan)
    if spec is False or spec is None:
        return FieldEncoder(bytes_only=True)
    if isinstance(spec, Mapping):
        for ending, function in spec.items():
            if not isinstance(ending, str):
                raise UsageError.at(
                    f"an encoder has {ending!r} for an ending", todo='write it as in {"cls": str}'
                )
            check_function(function, 1, f"the encoder of {ending!r}")
        return FieldEncoder(custom=dict(spec))
    if callable(spec):
        check_function(spec, 1, "encoder=")
        return spec
    raise UsageError.at(f"an encoder is True, False, a dict of functions or a function, not {spec!r}")


_GZIP_MAGIC = b"\x1f\x8b\x08"


def _text(value: object, _: FieldEncoder) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a text field takes str, not {type(value).__name__}")
    return value.encode("utf-8")


def _integer(value: Any, _: FieldEncoder) -> bytes:
    if isinstance(value, str):
        if not INTEGER.fullmatch(value.encode("utf-8", "surrogatepass")):  # as the reader will parse it
            raise ValueError(f"{value!r:.60} is no whole number, as the number of a class is")
        return value.encode("ascii")
    if isinstance(value, (float, np.floating)):  # pandas makes them of integers with gaps
        if not float(value).is_integer():
            raise ValueError(f"{value!r:.60} is no whole number")
        value = int(value)
    return str(int(operator.index(value))).encode("ascii")


def _plain(value: Any) -> object:
    """Turn numpy scalars, arrays and tensors into Python numbers and lists."""
    if isinstance(value, (np.generic, np.ndarray)) or hasattr(value, "detach"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def _json(value: object, options: FieldEncoder) -> bytes:
    if isinstance(value, str):  # already JSON, as users of WebDataset pass it; anything else is a mistake
        _check_json(value, options)
        return value.encode("utf-8")
    return _dumped(value, options).encode("utf-8")


def _jsonl(value: Any, options: FieldEncoder) -> bytes:
    if isinstance(value, str):
        for line in value.split("\n"):
            if line.strip():
                _check_json(line, options)
        return value.encode("utf-8")
    return "".join(_dumped(item, options) + "\n" for item in value).encode("utf-8")


def _dumped(value: Any, options: FieldEncoder) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=options.allow_nan)
    except ValueError as error:
        raise _no_json() if "Out of range float" in str(error) else error from None


def _check_json(text: str, options: FieldEncoder) -> None:
    """Raise `ValueError` unless this is JSON."""

    def refuse(_: str) -> None:
        if not options.allow_nan:
            raise _no_json()

    json.loads(text, parse_constant=refuse)


def _no_json() -> ValueError:
    return ValueError(
        "NaN and Infinity are not JSON, and strict readers refuse them; write None, or pass allow_nan=True"
    )


def _array(value: object) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _npy(value: object, options: FieldEncoder) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), allow_pickle=options.allow_pickle)
    return stream.getvalue()


def _npz(value: object, options: FieldEncoder) -> bytes:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError("an npz field takes a dict from names to arrays")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in value.items():
            # ZipInfo without a date has a fixed one: the same arrays give the same bytes.
            member = zipfile.ZipInfo(name + ".npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, _npy(array, options))
    return stream.getvalue()


def _ten(value: object, _: FieldEncoder) -> bytes:
    arrays = value if isinstance(value, (list, tuple)) else [value]
    return tenbin.dumps([_array(array) for array in arrays])


def _msgpack(value: object, _: FieldEncoder) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(value, enc_hook=_plain)


def _cbor(value: object, _: FieldEncoder) -> bytes:
    data: bytes = require("cbor2", "a cbor field").dumps(
        value, default=lambda encoder, item: encoder.encode(_plain(item))
    )
    return data


def _torch(value: object, _: FieldEncoder) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _pickle(value: object, options: FieldEncoder) -> bytes:
    if not options.allow_pickle:
        raise EncodeUsageError(
            "readers must run code to load a pickle; pass allow_pickle=True, or use json, npy or msgpack"
        )
    return pickle.dumps(value)


_ENCODERS: dict[str, Callable[[Any, FieldEncoder], bytes]] = by_name(
    {
        "text": _text,
        "integer": _integer,
        "json": _json,
        "jsonl": _jsonl,
        "npy": _npy,
        "npz": _npz,
        "ten": _ten,
        "msgpack": _msgpack,
        "cbor": _cbor,
        "torch": _torch,
        "pickle": _pickle,
    }
)
