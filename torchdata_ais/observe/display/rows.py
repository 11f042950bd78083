"""Rows of images, labels and masks from samples and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais.codecs import IMAGE_EXTENSIONS, FieldTable
from torchdata_ais.codecs.handlers import ending_by_sign
from torchdata_ais.codecs.pillow import open_image
from torchdata_ais.errors import UsageError

_CHANNELS = (1, 3, 4)
_TOLERANCE = 1e-3  # error of resizing on a range that was 0 to 1

# Colours of mask values 1, 2, 3 ..., distinct also for colour-blind readers; 0 is left as it is.
_PALETTE = [
    (230, 159, 0),
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (240, 228, 66),
    (86, 180, 233),
]


def as_array(value: object) -> NDArray[Any] | None:
    """Return a tensor or array as an array, copied if need be; else None."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # a tensor, checked without importing torch
        tensor = value.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.float()  # bfloat16 has no array
        array: NDArray[Any] = tensor.numpy()
        return array
    return None


def is_image(value: object) -> bool:
    """Return whether this is an image: Pillow's, a file's bytes, or an array."""
    if isinstance(value, bytes | bytearray):
        return ending_by_sign(value) in IMAGE_EXTENSIONS
    if isinstance(value, Image.Image):
        return True
    shape: Sequence[int] = getattr(value, "shape", ())
    if len(shape) == 2:
        return min(shape) > 1
    return len(shape) == 3 and (shape[0] in _CHANNELS or shape[2] in _CHANNELS)


def is_planar(value: Any) -> bool:
    """Report whether the channels of this image come first, as in torch."""
    first, last = value.shape[0] in _CHANNELS, value.shape[2] in _CHANNELS
    return bool(first and (not last or hasattr(value, "detach")))


def to_picture(value: object, mean: Sequence[float] | None, std: Sequence[float] | None) -> Image.Image:
    """Return an image (of Pillow, of a file's bytes, an array) in RGB.

    `mean` was subtracted from each channel, in the range 0 to 1, and it was divided by `std`. Without them floats from
    0 to 1 and numbers from 0 to 255 are taken as they are; any other range is stretched, each image by itself, so that
    a normalised image is recognisable.
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


def to_mask(value: object) -> NDArray[np.uint8]:
    """Return a mask as H x W numbers, also one decoded as a picture (k/255)."""
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
    """Return an image in RGB, transparent pixels on white."""
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


Row = Mapping[Any, Any]
"""One sample: values by field name, or by position in a tuple."""

_CAPTIONS = ("txt", "text", "caption")
_CLASSES = ("cls", "label", "class")
_LABELS = (*_CLASSES, *_CAPTIONS, "index", "id")
_MASKS = ("trimap", "mask", "seg")
MASK_VALUES = 32
"""An image with more different values than this is not taken for a mask."""


class Found(NamedTuple):
    """Displayed parts of one sample."""

    image: object
    label: object
    mask: object
    caption: object = None


def rows_of(data: Any, count: int) -> list[Row]:
    """Return the first rows of a sample, a list of samples, or a batch."""
    if isinstance(data, Mapping):
        return list(_of_columns(dict(data), count)) if _is_batch(data) else [data]
    if is_image(data):
        return [{0: data}]
    if _dimensions(data) >= 3:
        return [{0: image} for image in data[:count]]
    if not isinstance(data, list | tuple):
        raise UsageError.at(
            f"an object of type {type(data).__name__} is no sample and no batch",
            todo="pass a dict, a tuple, a list of them, images, or a batch; of an iterator next(iterator), of a loader"
            " display_loader_images(loader), of a shard display_shard_images(...) or torchdata-ais inspect --sheet",
        )
    if not data:
        raise UsageError.at("there is nothing to show: the batch is empty")
    if all(isinstance(item, Mapping) for item in data):
        return list(data[:count])
    if any(_is_column(item) for item in data):
        return list(_of_columns(dict(enumerate(data)), count))
    if all(isinstance(item, list | tuple) for item in data):
        return [dict(enumerate(item)) for item in data[:count]]
    if isinstance(data, list) and all(is_image(item) for item in data):
        return [{0: item} for item in data[:count]]
    return [dict(enumerate(data))]


def find(
    row: Row,
    image: str | int | None = None,
    label: str | int | bool | None = None,
    mask: str | int | bool | None = None,
) -> Found:
    """Return fields of a row; None: detect it, False: omit label or mask."""
    shown = {name: shown_as(name, value) for name, value in row.items() if not str(name).startswith("__")}
    images = [name for name, value in shown.items() if is_image(value)]
    masks = [name for name in images if is_mask_name(name)]
    if image is None:
        image = next((name for name in images if name not in masks), images[0] if images else None)
    if image is None or image not in shown:
        wanted = "image" if image is None else f"field {image!r}"
        raise UsageError.at(
            f"no {wanted} in the sample; it has {', '.join(map(str, row)) or 'no field'}",
            todo="name the field with image=",
            key=row.get("__key__"),
        )
    key = {"__key__": row["__key__"]} if "__key__" in row else {}
    return Found(
        shown[image],
        _chosen({**shown, **key}, label, "label", lambda: _label(row, shown)),
        _chosen(shown, mask, "mask", lambda: _mask(shown, masks or images, image)),
        _named(shown, _CAPTIONS) if label is None and _named(shown, _CLASSES) is not None else None,
    )


def _chosen(shown: Row, wanted: str | int | bool | None, role: str, guess: Callable[[], object]) -> object:
    """Return the named field, the guessed one if none is named, or None."""
    if wanted is False:
        return None
    if wanted is None or wanted is True:
        return guess()
    if wanted not in shown:
        raise UsageError.at(
            f"no field {wanted!r} for {role}= in the sample; it has {', '.join(map(str, shown))}",
            todo=f"name one of these, or pass {role}=False",
        )
    return shown[wanted]


def _label(row: Row, shown: Row) -> object:
    best = _named(shown, _LABELS)
    if best is not None:
        return best
    if "__key__" in row:
        return row["__key__"]
    return next((value for value in shown.values() if _is_scalar(value)), None)


def _named(shown: Row, words: Sequence[str]) -> object:
    """Return the first scalar whose name, or its ending, is one of `words`."""
    by_name = (name for word in words for name in shown if str(name).rpartition(".")[2] == word)
    return next((shown[name] for name in by_name if _is_scalar(shown[name])), None)


def _mask(shown: Row, candidates: Iterable[object], image: object) -> object:
    size = _size(shown[image])
    for name in candidates:
        if (
            name != image
            and _size(shown[name]) == size
            and len(np.unique(to_mask(shown[name]))) <= MASK_VALUES
        ):
            return shown[name]
    return None


def is_mask_name(name: object) -> bool:
    """Return whether a field is called as masks are."""
    return any(word in str(name).lower() for word in _MASKS)


def shown_as(name: object, value: object) -> Any:
    """Return the decoded bytes of a raw sample, as far as needed here."""
    if not isinstance(value, bytes):
        return value
    ending = str(name).rpartition(".")[2].lower()
    if ending in IMAGE_EXTENSIONS or is_image(value):
        return open_image(value)
    if ending in ("label", "caption"):
        return value.decode("utf-8", "replace")
    return FieldTable()(f".{ending}", value) if ending in ("npy", *_LABELS) else value


def _size(value: Any) -> tuple[int, int]:
    """Return height and width."""
    if isinstance(value, Image.Image):
        return value.height, value.width
    shape = tuple(value.shape)
    if len(shape) == 2:
        return shape
    return shape[1:] if is_planar(value) else shape[:2]


def _dimensions(value: object) -> int:
    return len(getattr(value, "shape", ()))


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) or (hasattr(value, "shape") and value.shape in ((), (1,)))


def _is_column(value: Any) -> bool:
    """Return whether this holds one value for each of several samples."""
    if isinstance(value, list | tuple):
        kinds = {is_image(item) for item in value} if value else set()
        return kinds == {True} or (kinds == {False} and all(_is_scalar(item) for item in value))
    return _dimensions(value) == 4 or (
        _dimensions(value) in (1, 3) and not is_image(value) and value.shape != (1,)
    )


def _is_batch(data: Mapping[Any, object]) -> bool:
    key = data.get("__key__")
    return isinstance(key, list | tuple) or (
        key is None and any(_is_column(value) for value in data.values())
    )


def _of_columns(columns: dict[Any, Any], count: int) -> Iterator[Row]:
    """Yield rows; a value without the length of columns belongs to each."""
    sized = {
        name: column
        for name, column in columns.items()
        if isinstance(column, list | tuple) or _dimensions(column) >= 1
    }
    lengths = [len(column) for column in sized.values() if _is_column(column)]
    length = max(set(lengths), key=lengths.count)
    split = {name: column for name, column in sized.items() if len(column) == length}
    for index in islice(range(length), count):
        yield {name: column[index] if name in split else column for name, column in columns.items()}


def text_of(label: object, classes: Sequence[str] | Mapping[Any, object] | None) -> str:
    """Return a label in one line; numbers by the names of their classes."""
    array = as_array(label)
    if array is not None and array.size == 1:
        label = array.item()
    if isinstance(label, bytes):
        label = label.decode("utf-8", "replace")
    if classes is not None and isinstance(label, int | float | str):
        with suppress(IndexError, ValueError):
            if isinstance(classes, Sequence):
                label = classes[int(label)]
            else:
                names = _by_number(classes)
                label = names.get(label, names.get(str(label), label))
    return "" if label is None else " ".join(str(label).split())


def _by_number(classes: Mapping[Any, object]) -> Mapping[Any, object]:
    """Return names by number, also of torchvision's ``class_to_idx``."""
    turned = classes and all(
        isinstance(name, str) and isinstance(number, int) for name, number in classes.items()
    )
    return {number: name for name, number in classes.items()} if turned else classes
