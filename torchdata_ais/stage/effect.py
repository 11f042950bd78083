"""What a stage does to the items it takes in, and so to their number."""

from __future__ import annotations

from typing import Literal, NamedTuple

Gives = Literal["each", "fewer", "more", "batches", "unknown"]


class Effect(NamedTuple):
    """What a stage does to the items it takes in.

    Attributes:
        gives: One item for each, fewer, more, batches of `size`, or nothing that is known.
        size, partial: Items of a batch, and whether the last one may be smaller.
        mixes: Whether the order changes.
        holds: Whether items are held back between two that are given out.
        keeps_place: Whether items still know their place in the data set.
    """

    gives: Gives = "unknown"
    size: int = 1
    partial: bool = True
    mixes: bool = False
    holds: bool = False
    keeps_place: bool = True

    def length(self, taken: int | None) -> int | None:
        """Return how many items come of `taken`; None where that is not known.

        Example:
            >>> Effect("batches", 4).length(9), Effect("batches", 4, partial=False).length(9), Effect("fewer").length(9)
            (3, 2, None)
        """
        if taken is None or self.gives not in ("each", "batches"):
            return None
        return taken // self.size + (self.partial and taken % self.size > 0)
