"""How often a drawn case is tried."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return a fifth of `number` in the README's command; all, and fresh ones, in ``.ci/run``."""
    return max(number // 5, 2) if settings().derandomize else number
