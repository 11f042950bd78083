"""What a stage counted: items, bytes, and the errors it went on after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torchdata_ais.redaction import clean

__all__ = ["StageStats", "merge_stats", "text_of"]

_EXAMPLES = 20
_SUMS = ("items", "bytes", "retries", "refetched", "opened", "first_byte_s", "wait_s")


@dataclass
class StageStats:
    """Counts of one stage in one process.

    Attributes:
        items: Items taken in.
        bytes: Bytes read (stages that read).
        retries: Requests made again.
        refetched: Files of the cache that were damaged, deleted and fetched again.
        opened: Objects whose first byte has come.
        first_byte_s: Seconds it took, of all of them together.
        first_byte_max_s: Seconds it took at most.
        wait_s: Seconds the stage waited for bytes.
        skipped: Name of the error class -> how many items were given up for it.
        examples: The first texts of those errors, at most 20.
    """

    items: int = 0
    bytes: int = 0
    retries: int = 0
    refetched: int = 0
    opened: int = 0
    first_byte_s: float = 0.0
    first_byte_max_s: float = 0.0
    wait_s: float = 0.0
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def __reduce__(self) -> tuple[type[StageStats], tuple[()]]:
        return StageStats, ()  # a copy of a stage has counted nothing

    def skip(self, error: BaseException) -> None:
        """Count an item given up for `error`."""
        self.skipped[type(error).__name__] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text_of(error))

    def add_object(self, size: int, retries: int, first_byte_s: float | None, wait_s: float) -> None:
        """Count what reading one object, or a part of one, took."""
        self.bytes += size
        self.retries += retries
        self.wait_s += wait_s
        if first_byte_s is not None:
            self.opened += 1
            self.first_byte_s += first_byte_s
            self.first_byte_max_s = max(self.first_byte_max_s, first_byte_s)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that travel between processes."""
        return {
            "items": self.items,
            "bytes": self.bytes,
            "retries": self.retries,
            "refetched": self.refetched,
            "opened": self.opened,
            "first_byte_s": self.first_byte_s,
            "first_byte_max_s": self.first_byte_max_s,
            "wait_s": self.wait_s,
            "skipped": dict(self.skipped),
            "examples": list(self.examples),
        }


def text_of(error: BaseException) -> str:
    """Return class and text of an error, with the notes on it.

    Example:
        >>> text_of(ValueError("no number"))
        'ValueError: no number'
    """
    notes: list[str] = getattr(error, "__notes__", [])
    return clean("\n".join([f"{type(error).__name__}: {error}", *notes]))


def merge_stats(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of what `StageStats.to_dict` gave in several processes.

    Example:
        >>> merge_stats([StageStats(items=2).to_dict(), StageStats(items=3).to_dict()])["items"]
        5
    """
    total = StageStats()
    for part in parts:
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + part[name])
        total.first_byte_max_s = max(total.first_byte_max_s, part["first_byte_max_s"])
        total.skipped.update(part["skipped"])
        total.examples.extend(part["examples"][: _EXAMPLES - len(total.examples)])
    return total.to_dict()
