""".decode() and .xdecode()."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from inspect import signature
from itertools import islice
from typing import Any, Literal, NamedTuple

from torchdata_ais._util.arguments import check_function
from torchdata_ais.codecs import Decoder
from torchdata_ais.codecs.crop import Crop
from torchdata_ais.codecs.decoder import SpecName
from torchdata_ais.codecs.handlers import MAX_GZ_BYTES, Handler, Row
from torchdata_ais.codecs.image import SixteenBit
from torchdata_ais.codecs.resize import MAX_PIXELS, Size
from torchdata_ais.errors import NEVER_SKIPPED, DecodeError, SampleError, UsageError
from torchdata_ais.pipes.base.collate import BatchRows
from torchdata_ais.pipes.base.contract import Effect, MemoryBound
from torchdata_ais.pipes.base.each_item import EachItem, shown_function
from torchdata_ais.pipes.base.pipe import Pipe, as_pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy, OnError, keep_place, place_in, place_of, require_dict
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.pipes.planned.batches import slots_above
from torchdata_ais.pipes.planned.shared_seed import SampleSeeds, SharedEpochSeed, with_shared_seed
from torchdata_ais.pipes.planned.stage import SlotStage
from torchdata_ais.samples import Fields

_AT_ONCE = 8
"""Samples a thread takes at a time: taken one by one, a twentieth of the time goes into handing them over."""

_PARTS = 2
"""Such parts a thread: one it decodes, and one that waits for it."""

_Task = tuple[Any, "int | None", "Row | None"]
"""A sample, the seed of its crops, and where its images are put."""

_Outcome = tuple[Any, "Exception | None"]
"""A decoded sample, or why there is none."""


class _Running(NamedTuple):
    """Places of samples under way in threads, seeds of crops, rows to fill."""

    places: deque[int]
    seeds: SampleSeeds | None
    rows: BatchRows | None

    def seed_of(self, sample: object) -> int | None:
        """Return a sample's seed, another one than ``.map_sample(rng=True)`` has."""
        return None if self.seeds is None else mix_seed(self.seeds.of(sample), "crop")

    def row(self) -> Row | None:
        """Return where the next sample's images are put; None: anywhere."""
        return None if self.rows is None else self.rows.take()


_DECODER_DEFAULTS = {name: one.default for name, one in signature(Decoder).parameters.items()}


@stage("decode")
class SampleDecoder(Pipe[Any], SlotStage):
    """Decode the fields of each sample by their names (``.decode(*specs)``).

    Args:
        source: Pipe of samples.
        *specs: Image specs (``"pil"``, ``"rgb"``, ``"rgb8"``, ``"torchrgb"``, ``"torchrgb8"``, ``"l8"``, ...) and
            functions ``(field, bytes) -> value or None``; the first that gives a value wins, then the field table
            (text, class, json, npy, ...). None at all means the table and images to PIL.
        only: Fields to decode; the others stay bytes.
        partial: Whether values other than bytes (decoded before) pass unchanged instead of being an error.
        threads: Decode in that many threads; order is kept. The image libraries let go of
            Python's lock.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole sample is skipped.
        max_errors: How many samples to give up: a count, or a share of all.
        pre, post, size, shorter, allow_pickle, sixteen_bit, exif, max_gz_bytes, max_pixels, crop: As for
            `torchdata_ais.Decoder`. A random crop follows from (seed, epoch, key) as in ``.map_sample(rng=True)``, and
            below ``.read_samples()`` from (seed, source, draw): it is the same whatever the number of ranks and
            workers, and after a resume.
        random_resized_crop, scale, ratio, flip, center_crop, resize_crop: Crops by single options, as for `Decoder`:
            ``random_resized_crop=224, flip=0.5`` is ``crop=RandomResizedCrop(224, flip=0.5)``.
        frames, seconds, every: Part of a video that ``"video"`` decodes, as for `Decoder`.

    Yields:
        A new sample of the same class with decoded values; fields no rule knows stay bytes.

    Order:
        That of the source, also with threads.

    Memory:
        One sample, as bytes and decoded; ``16 * threads`` samples with threads, of which those that are under way, at
        most ``8 * threads``, are there as bytes and decoded. What decoding takes for each of them is bounded by
        ``max_pixels=`` and ``max_gz_bytes=``; see `torchdata_ais.Decoder`.

        >>> SampleDecoder([], threads=2).memory_bound().text
        '32 samples'

    Raises:
        DecodeError: Names key, field, URL, offset and cause. An image of more than ``max_pixels=`` is one.
        UsageError: A spec that does not exist, or whose library is not installed, when the pipe is built; a pickle
            that is not allowed, or a value other than bytes, with the first sample. Never skipped.

    Example:
        >>> pipe = SampleDecoder([{"__key__": "a", "cls": b"3", "json": b"[1, 2]", "raw": b"x"}])
        >>> next(iter(pipe))
        {'__key__': 'a', 'cls': 3, 'json': [1, 2], 'raw': b'x'}
    """

    resumable = True
    epoch_seed: SharedEpochSeed | None = None
    _live: _Running | None = None

    def __init__(
        self,
        source: object,
        *specs: SpecName | Callable[[str, Any], object],
        only: Any = None,
        partial: bool = False,
        threads: int = 0,
        on_error: OnError = "raise",
        max_errors: float | None = None,
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
        options: dict[str, Any] = {
            "pre": pre,
            "post": post,
            "size": size,
            "shorter": shorter,
            "allow_pickle": allow_pickle,
            "sixteen_bit": sixteen_bit,
            "exif": exif,
            "max_gz_bytes": max_gz_bytes,
            "max_pixels": max_pixels,
            "crop": crop,
            "random_resized_crop": random_resized_crop,
            "scale": scale,
            "ratio": ratio,
            "flip": flip,
            "center_crop": center_crop,
            "resize_crop": resize_crop,
            "frames": frames,
            "seconds": seconds,
            "every": every,
        }
        self._codec = Decoder(*specs, only=only, partial=partial, **options)
        super().__init__(with_shared_seed(as_pipe(source)) if self._codec.is_random else source)
        if threads < 0:
            raise UsageError.at(f"threads={threads}", todo="use 0 for none")
        names = [
            repr(spec) if isinstance(spec, str) else getattr(spec, "__name__", "function") for spec in specs
        ]
        values = {
            name: shown_function(value) if callable(value) else repr(value)
            for name, value in options.items()
            if value != _DECODER_DEFAULTS[name]
        }
        self._shown = ", ".join(names + [f"{name}={value}" for name, value in values.items()])
        if self._codec.is_random:
            self.epoch_seed = SharedEpochSeed()
        self._threads = threads
        self._policy = ErrorPolicy(on_error, max_errors)

    def effect(self) -> Effect:
        return Effect("each" if self._policy.on_error == "raise" else "fewer", holds=self._threads > 0)

    def arguments(self) -> str:
        shown = [self._shown] if self._shown else []
        if self._codec.only is not None:
            shown.append(f"only={' '.join(self._codec.only)!r}")
        if self._threads:
            shown.append(f"threads={self._threads}")
        return ", ".join(shown + self._policy.shown())

    def identity(self) -> str:
        return self._shown

    def _items(self) -> Iterator[object]:
        stats = self.stats
        for sample, error in self._in_threads() if self._threads else self._one_by_one():
            stats.items += 1
            if error is None:
                yield sample
            elif not self._policy.goes_on(error, stats, "decode"):
                return
        self._policy.at_end(stats, "decode")

    def _one_by_one(self) -> Iterator[_Outcome]:
        codec, running = self._codec, self._begin()
        for sample in self._source:
            self._busy = sample
            yield _outcome(codec, sample, running.seed_of(sample), running.row())

    def _begin(self) -> _Running:
        seed = self.epoch_seed
        seeds = None if seed is None else SampleSeeds(self, seed.next_epoch_of(self))
        self._live = _Running(deque(), seeds, self.rows)
        return self._live

    def makes_rows(self) -> bool:
        return self._codec.fills_rows

    def save_state(self) -> None:
        if self._live is not None and self._live.seeds is not None:
            self._live.seeds.check_saveable()

    def busy_with(self) -> dict[str, Any]:
        return place_in(self._busy)

    def memory_bound(self) -> MemoryBound:
        """Return what the stage holds at most in one process; see "Memory" above."""
        most = _PARTS * _AT_ONCE * self._threads or 1
        return MemoryBound(f"{most} sample{'' if most == 1 else 's'}")

    def held_places(self) -> list[int]:
        return list(self._live.places) if self._live is not None else []

    def _in_threads(self) -> Iterator[_Outcome]:
        codec, running = self._codec, self._begin()
        places = running.places
        above = slots_above(self)
        slots: deque[tuple[int, tuple[int, int]]] = deque()
        parts: deque[Future[list[_Outcome]]] = deque()
        source = iter(self._source)
        failure: Exception | None = None
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        try:
            while True:
                # The limit on submitted parts bounds the memory; the oldest part is awaited first, for order.
                while failure is None and len(parts) < _PARTS * self._threads:
                    part: list[_Task] = []
                    try:
                        for sample in islice(source, _AT_ONCE):
                            part.append((sample, running.seed_of(sample), running.row()))
                            if above is not None:
                                slots.append((above.slot, above.drawn))
                    except Exception as error:  # noqa: BLE001 - raised below, after what came before it
                        failure = error
                    if not part:
                        break
                    places.extend([getattr(sample, "place", -1) for sample, *_ in part])
                    parts.append(pool.submit(_outcomes, codec, part))
                if not parts:
                    break
                for outcome in parts.popleft().result():
                    places.popleft()
                    if slots:
                        self.slot, self.drawn = slots.popleft()
                    yield outcome
            if failure is not None:
                raise failure
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _outcome(codec: Decoder, sample: Any, seed: int | None, row: Row | None) -> _Outcome:
    try:
        return codec(sample, seed, row), None
    except Exception as error:  # noqa: BLE001 - handlers of the user may raise anything
        return None, error


def _outcomes(codec: Decoder, tasks: list[_Task]) -> list[_Outcome]:
    return [_outcome(codec, *task) for task in tasks]


_Function = Callable[[Any], Any] | Literal[False]
_Rule = tuple[str, _Function]


def _read(stream: Any) -> object:
    return stream.read()


def _read_text(stream: Any) -> str:
    return str(stream.read(), "utf-8")


_DEFAULTS: tuple[_Rule, ...] = (("*.bin", _read), ("*.txt", _read_text))


@stage("xdecode")
class StreamDecoder(EachItem[Any]):
    """Decode fields with functions that take a stream (``.xdecode(...)``).

    For example ``.xdecode(("*.npy", numpy.load), raw=False)``.
    A pattern (of `fnmatch`, in lower case) is compared with the field's name in lower case, without the part
    before the last slash, as it is and with a dot before it: ``*.txt`` matches ``txt`` and ``left.txt``. Nothing is
    unpickled unless a function of yours does it.

    Args:
        source: Pipe of samples.
        *rules: ``(pattern, function)``; later ones are tried first. False instead of a function leaves the bytes.
        must_decode: Whether a field that no pattern matches is an error; else it stays as it is.
        defaults: Rules tried last; default ``*.bin`` (bytes) and ``*.txt`` (UTF-8).
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole sample is skipped.
        max_errors: How many samples to give up: a count, or a share of all.
        **functions: Extension -> function: ``npy=f`` is ``("*.npy", f)``.

    Yields:
        New samples of the same class. Fields that begin with ``__`` stay. A function is given `io.BytesIO` for
        bytes, other values as they are.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        DecodeError: No rule for a field, or its function failed; names key, field, URL and cause.
        UsageError: An item is not a dict; a rule is not a pattern with a function of one value.

    Example:
        >>> list(StreamDecoder([{"__key__": "a", "txt": b"cat", "n": b"7"}], n=lambda stream: int(stream.read())))
        [{'__key__': 'a', 'txt': 'cat', 'n': 7}]
    """

    def __init__(
        self,
        source: object,
        *rules: tuple[str, Callable[[Any], object] | Literal[False]],
        must_decode: bool = True,
        defaults: Sequence[tuple[str, Callable[[Any], object] | Literal[False]]] | None = None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        **functions: Callable[[Any], object] | Literal[False],
    ) -> None:
        super().__init__(source, on_error, max_errors)
        by_extension = [(f"*.{extension}", function) for extension, function in functions.items()]
        self._rules = [*(_DEFAULTS if defaults is None else defaults), *rules, *by_extension]
        for rule in self._rules:
            if not isinstance(rule, (tuple, list)) or len(rule) != 2 or not isinstance(rule[0], str):
                raise UsageError.at(
                    f"xdecode() was given {rule!r:.80}", todo='write xdecode(("*.npy", numpy.load))'
                )
            if rule[1] is not False:
                check_function(rule[1], 1, f"xdecode({rule[0]!r})")
        self._must_decode = must_decode

    def _shown(self) -> list[str]:
        return [repr(pattern) for pattern, _ in self._rules]

    def _one(self, item: object) -> Fields:
        sample = require_dict(item, "xdecode")
        return keep_place({field: self._value(sample, field) for field in sample}, sample)

    def _value(self, sample: Fields, field: str) -> object:
        value = sample[field]
        if field.startswith("__"):
            return value
        function = self._function(field, sample)
        if not function:
            return value
        try:
            return function(io.BytesIO(value) if isinstance(value, bytes) else value)
        except Exception as error:
            if isinstance(error, (SampleError, *NEVER_SKIPPED)):
                raise
            raise DecodeError.at(
                f"the field {field!r} of the sample {sample.get('__key__')!r} cannot be decoded:"
                f" {type(error).__name__}: {error}",
                todo="mend the data, or skip such samples with xdecode(on_error='skip')",
                **place_of(sample, field),
            ) from error

    def _function(self, field: str, sample: Fields) -> Any:
        name = field.rpartition("/")[2].lower()
        for pattern, function in reversed(self._rules):
            if fnmatchcase(name, pattern) or fnmatchcase("." + name, pattern):
                return function
        if self._must_decode and not name.startswith("__"):
            raise DecodeError.at(
                f"no rule of xdecode is for the field {field!r}",
                todo=f'give one: xdecode(("*.{name}", function)), or keep such fields with must_decode=False',
                **place_of(sample, field),
            )
        return False
