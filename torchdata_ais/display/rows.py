"""Samples and batches of any shape to rows, and in each row the image, its label and its mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from torchdata_ais.codecs import IMAGE_EXTENSIONS, FieldTable
from torchdata_ais.codecs.pillow import open_image
from torchdata_ais.display.pixels import as_array, is_image, is_planar, to_mask
from torchdata_ais.errors import UsageError

Row = Mapping[Any, Any]
"""One sample: values by the names of their fields, or by their positions in a tuple."""

_CAPTIONS = ("txt", "text", "caption")
_CLASSES = ("cls", "label", "class")
_LABELS = (*_CLASSES, *_CAPTIONS, "index", "id")
_MASKS = ("trimap", "mask", "seg")
MASK_VALUES = 32
"""An image with more different values than this is not taken for a mask."""


class Choice(NamedTuple):
    """Which fields to show; None is found by itself, False for label and mask is left out."""

    image: str | int | None = None
    label: str | int | bool | None = None
    mask: str | int | bool | None = None


class Found(NamedTuple):
    """What there is to show of one sample."""

    image: Any
    label: Any
    mask: Any
    caption: Any = None


def rows_of(data: Any, count: int) -> list[Row]:
    """Return the first rows of a sample, a list of samples, or a batch of columns."""
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


def find(row: Row, choice: Choice) -> Found:
    """Return image, label and mask of a row.

    Raises:
        UsageError: No image in it, or no field of a name given.
    """
    shown = {name: shown_as(name, value) for name, value in row.items() if not str(name).startswith("__")}
    images = [name for name, value in shown.items() if is_image(value)]
    masks = [name for name in images if is_mask_name(name)]
    image = choice.image
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
        _chosen({**shown, **key}, choice.label, "label", lambda: _label(row, shown)),
        _chosen(shown, choice.mask, "mask", lambda: _mask(shown, masks or images, image)),
        _named(shown, _CAPTIONS) if choice.label is None and _named(shown, _CLASSES) is not None else None,
    )


def _chosen(shown: Row, wanted: str | int | bool | None, role: str, guess: Callable[[], Any]) -> Any:
    """Return the field that is wanted, what is guessed if none is named, or None."""
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


def _label(row: Row, shown: Row) -> Any:
    best = _named(shown, _LABELS)
    if best is not None:
        return best
    if "__key__" in row:
        return row["__key__"]
    return next((value for value in shown.values() if _is_scalar(value)), None)


def _named(shown: Row, words: Sequence[str]) -> Any:
    """Return the first scalar whose name, or its ending, is one of `words`."""
    by_name = (name for word in words for name in shown if str(name).rpartition(".")[2] == word)
    return next((shown[name] for name in by_name if _is_scalar(shown[name])), None)


def _mask(shown: Row, candidates: list[Any], image: Any) -> Any:
    size = _size(shown[image])
    for name in candidates:
        if (
            name != image
            and _size(shown[name]) == size
            and len(np.unique(to_mask(shown[name]))) <= MASK_VALUES
        ):
            return shown[name]
    return None


def is_mask_name(name: Any) -> bool:
    """Return whether a field is called as masks are."""
    return any(word in str(name).lower() for word in _MASKS)


def shown_as(name: Any, value: Any) -> Any:
    """Return what the bytes of a raw sample stand for, as far as it is needed here."""
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


def _dimensions(value: Any) -> int:
    return len(getattr(value, "shape", ()))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) or (hasattr(value, "shape") and value.shape in ((), (1,)))


def _is_column(value: Any) -> bool:
    """Return whether this holds one value for each of several samples."""
    if isinstance(value, list | tuple):
        kinds = {is_image(item) for item in value} if value else set()
        return kinds == {True} or (kinds == {False} and all(_is_scalar(item) for item in value))
    return _dimensions(value) == 4 or (
        _dimensions(value) in (1, 3) and not is_image(value) and value.shape != (1,)
    )


def _is_batch(data: Mapping[Any, Any]) -> bool:
    key = data.get("__key__")
    return isinstance(key, list | tuple) or (
        key is None and any(_is_column(value) for value in data.values())
    )


def _of_columns(columns: dict[Any, Any], count: int) -> Iterator[Row]:
    """Yield rows. A column is what has as many values as the others; anything else belongs to every row."""
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


def text_of(label: Any, classes: Sequence[str] | Mapping[Any, Any] | None) -> str:
    """Return a label in one line; numbers by the names of their classes."""
    array = as_array(label)
    if array is not None and array.size == 1:
        label = array.item()
    if isinstance(label, bytes):
        label = label.decode("utf-8", "replace")
    if classes is not None and isinstance(label, int | float | str):
        with suppress(IndexError, ValueError):
            names = classes if isinstance(classes, Sequence) else _by_number(classes)
            label = (
                names[int(label)]
                if isinstance(names, Sequence)
                else names.get(label, names.get(str(label), label))
            )
    return "" if label is None else " ".join(str(label).split())


def _by_number(classes: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return names by their number, also of a table from names to numbers, as torchvision's ``class_to_idx`` is."""
    turned = classes and all(
        isinstance(name, str) and isinstance(number, int) for name, number in classes.items()
    )
    return {number: name for name, number in classes.items()} if turned else classes
