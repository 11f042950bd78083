"""Quantiles of many durations in a few hundred numbers, with a known error; those of ranks add up."""

from __future__ import annotations

import math

import msgspec
from typing_extensions import Self

ERROR = 0.02
"""How far a quantile may be off, as a share of itself."""

_LOG_GROWTH = math.log((1 + ERROR) / (1 - ERROR))
_LEAST_S = 1e-6
_MOST = 1 + math.ceil(math.log(1e5 / _LEAST_S) / _LOG_GROWTH)  # a day and more


class Sketch(msgspec.Struct, array_like=True):
    """Counts of durations by their logarithm: at most 634 buckets.

    A quantile it gives is within 2 % of a value that was added, from a microsecond to a day.

    Attributes:
        counts: Bucket -> how many durations fell into it.
        total_s: Their sum.

    Example:
        >>> sketch = Sketch()
        >>> for number in range(1, 101):
        ...     sketch.add(number / 1000)
        >>> round(sketch.quantile(0.5), 3), sketch.count
        (0.05, 100)
    """

    counts: dict[int, int] = {}
    total_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= bucket <= _MOST and count >= 0 for bucket, count in self.counts.items()):
            raise ValueError("the durations are none")

    @property
    def count(self) -> int:
        """How many durations were added."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Their mean; 0 of none."""
        return self.total_s / max(1, self.count)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        bucket = 0 if seconds <= _LEAST_S else min(_MOST, 1 + int(math.log(seconds / _LEAST_S) / _LOG_GROWTH))
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total_s += seconds

    def merge(self, other: Sketch) -> Self:
        """Add what another has counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total_s += other.total_s
        return self

    def quantile(self, share: float) -> float:
        """Return the duration that `share` of all do not exceed; 0 of none."""
        wanted, seen = share * (self.count - 1), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen > wanted:
                # In the middle of the bucket's borders, so that neither is further off than the error.
                return 0.0 if bucket == 0 else _LEAST_S * math.exp(_LOG_GROWTH * (bucket - 1)) * (1 + ERROR)
        return 0.0
