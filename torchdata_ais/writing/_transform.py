"""What a conversion does to each item, in whichever process: load, select, decode, map, encode."""

from __future__ import annotations

import importlib.util
import io
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from torchdata_ais.arguments import check_function, checked_options
from torchdata_ais.codecs import Decoder, build_encoder
from torchdata_ais.codecs.encoder import Encoder
from torchdata_ais.codecs.handlers import extension
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import (
    NEVER_SKIPPED,
    AISError,
    DecodeError,
    MissingFieldError,
    SampleError,
    UsageError,
)
from torchdata_ais.samples import shown_fields

Outcome = dict[str, Any] | Exception | None
"""The encoded sample, why it cannot be had, or None for one that is not wanted."""

_WITHOUT = Remedy("mend or remove it", 'go on without such samples by on_error="skip"')
_MENDED = Remedy("mend the function", 'go on without such samples by on_error="skip"')

_SOUNDS = frozenset(["flac", "mp3", "wav", "ogg", "opus", "aif", "aiff", "au"])
_OPEN = (0, 0xFFFFFFFF)  # what a program writes that does not know the length yet


class Transform:
    """A function of a list of items with their cursors.

    Args:
        load: Makes a sample of an item.
        edit: What is to be done to it.
        seed: For ``rng``.
    """

    def __init__(self, load: Callable[[Any], dict[str, Any]], edit: Edit, seed: int) -> None:
        self._load, self._seed = load, seed
        self._select, self._map, self._rng = edit.select, edit.map, edit.rng
        decode = edit.decode
        self._decode = Decoder(decode, partial=True) if isinstance(decode, str) else decode
        self._check = Decoder("pil", checked_sound, partial=True) if edit.check else None
        self._encode = edit.encode()
        self._fields = edit.kept

    def __call__(self, items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Outcome]]:
        """Return the outcome of each item with its cursor.

        Raises:
            Exception: One of `NEVER_SKIPPED`: the call, the program or the machine is at fault.
        """
        return [(cursor, self.one(item)) for cursor, item in items]

    def one(self, item: Any) -> Outcome:
        """Return the outcome of one item."""
        try:
            return self._sample(item)
        except NEVER_SKIPPED:
            raise
        except Exception as error:  # noqa: BLE001 - the caller decides
            return error

    def _sample(self, item: Any) -> dict[str, Any] | None:
        sample = self._load(item)
        if self._select is not None and not self._call("select", self._select, sample):
            return None
        if self._check is not None:
            self._call("check", self._check, sample)
        if self._decode is not None:
            sample = self._call("decode", self._decode, sample)
        if self._map is not None:
            key = sample["__key__"]
            more = (random.Random(f"{self._seed}/{key}"),) if self._rng else ()
            mapped = self._call("map", self._map, sample, *more)
            if mapped is None:
                return None
            if not isinstance(mapped, dict):
                raise UsageError.at(
                    f"map returned a {type(mapped).__name__}",
                    todo="return a sample (a dict), or None to drop it",
                    key=key,
                )
            sample = mapped if "__key__" in mapped else {"__key__": key, **mapped}
        if self._fields is not None:
            sample = self._only(sample, self._fields)
        encoded: dict[str, Any] = self._call("encode", self._encode, sample)
        return encoded

    def _only(self, sample: dict[str, Any], fields: frozenset[str]) -> dict[str, Any]:
        kept = {name: value for name, value in sample.items() if name[:2] == "__" or name in fields}
        if fields.isdisjoint(kept):
            names = ", ".join(sorted(name for name in sample if name[:2] != "__"))
            key = sample.get("__key__")
            raise MissingFieldError.at(
                f"the sample {key!r} has none of the fields {', '.join(sorted(fields))}, only {names}",
                todo="correct fields=",
                url=sample.get("__url__"),
                key=key,
            )
        return kept

    def _call(self, what: str, function: Callable[..., Any], sample: dict[str, Any], *more: Any) -> Any:
        try:
            return function(sample, *more)
        except Exception as error:
            if isinstance(error, DecodeError) and not isinstance(error, NEVER_SKIPPED):  # it speaks to pipes
                raise type(error)(error.what, todo=_WITHOUT, place=error.place) from None
            if isinstance(error, (AISError, *NEVER_SKIPPED)):
                raise
            key = sample.get("__key__")
            fields = f"; its fields are {shown_fields(sample)}" if isinstance(error, KeyError) else ""
            raise SampleError.at(
                f"{what} failed on the sample {key!r}: {type(error).__name__}: {error}{fields}",
                todo=_WITHOUT if what in ("check", "decode") else _MENDED,
                url=sample.get("__url__"),
                key=key,
            ) from error


class EditNames(TypedDict, total=False):
    """The single names of an `Edit`, without those that `TarWriter` has, too."""

    select: Callable[[dict[str, Any]], Any] | None
    decode: Any
    map: Callable[..., Any] | None
    rng: bool
    fields: str | Iterable[str] | None
    keys: Literal["keep", "number"]
    check: bool


@checked_options
@dataclass(frozen=True)
class Edit:
    """What `torchdata_ais.writing.convert` makes of each sample.

    Attributes:
        select: A function of the sample as it was read (bytes); false leaves it out.
        decode: Turn the bytes into values first: the name of a spec (``"rgb8"``), or what
            `torchdata_ais.Decoder` returned.
        map: A function from a sample to a sample; None leaves it out. It need not return the key.
        rng: Whether to call ``map(sample, rng)`` with a `random.Random` that depends on the seed and the key alone.
        fields: Keep these fields only.
        keys: ``"number"`` gives the samples new keys, their numbers with nine digits: for shards whose keys repeat.
        check: Decode every picture, text, number and JSON field once, to see that it can be, and every sound where
            soundfile is installed (extra ``[audio]``); what is written are the bytes as they came.
        encoder: As in `TarWriter`.
        allow_pickle: As in `TarWriter`.
        quality: As in `TarWriter`.

    Raises:
        UsageError: A value that cannot work.

    Example:
        >>> Edit(fields="jpg cls", keys="number").is_copy
        True
    """

    select: Callable[[dict[str, Any]], Any] | None = None
    decode: Any = None
    map: Callable[..., Any] | None = None
    rng: bool = False
    fields: str | Iterable[str] | None = None
    keys: Literal["keep", "number"] = "keep"
    check: bool = False
    encoder: bool | Mapping[str, Callable[[Any], Any]] | Callable[..., Any] | None = True
    allow_pickle: bool = False
    quality: int = 100

    def __post_init__(self) -> None:
        decode = None if isinstance(self.decode, str) else self.decode
        for function, count, name in (
            (self.select, 1, "select"),
            (decode, 1, "decode"),
            (self.map, 2 if self.rng else 1, "map"),
        ):
            if function is not None:
                check_function(function, count, f"convert({name}=)")
        self.encode()

    def encode(self) -> Encoder:
        """Return the function that makes bytes of the values of a sample."""
        return build_encoder(self.encoder, allow_pickle=self.allow_pickle, quality=self.quality)

    @property
    def is_copy(self) -> bool:
        """Whether nothing is computed: bytes go in and come out."""
        return (
            self.select is self.decode is self.map is None
            and isinstance(self.encoder, bool)
            and not self.check
        )

    @property
    def kept(self) -> frozenset[str] | None:
        """The names of `fields`; None for all."""
        fields = self.fields
        return None if fields is None else frozenset(fields.split() if isinstance(fields, str) else fields)


def checked_sound(name: str, data: bytes) -> bytes | None:
    """Decode a sound field once, where soundfile is installed; a WAV file is also measured by what its header says.

    Returns None for fields that are no sound.

    Raises:
        ValueError: It is cut.
        Exception: What libsndfile says of it.

    Example:
        >>> checked_sound("wav", b"RIFF" + (100).to_bytes(4, "little") + b"WAVE")
        Traceback (most recent call last):
        ValueError: the sound is cut: its header says 108 bytes, and there are 12
    """
    if extension(name) not in _SOUNDS:
        return None
    said = int.from_bytes(data[4:8], "little")
    if data[:4] == b"RIFF" and said not in _OPEN and said + 8 > len(data):
        raise ValueError(f"the sound is cut: its header says {said + 8} bytes, and there are {len(data)}")
    if importlib.util.find_spec("soundfile"):
        import soundfile

        soundfile.read(io.BytesIO(data), dtype="float32")
    return data
