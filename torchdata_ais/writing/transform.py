"""Transformation of items of a conversion, in order."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchdata_ais._util.arguments import check_function, checked_options
from torchdata_ais._util.process_pool import OrderedPool
from torchdata_ais.codecs import Decoder, build_encoder, imagehandler
from torchdata_ais.codecs.encoder import Encoder, EncoderSpec
from torchdata_ais.codecs.media import checked_media
from torchdata_ais.errors import (
    NEVER_SKIPPED,
    AISError,
    DecodeError,
    MissingFieldError,
    SampleError,
    UsageError,
)
from torchdata_ais.errors.text import Remedy
from torchdata_ais.samples import Fields, shown_fields
from torchdata_ais.writing.sources.source import Source, Tally

if TYPE_CHECKING:
    from torchdata_ais.codecs.decoder import SpecName

Outcome = Fields | Exception | None
"""The encoded sample, its error, or None for one that was left out."""

_WITHOUT = Remedy("mend or remove it", 'go on without such samples by on_error="skip"')
_MENDED = Remedy("mend the function", 'go on without such samples by on_error="skip"')


class Transform:
    """A function of a list of items with their cursors."""

    def __init__(self, load: Callable[[Any], Fields], edit: Edit, seed: int) -> None:
        self._load, self._seed = load, seed
        self._select, self._map, self._rng = edit.select, edit.map, edit.rng
        decode = edit.decode
        self._decode = Decoder(decode, partial=True) if isinstance(decode, str) else decode
        self._check = Decoder(imagehandler("pil"), checked_media, partial=True) if edit.check else None
        self._encode = edit.encode()
        self._fields = edit.kept

    def __call__(self, items: Iterable[tuple[object, object]]) -> list[tuple[Any, Outcome]]:
        """Return the outcome of each item with its cursor."""
        return [(cursor, self.one(item)) for cursor, item in items]

    def one(self, item: object) -> Outcome:
        """Return the outcome of one item."""
        try:
            return self._sample(item)
        except NEVER_SKIPPED:
            raise
        except Exception as error:  # noqa: BLE001 - the caller decides
            return error

    def _sample(self, item: object) -> Fields | None:
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
        encoded: Fields = self._call("encode", self._encode, sample)
        return encoded

    def _only(self, sample: Fields, fields: frozenset[str]) -> Fields:
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

    def _call(self, what: str, function: Callable[..., object], sample: Fields, *more: object) -> Any:
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


@checked_options
@dataclass(frozen=True)
class Edit:
    """Changes of each sample by `convert`, which describes the others.

    Attributes:
        map: A function from a sample to a sample; None leaves it out. It need not return the key.
        keys: ``"number"`` gives the samples new keys, their numbers with nine digits: for shards whose keys repeat.
        check: Decode every picture, text, number and JSON field once, to see that it can be, and every sound where
            soundfile is installed (extra ``[audio]``); see that sounds and videos are complete. The bytes are written
            unchanged.

    Example:
        >>> Edit(fields="jpg cls", keys="number").is_copy
        True
    """

    select: Callable[[Fields], object] | None = None
    decode: SpecName | Callable[[Fields], object] | None = None
    map: Callable[..., object] | None = None
    rng: bool = False
    fields: str | Iterable[str] | None = None
    keys: Literal["keep", "number"] = "keep"
    check: bool = False
    encoder: EncoderSpec = True
    allow_pickle: bool = False
    quality: int = 100
    allow_nan: bool = False

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
        return build_encoder(
            self.encoder, allow_pickle=self.allow_pickle, quality=self.quality, allow_nan=self.allow_nan
        )

    @property
    def is_copy(self) -> bool:
        """Report whether nothing is computed: bytes go in and come out."""
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


_CHUNK_ITEMS = 32
_KINDS = 100
"""Most sets of fields in one conversion with a report of missing fields."""
_CHUNK_BYTES = 8 << 20
_WARNED = 1000
"""Errors of one class logged one by one, with ``on_error="warn"``."""

OnError = Literal["raise", "warn", "skip"]

logger = logging.getLogger("torchdata_ais")


class Lacking(NamedTuple):
    """A field, how many samples do not have it, and the key of the first."""

    field: str
    number: int
    first: str


@dataclass
class Counts:
    """Counts of the samples by their outcome.

    Attributes:
        dropped: How many were left out.
        skipped: How many were given up, by the class of the error, and the text of the first of each class.
        unmet: The fields to keep that no sample had.
        kinds: How many samples had which fields, and the key of the first that had these.
    """

    dropped: int = 0
    skipped: Tally[str] = field(default_factory=Tally)
    unmet: frozenset[str] = frozenset()
    kinds: Tally[frozenset[str]] = field(default_factory=Tally)

    def __add__(self, later: Counts) -> Counts:
        return Counts(
            self.dropped + later.dropped,
            self.skipped + later.skipped,
            self.unmet & later.unmet,
            self.kinds + later.kinds,
        )

    def by_class(self) -> dict[str, int]:
        """Return how many were given up, by the class of the error."""
        return {name: count for name, (count, _) in self.skipped.items()}

    def judged(self, outcome: Outcome, on_error: OnError) -> Fields | None:
        """Return the sample to write, or None; raise fatal errors."""
        if outcome is None:
            self.dropped += 1
            return None
        if not isinstance(outcome, Exception):
            if self.unmet:
                self.unmet = self.unmet.difference(outcome)
            names = frozenset(name for name in outcome if not name.startswith("__"))
            if names in self.kinds or len(self.kinds) <= _KINDS:
                self.kinds.add(names, str(outcome["__key__"]))
            return outcome
        if on_error == "raise":
            raise outcome.with_traceback(None) if isinstance(outcome, AISError) else outcome
        name = type(outcome).__name__
        count = self.skipped.add(name, outcome.what if isinstance(outcome, AISError) else str(outcome))
        level, most = (logging.WARNING, _WARNED) if on_error == "warn" else (logging.INFO, 1)
        if count <= most:
            logger.log(level, "convert skips after %s: %s", name, _told(outcome))
        return None

    def lacking(self) -> list[Lacking]:
        """Return the fields that some samples lack, by name."""
        if len(self.kinds) > _KINDS:
            return []
        found = []
        for name in sorted(frozenset().union(*self.kinds)):
            without = [kept for names, kept in self.kinds.items() if name not in names]
            if without:
                found.append(Lacking(name, sum(count for count, _ in without), without[0][1]))
        return found


def _told(error: Exception) -> Exception:
    """Return an error without its remedy, which is done already."""
    return type(error)(error.what, place=error.place) if isinstance(error, AISError) else error


def outcomes(
    source: Source, at: object, transform: Transform, processes: int, start_method: str | None
) -> Generator[tuple[Any, Outcome], None, None]:
    """Yield the outcome of each item, in order, with the cursor after it."""
    if processes == 1:
        for cursor, item in source.items(at):
            yield cursor, transform.one(item)
        return
    # The processes start before anything is opened here: under fork they would have copies of it.
    with OrderedPool(transform, processes, start_method) as pool:
        for made in pool.map(_chunks(source.items(at))):
            yield from made


def _chunks(items: Iterator[tuple[object, object]]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield items in lists, bounded in number and bytes."""
    chunk: list[tuple[Any, Any]] = []
    size = 0
    for entry in items:
        chunk.append(entry)
        if isinstance(entry[1], dict):
            size += sum(len(value) for value in entry[1].values() if isinstance(value, bytes))
        if len(chunk) == _CHUNK_ITEMS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
