"""Decoder of samples: handlers for fields, and errors with the place."""

from __future__ import annotations

import copy
import functools
import logging
import os
import re
from collections.abc import Iterable
from multiprocessing import current_process
from typing import Any, Literal, cast

from torchdata_ais._util.arguments import check_function, check_number, check_text, checked
from torchdata_ais._util.versions import require
from torchdata_ais.codecs.crop import Crop, crop_of
from torchdata_ais.codecs.handlers import (
    FIELD_KINDS,
    MAX_GZ_BYTES,
    Continue,
    Decoded,
    GzipFilter,
    Handler,
    Row,
    extension,
    nowhere,
)
from torchdata_ais.codecs.image import (
    ImageHandler,
    ImageSpecName,
    SixteenBit,
    check_one_size,
    check_sixteen_bit,
    imagehandler,
    seed_of_torch,
)
from torchdata_ais.codecs.media import torch_audio, torch_video
from torchdata_ais.codecs.resize import MAX_PIXELS, Size, checked_size
from torchdata_ais.codecs.table import FieldTable
from torchdata_ais.errors import NEVER_SKIPPED, AISError, DecodeError, DecodeUsageError, UsageError
from torchdata_ais.errors.text import Remedy, in_programs

logger = logging.getLogger("torchdata_ais")

SpecName = ImageSpecName | Literal["audio", "torch_audio", "video", "torch_video"]
"""Names of specs; see `imagehandler`."""

_MEDIA: dict[str, Handler] = {
    "audio": torch_audio,
    "torch_audio": torch_audio,
    "video": torch_video,
    "torch_video": torch_video,
}


class Decoder:
    """Function from samples of bytes to samples of values.

    ``.decode()`` applies it to each sample. It is picklable, and safe to call from several threads at once. It can
    also be the ``transform=`` of a `SampleDataset`.

    Every field that does not begin with ``__`` goes to the handlers in turn: those of `pre` (which unpacks ``.gz``),
    of `specs`, of `post` (the table of `FieldTable`: text, class, json, npy ...). The first value that is not None is
    taken; `Continue` passes its bytes to the next handler; a field without a handler stays bytes.

    Args:
        *specs: Names of image specs (see `imagehandler`), ``"audio"``, ``"video"``, or handlers
            ``(name, data) -> value or None``; the name has a leading dot. Without any, images become PIL
            images.
        only: The exact names of fields to decode; the others stay as they are. Names that seem wrong, by the first
            sample, are logged.
        partial: Leave values alone that are not bytes, instead of failing. None fails in any case.
        pre: Handlers before `specs`, instead of the one for ``.gz``.
        post: Handlers after `specs`, instead of the field table.
        size: Resize images to exactly this many pixels, one number or (height, width), antialiased.
        shorter: Resize images so that the shorter side has this many pixels; the aspect stays.
        crop: `RandomResizedCrop`, `CenterCrop` or `ResizeCrop`: the part is chosen before the image is decoded, and
            counts in the upright image (`exif`). Images and masks of one size in one sample get the same.
        allow_pickle: Load ``pkl``, object arrays and whole objects in ``pt``. They can run code.
        sixteen_bit: The conversion of 16-bit grey images in 8-bit specs: ``"clip"`` cuts at 255 as WebDataset does,
            ``"scale"`` keeps the picture. The spec ``mask`` keeps the values.
        exif: Turn images by their EXIF orientation.
        max_gz_bytes: Most bytes a compressed field may unpack to.
        max_pixels: Most pixels of an image, as stored and as resized; checked before anything is decoded. Above
            178,956,970 ``PIL.Image.MAX_IMAGE_PIXELS`` must be raised, too.
        random_resized_crop: Output size of a `RandomResizedCrop`, in place of `crop`.
        scale: Share of the image's area that it takes, from and to. None: 0.08 to 1.
        ratio: Width by height of that part, from and to. None: 3/4 to 4/3.
        flip: Probability of turning it left to right. None: 0.
        center_crop: Output size of a `CenterCrop`, in place of `crop`.
        resize_crop: Shorter side and output size of a `ResizeCrop`, in place of `crop`.
        frames: Most frames of a video; see `torch_video`.
        seconds: Begin and end of the part of a video.
        every: Take each n-th frame of that part.

    Memory: a decoded field, and the field unpacked, at most `max_gz_bytes` and 2 MiB; while resizing, also the image
    in full size. JPEGs at least twice as large as requested are decoded at half, a quarter or an eighth of it. An
    image takes up to 16 bytes for each of at most `max_pixels` as stored, and as many for each requested one.

    Raises:
        UsageError: Unknown spec, option without an image spec to act on, contradictory sizes.
        MissingLibraryError: ``"audio"`` or ``"video"`` without its extra. (Also an ImportError.)

    Example:
        >>> decode = Decoder("torchrgb8", size=224)
        >>> decode({"__key__": "000", "cls": b"7", "txt": b"a cat", "bin": b"raw"})
        {'__key__': '000', 'cls': 7, 'txt': 'a cat', 'bin': b'raw'}
        >>> train = Decoder("torchrgb8", random_resized_crop=224, scale=(0.08, 1), ratio=(3 / 4, 4 / 3), flip=0.5)
        >>> test = Decoder("torchrgb8", resize_crop=(256, 224))
    """

    __slots__ = (
        "_handlers", "_looks", "_of_field", "_only", "_partial", "_unmatched", "fills_rows", "is_random", "only",
    )  # fmt: skip

    @checked
    def __init__(
        self,
        *specs: SpecName | Handler,
        only: Iterable[str] | str | None = None,
        partial: bool = False,
        pre: Handler | Iterable[Handler] | None = None,
        post: Handler | Iterable[Handler] | None = None,
        size: int | Size | None = None,
        shorter: int | None = None,
        allow_pickle: bool = False,
        sixteen_bit: SixteenBit = "clip",
        exif: bool = False,
        max_gz_bytes: int = MAX_GZ_BYTES,
        max_pixels: int = MAX_PIXELS,
        crop: Crop | None = None,
        random_resized_crop: int | Size | None = None,
        scale: tuple[float, float] | None = None,
        ratio: tuple[float, float] | None = None,
        flip: float | None = None,
        center_crop: int | Size | None = None,
        resize_crop: tuple[int, int | Size] | None = None,
        frames: int | None = None,
        seconds: tuple[float, float] | None = None,
        every: int = 1,
    ) -> None:
        crop = crop_of(
            crop,
            random_resized_crop=random_resized_crop,
            center_crop=center_crop,
            resize_crop=resize_crop,
            scale=scale,
            ratio=ratio,
            flip=flip,
        )
        check_one_size(size, shorter, crop)
        pair = checked_size(size, shorter)
        check_number(max_gz_bytes, 0, "max_gz_bytes")
        check_number(max_pixels, 1, "max_pixels")
        chosen: list[Handler] = [_handler(spec) for spec in specs] if specs else [imagehandler("pil")]
        if not any(isinstance(handler, ImageHandler) for handler in chosen):
            options = {
                "size": size,
                "shorter": shorter,
                "crop": crop,
                "exif": exif,
                "sixteen_bit": sixteen_bit != "clip",
            }
            for name in [name for name, given in options.items() if given]:
                raise UsageError.at(
                    f"{name}= has no image spec to act on", todo='Add one, such as "torchrgb8"'
                )
        chosen = _with_part(chosen, frames, seconds, every)
        check_sixteen_bit(sixteen_bit)
        filled = [
            handler.filled(pair, shorter, crop, sixteen_bit, exif, max_pixels)
            if isinstance(handler, ImageHandler)
            else handler
            for handler in chosen
        ]
        self._handlers = (
            *_several(pre, GzipFilter(max_gz_bytes), "pre"),
            *filled,
            *_several(post, FieldTable(allow_pickle, max_gz_bytes), "post"),
        )
        self._of_field: dict[str, tuple[Handler, ...]] = {}
        self.only = _names(only)
        self._only = (
            None if self.only is None else frozenset([*self.only, *(name.lstrip(".") for name in self.only)])
        )
        self._unmatched = {
            spec: handler for spec, handler in zip(specs, filled, strict=False) if isinstance(spec, str)
        }
        self._looks = _LOOKS if self._unmatched or self._only is not None else 0
        self._partial = partial
        images = [one for one in self._handlers if isinstance(one, ImageHandler)]
        self.is_random = any(one.is_random for one in images)
        self.fills_rows = any(one.has_one_shape for one in images)

    def __call__(
        self, sample: dict[str, Any], seed: int | None = None, row: Row | None = None
    ) -> dict[str, Any]:
        """Return a new sample of the same class with decoded values.

        Its attributes are the same.

        Args:
            sample: Fields as bytes.
            seed: The seed of random crops. None draws it from torch's generator, as torchvision does; ``.decode()``
                passes one for each sample.
            row: The place for images of one size; ``.decode()`` upstream of ``.batched()`` passes those of the next
                batch.

        Raises:
            DecodeError: A field cannot be decoded. It has the field, the key of the sample, its object and offset,
                and advice; the cause is chained.
            UsageError: No sample can be decoded like this: `DecodeUsageError` (a pickle, a value that is not bytes),
                `MissingLibraryError`.
        """
        if not isinstance(sample, dict):
            raise UsageError.at(
                f"decoding takes samples, which are dicts, not {type(sample).__name__}",
                todo="Put it after .group_samples() and before .to_tuple()",
            )
        if seed is None and self.is_random:
            seed = seed_of_torch()
        decoded = copy.copy(sample)
        for field, value in sample.items():
            if field[:2] == "__":
                if isinstance(value, bytes):
                    decoded[field] = _text_or_bytes(value)
            elif self._only is None or field in self._only:
                if isinstance(value, bytes):
                    if self._of_field.get(field) != ():
                        decoded[field] = self._decode(sample, field, value, seed, row)
                elif isinstance(value, (bytearray, memoryview)):
                    decoded[field] = self._decode(sample, field, bytes(value), seed, row)
                elif isinstance(sample.get("__key__"), list):
                    raise UsageError.at("decoding was given a batch, not a sample", todo=_BATCH)
                elif not self._partial or value is None:
                    kind = DecodeError if value is None else DecodeUsageError
                    why = f"its value is {type(value).__name__}, not bytes"
                    raise _failure(kind, sample, field, why, _PARTIAL)
        if self._looks:
            self._compare(sample)
        return decoded

    def _compare(self, sample: dict[str, Any]) -> None:
        """Log once if `only` or a spec seems wrong for the first samples."""
        if self._looks == _LOOKS and self.only is not None:
            self._compare_only(sample, self.only)
        self._looks -= 1
        fields = [name for name in sample if name[:2] != "__"]
        before = self._unmatched
        left = {
            spec: handler
            for spec, handler in before.items()
            if not any(is_for(handler, name) for name in fields)
        }
        self._unmatched = left  # a new one: other threads may go through the old one
        if not left:
            self._looks = 0
        elif self._looks <= 0 or (self._looks == _LOOKS - 1 and len(left) == len(before)):
            self._looks = 0
            self._unmatched = {}
            if _speaks_for_all():
                logger.warning(
                    "decode(%s): none of the first samples has a field of that kind; %r has %s",
                    ", ".join(map(repr, left)), sample.get("__key__"), ", ".join(fields) or "no field",
                )  # fmt: skip

    def _compare_only(self, sample: dict[str, Any], names: list[str]) -> None:
        """Log if the first sample has none of `only`, or one with a shorter name."""
        missing = [name for name in names if name not in sample and name.lstrip(".") not in sample]
        others = [field for field in sample if not field.startswith("__") and field not in names]
        alike = {_ending(name) for name in missing} & {_ending(field) for field in others}
        if missing and (alike or len(missing) == len(names)):
            logger.warning(
                "only=%r: the first sample, %r, has no field %r; it has %r, which stay bytes",
                " ".join(names), sample.get("__key__"), " ".join(missing), " ".join(others),
            )  # fmt: skip

    def decode_field(self, field: str, data: bytes, seed: int | None = None, row: Row | None = None) -> Any:
        """Return the value of one field: the first that a handler returns.

        Without one, `data` is returned.
        """
        name = "." + field
        handlers = self._of_field.get(field)
        if handlers is None:
            handlers = self._handlers_of(field, name)
        for handler in handlers:
            if isinstance(handler, ImageHandler):
                place = (
                    functools.partial(row, field) if row is not None and handler.has_one_shape else nowhere
                )
                value = handler(name, data, seed, place)
            else:
                value = handler(name, data)
            if value is None:
                continue
            if isinstance(value, Continue):
                name, data = value.key, value.data
            elif isinstance(value, Decoded):
                return value.value
            else:
                return value
        return data

    def _handlers_of(self, field: str, name: str) -> tuple[Handler, ...]:
        """Return the handlers for a field, without ours that are not for its name.

        All of them, if one may pass on another name.
        """
        handlers = tuple(one for one in self._handlers if may_decode(one, name))
        if not all(type(one) in (ImageHandler, FieldTable) for one in handlers):
            handlers = self._handlers
        if len(self._of_field) < _MOST_NAMES:
            self._of_field[field] = handlers
        return handlers

    def _decode(
        self, sample: dict[str, Any], field: str, data: bytes, seed: int | None, row: Row | None
    ) -> object:
        try:
            return self.decode_field(field, data, seed, row)
        except Exception as error:
            if isinstance(error, AISError) and isinstance(error, (DecodeError, *NEVER_SKIPPED)):
                # Errors of this package have fact and advice, but mostly no place.
                if error.place:
                    raise
                raise _failure(type(error), sample, field, error.what, error.todo or _SKIP) from error
            if isinstance(error, NEVER_SKIPPED):
                raise
            why = _ADDRESS.sub("", f"{type(error).__name__}: {error}")
            raise _failure(DecodeError, sample, field, why, _SKIP) from error


_MOST_NAMES = 256  # whose handlers are remembered: names come from data
_LOOKS = 8  # samples; of several specs one may be for a field that not every sample has
_BATCH = "Put .decode() before .batched()"
_PARTIAL = Remedy("Decode once", "pass partial=True to leave decoded fields alone")
_SKIP = Remedy(
    in_programs('Use on_error="skip" to go on without such samples'), "name the fields to decode with only="
)


def _speaks_for_all() -> bool:
    """Return whether this process is that of rank 0, or its first worker."""
    worker = re.fullmatch(r"worker process (\d+)", current_process().name)
    return os.environ.get("RANK", "0") in ("", "0") and (worker is None or worker[1] == "0")


_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")  # in memory: another one each time


def is_for(handler: Handler, field: str) -> bool:
    """Return whether a handler of images, sounds or videos decodes a field."""
    name = field.lower().removesuffix(".gz")
    if isinstance(handler, ImageHandler):
        return handler.is_for(name)
    function = handler.func if isinstance(handler, functools.partial) else handler
    kinds = {torch_audio: "audio", torch_video: "video"}
    return function not in kinds or extension(name) in FIELD_KINDS[kinds[function]]


def may_decode(handler: Handler, name: str) -> bool:
    """Return False if a handler is ours, and never for fields of this name."""
    if type(handler) is GzipFilter:
        return name.lower().endswith(".gz")
    if type(handler) is FieldTable:
        return handler.has(name)
    return type(handler) is not ImageHandler or handler.may_be_for(name)


def _failure(kind: type[AISError], sample: dict[str, Any], field: str, why: str, todo: str) -> AISError:
    key = sample.get("__key__")
    offset = getattr(sample, "offset", None)
    return kind.at(
        f"field {field!r} of sample {key!r} cannot be decoded: {why}",
        todo=todo,
        url=sample.get("__url__"),
        key=key,
        field=field,
        offset=None if offset == -1 else offset,
    )


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _handler(spec: str | Handler) -> Handler:
    if isinstance(spec, str):
        spec = _MEDIA[spec] if spec in _MEDIA else imagehandler(cast("ImageSpecName", spec))
    if not callable(spec):
        raise UsageError.at(
            f"{spec!r:.80} is neither the name of a spec nor a function",
            todo='Pass names such as "torchrgb8" and functions of (name, bytes), one by one',
        )
    check_function(spec, 2, "decode()")
    if spec is torch_audio:
        require("soundfile", "decoding audio")
    if spec is torch_video:
        require("av", "decoding video")
    return spec


def _with_part(
    handlers: list[Handler], frames: int | None, seconds: tuple[float, float] | None, every: int
) -> list[Handler]:
    """Return the handlers, that of videos with the part it decodes."""
    check_number(frames, 1, "frames", optional=True)
    check_number(every, 1, "every")
    if seconds is not None:
        pair = seconds if isinstance(seconds, (tuple, list)) and len(seconds) == 2 else (None, None)
        is_part = all(isinstance(one, (int, float)) for one in pair) and 0 <= pair[0] < pair[1]
        if not is_part:
            raise UsageError.at(f"seconds={seconds!r:.60} is no part", todo="write seconds=(begin, end)")
        seconds = float(pair[0]), float(pair[1])
    given = {"frames": frames is not None, "seconds": seconds is not None, "every": every != 1}
    for name in [name for name, is_given in given.items() if is_given and torch_video not in handlers]:
        raise UsageError.at(f"{name}= has no video spec to act on", todo='Add "video"')
    part = functools.partial(torch_video, frames=frames, seconds=seconds, every=every)
    return [part if handler is torch_video and any(given.values()) else handler for handler in handlers]


def _several(handlers: Handler | Iterable[Handler] | None, default: Handler, option: str) -> list[Handler]:
    if handlers is None:
        return [default]
    if not callable(handlers) and not isinstance(handlers, Iterable):
        raise UsageError.at(f"{option}= takes functions of (name, bytes), not {handlers!r}")
    found = [handlers] if callable(handlers) else list(handlers)
    for handler in found:
        if not callable(handler):
            raise UsageError.at(f"{option}= takes functions of (name, bytes), not {handler!r}")
        check_function(handler, 2, f"decode({option}=)")
    return found


def _names(only: Iterable[str] | str | None) -> list[str] | None:
    if only is None:
        return None
    exact = only.split() if isinstance(only, str) else list(only) if isinstance(only, Iterable) else [only]
    check_text(exact, "decode(only=)")
    return exact


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()
