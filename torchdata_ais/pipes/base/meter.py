"""Measurement of stages.

A stage's iterator is passed on in blocks by C code, and only the item between two blocks is timed. Slow items are
timed one by one, fast ones now and then: the time lost to measuring stays well below a hundredth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeVar

import msgspec
from typing_extensions import Self

from torchdata_ais._util.process_end import close_at_exit
from torchdata_ais.errors.redaction import clean

T = TypeVar("T")

_PAYS_AT_S = 3e-3
"""An item that takes so long is worth two looks at the clock; of faster ones every n-th is timed."""

_MAX_SKIP = 511
_WARM_UP = 32
"""The first items are timed one by one: connections open, buffers fill."""


class Meter:
    """Time spent in ``next()`` of one stage, stages above it included.

    Attributes:
        seconds: That time, extrapolated from the items that were timed.
        timed: How many were timed.
        items_before: Items given in iterations that are over.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timed = 0
        self.items_before = 0
        self._mean = 0.0
        self._over_s = 0.0
        self._run = 0
        self._since: float | None = None

    def __reduce__(self) -> tuple[type[Meter], tuple[()]]:
        return Meter, ()  # a copy of a stage, of torch's own as well, has measured nothing

    @property
    def wall_s(self) -> float:
        """Seconds from the first request to the last or, while iterating, to now."""
        return self._over_s + (perf_counter() - self._since if self._since is not None else 0.0)

    @property
    def begun(self) -> bool:
        """True after the first request for an item."""
        return self._run > 0

    def begin(self) -> int:
        """Start the clock of an iteration; a number for it is returned."""
        self.end(self._run)
        self._run += 1
        self._since = perf_counter()
        return self._run

    def end(self, run: int) -> None:
        """Stop the clock of that iteration, if it is the one that runs."""
        if run == self._run and self._since is not None:
            self._over_s += perf_counter() - self._since
            self._since = None

    def add(self, took_s: float, skipped: int) -> int:
        """Count an item after `skipped` untimed ones; return how many to skip now."""
        self.timed = timed = self.timed + 1
        self.seconds += took_s * (skipped + 1)
        self._mean += (took_s - self._mean) / min(timed, 64)
        if timed <= _WARM_UP or self._mean >= _PAYS_AT_S:
            return 0
        # Not always the same number: batches have a rhythm, too.
        return min(_MAX_SKIP, int(_PAYS_AT_S / max(self._mean, 1e-7))) - (timed & 3 if timed & 4 else 0)


def meter_of(pipe: object, *, keep: bool = True) -> Meter:
    """Return the meter of `pipe`, or a new one, which it keeps if `keep`."""
    meter: Meter = pipe.__dict__.get("_meter") or Meter()
    if keep:
        pipe.__dict__["_meter"] = meter
    return meter


def metered(iterator: Iterator[T], meter: Meter) -> Iterator[T]:
    """Yield the items of `iterator`, and time it; the result has ``close``."""
    blocks = _blocks(iterator, meter)
    items = _Items.from_iterable(blocks)
    items.parts = (blocks, iterator)  # type: ignore[attr-defined]
    close_at_exit(items)
    return items


class _Items(chain[T]):
    """The items of blocks, handed on by C code."""

    parts: tuple[object, ...] = ()

    def close(self) -> None:
        """End the iteration, as the method of a generator does."""
        for part in self.parts:
            if hasattr(part, "close"):
                part.close()


def _blocks(iterator: Iterator[T], meter: Meter) -> Iterator[Any]:
    run = meter.begin()
    skip = 0
    try:
        while True:
            begin = perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                meter.seconds += perf_counter() - begin
                return
            skip = meter.add(perf_counter() - begin, skip)
            yield (item,)
            del item
            if skip > 0:
                yield islice(iterator, skip)
            else:
                skip = 0
    finally:
        meter.end(run)


def iterate(pipe: Any) -> Iterator[Any]:
    """Return a metered iterator of a last stage, of any package."""
    if hasattr(type(pipe), "counts"):
        return iter(pipe)
    meter = _begun_anew(pipe)
    return metered(iter(pipe), meter)


def _begun_anew(pipe: Any) -> Meter:
    """Return the meter for a new iteration, with the items counted until now."""
    meter = meter_of(pipe)
    meter.items_before = items_of(pipe, meter)
    pipe._number_of_samples_yielded = 0
    return meter


def items_of(pipe: object, meter: Meter) -> int:
    """Return how many items `pipe` has given since its meter was made."""
    # torch's count of the present iteration, which copies of the stage keep.
    return meter.items_before + (getattr(pipe, "_number_of_samples_yielded", 0) if meter.begun else 0)


def count_given(pipe: Any, number: int) -> None:
    """Count `number` items as given in an iteration that is not needed."""
    meter = _begun_anew(pipe)
    meter.end(meter.begin())
    pipe._number_of_samples_yielded = number


def measured(method: Callable[[Any], Iterator[T]]) -> Callable[[Any], Iterator[T]]:
    """Return the method ``__iter__`` of a stage with what it gives metered."""

    @functools.wraps(method)
    def __iter__(self: object) -> Iterator[T]:  # noqa: N807 - it becomes that method
        meter = _begun_anew(self)
        return metered(method(self), meter)

    return __iter__


_EXAMPLES = 20


class StageStats(msgspec.Struct):
    """Counts of one stage, in one process or summed over several.

    Attributes:
        items: Items taken in.
        bytes: Bytes read (stages that read).
        retries: Requests made again.
        refetched: Files of the cache that were damaged, deleted and fetched again.
        opened: Objects whose first byte has come.
        first_byte_s: Seconds it took, of all of them together.
        first_byte_max_s: Seconds it took at most.
        wait_s: Seconds the stage waited for bytes.
        held: Bytes fetched ahead that the process holds now.
        held_max: Bytes it held at most.
        skipped: Name of the error class -> how many items were given up for it.
        examples: The first texts of those errors, at most 20.
        unverified: Kind of checksum -> how many objects were not compared with it, as it cannot be computed here.
    """

    items: int = 0
    bytes: int = 0
    retries: int = 0
    refetched: int = 0
    opened: int = 0
    first_byte_s: float = 0.0
    first_byte_max_s: float = 0.0
    wait_s: float = 0.0
    held: int = 0
    held_max: int = 0
    skipped: dict[str, int] = {}
    examples: list[str] = []
    unverified: dict[str, int] = {}

    def skip(self, error: BaseException) -> None:
        """Count an item given up for `error`."""
        name = type(error).__name__
        self.skipped[name] = self.skipped.get(name, 0) + 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text_of(error))

    def add_object(
        self, size: int, retries: int, first_byte_s: float | None, wait_s: float, unverified: str = ""
    ) -> None:
        """Count what reading one object, or a part of one, took."""
        if unverified:
            self.unverified[unverified] = self.unverified.get(unverified, 0) + 1
        self.bytes += size
        self.retries += retries
        self.wait_s += wait_s
        if first_byte_s is not None:
            self.opened += 1
            self.first_byte_s += first_byte_s
            self.first_byte_max_s = max(self.first_byte_max_s, first_byte_s)

    def add(self, other: StageStats) -> Self:
        """Add what the same stage counted elsewhere.

        Example:
            >>> StageStats(items=2, skipped={"ReadError": 1}).add(StageStats(items=3)).items
            5
        """
        largest = max(self.first_byte_max_s, other.first_byte_max_s)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_byte_max_s = largest
        for counts, more in ((self.skipped, other.skipped), (self.unverified, other.unverified)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        self.examples = (self.examples + other.examples)[:_EXAMPLES]
        return self


_SUMS = [field.name for field in msgspec.structs.fields(StageStats) if field.type in (int, float)]


def text_of(error: BaseException) -> str:
    """Return class and text of an error, with the notes on it.

    Example:
        >>> text_of(ValueError("no number"))
        'ValueError: no number'
    """
    notes: list[str] = getattr(error, "__notes__", [])
    return clean("\n".join([f"{type(error).__name__}: {error}", *notes]))
