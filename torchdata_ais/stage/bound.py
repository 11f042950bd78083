"""What a stage holds at most: stated by the stage, printed by `draw` and `explain`."""

from __future__ import annotations

from typing import NamedTuple


class MemoryBound(NamedTuple):
    """What a stage holds at most in one process.

    Attributes:
        text: As `draw` prints it; empty for the one item that the stage is at work on.
        ahead: Bytes of it that are fetched ahead.
    """

    text: str = ""
    ahead: int = 0


def mib(size: int) -> str:
    """Return `size` in MiB.

    Example:
        >>> mib(3 << 19)
        '1.5 MiB'
    """
    return f"{size / (1 << 20):g} MiB"
