"""What a stage counted: items, bytes, and the errors it went on after."""

from __future__ import annotations

import msgspec
from typing_extensions import Self

from torchdata_ais.redaction import clean
from torchdata_ais.store import held_now

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

    @classmethod
    def of_reading(cls) -> StageStats:
        """Return stats that count nothing but the bytes that this process holds."""
        held, held_max = held_now()
        return cls(held=held, held_max=held_max)

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
