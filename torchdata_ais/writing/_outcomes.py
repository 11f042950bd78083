"""What became of each item of a source, in order, whichever process made it."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torchdata_ais.errors import AISError
from torchdata_ais.workers.ordered_pool import OrderedPool
from torchdata_ais.writing._transform import Outcome, Transform
from torchdata_ais.writing.sources.source import Source
from torchdata_ais.writing.sources.tally import Tally

_CHUNK_ITEMS = 32
_KINDS = 100
"""Sets of fields that samples of one conversion may have, to be told what some lack; of more, nothing is told."""
_CHUNK_BYTES = 8 << 20
_WARNED = 1000
"""Samples given up after errors of one class that are named one by one, with ``on_error="warn"``."""

OnError = Literal["raise", "warn", "skip"]

logger = logging.getLogger("torchdata_ais")


class Lacking(NamedTuple):
    """A field that some samples have, and others do not.

    Attributes:
        field: Its name.
        number: How many samples do not have it.
        first: The key of the first of them.
    """

    field: str
    number: int
    first: str


@dataclass
class Counts:
    """What became of the samples.

    Attributes:
        dropped: How many were not wanted.
        skipped: How many were given up, by the class of the error, and what the first of each class said.
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

    def judged(self, outcome: Outcome, on_error: OnError) -> dict[str, Any] | None:
        """Return the sample to write, or None; raise what must not be passed over."""
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
    """Return an error without what to do about it: what it says is done already."""
    return type(error)(error.what, place=error.place) if isinstance(error, AISError) else error


def outcomes(
    source: Source, at: Any, transform: Transform, processes: int, start_method: str | None
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


def _chunks(items: Iterator[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
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
