"""What a conversion does to each item, in whichever process: load, select, decode, map, encode."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from torchdata_ais.arguments import check_function
from torchdata_ais.codecs import build_decoder, build_encoder
from torchdata_ais.codecs.encoder import Encoder
from torchdata_ais.errors import NEVER_SKIPPED, AISError, SampleError, UsageError

__all__ = ["Edit", "EditNames", "Outcome", "Transform"]

Outcome = dict[str, Any] | Exception | None
"""The encoded sample, why it cannot be had, or None for one that is not wanted."""


@dataclass(frozen=True)
class Transform:
    """A function of a list of items. See `torchdata_ais.writing.convert` for what the fields mean."""

    load: Callable[[Any], dict[str, Any]]
    encode: Callable[[dict[str, Any]], dict[str, Any]]
    select: Callable[[dict[str, Any]], Any] | None = None
    decode: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    map: Callable[..., Any] | None = None
    rng: bool = False
    seed: int = 0
    fields: frozenset[str] | None = None

    def __call__(self, items: Iterable[Any]) -> list[Outcome]:
        """Return one outcome for each item.

        Raises:
            Exception: One of `NEVER_SKIPPED`: the call, the program or the machine is at fault.
        """
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Outcome:
        """Return the outcome of one item."""
        try:
            return self._sample(item)
        except NEVER_SKIPPED:
            raise
        except Exception as error:  # noqa: BLE001 - the caller decides
            return error

    def _sample(self, item: Any) -> dict[str, Any] | None:
        sample = self.load(item)
        if self.select is not None and not self._call("select", self.select, sample):
            return None
        if self.decode is not None:
            sample = self._call("decode", self.decode, sample)
        if self.map is not None:
            key = sample["__key__"]
            more = (random.Random(f"{self.seed}/{key}"),) if self.rng else ()
            mapped = self._call("map", self.map, sample, *more)
            if mapped is None:
                return None
            if not isinstance(mapped, dict):
                raise UsageError.at(
                    f"map returned a {type(mapped).__name__}",
                    todo="return a sample (a dict), or None to drop it",
                    key=key,
                )
            sample = mapped if "__key__" in mapped else {"__key__": key, **mapped}
        if self.fields is not None:
            sample = {
                name: value for name, value in sample.items() if name[:2] == "__" or name in self.fields
            }
        encoded: dict[str, Any] = self._call("encode", self.encode, sample)
        return encoded

    def _call(self, what: str, function: Callable[..., Any], sample: dict[str, Any], *more: Any) -> Any:
        try:
            return function(sample, *more)
        except Exception as error:
            if isinstance(error, (AISError, *NEVER_SKIPPED)):
                raise
            key = sample.get("__key__")
            raise SampleError.at(
                f"{what} failed on the sample {key!r}: {type(error).__name__}: {error}",
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


@dataclass(frozen=True)
class Edit:
    """What `torchdata_ais.writing.convert` makes of each sample.

    Attributes:
        select: A function of the sample as it was read (bytes); false leaves it out.
        decode: Turn the bytes into values first: the name of a spec (``"rgb8"``), or what
            `torchdata_ais.codecs.build_decoder` returned.
        map: A function from a sample to a sample; None leaves it out. It need not return the key.
        rng: Whether to call ``map(sample, rng)`` with a `random.Random` that depends on the seed and the key alone.
        fields: Keep these fields only.
        keys: ``"number"`` gives the samples new keys, their numbers with nine digits: for shards whose keys repeat.
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
    encoder: bool | Mapping[str, Callable[[Any], Any]] | Callable[..., Any] | None = True
    allow_pickle: bool = False
    quality: int = 100

    def __post_init__(self) -> None:
        if self.keys not in ("keep", "number"):
            raise UsageError.at(f"keys={self.keys!r}", todo='use "keep" or "number"')
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
        return self.select is self.decode is self.map is None and isinstance(self.encoder, bool)

    def transform(self, load: Callable[[Any], dict[str, Any]], seed: int) -> Transform:
        """Return the function that loads items and makes samples of them."""
        decode, fields = self.decode, self.fields
        return Transform(
            load,
            self.encode(),
            self.select,
            build_decoder(decode, partial=True) if isinstance(decode, str) else decode,
            self.map,
            self.rng,
            seed,
            None if fields is None else frozenset(fields.split() if isinstance(fields, str) else fields),
        )
