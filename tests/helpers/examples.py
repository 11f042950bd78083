"""How often a drawn case is tried."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return a fifth of `number` in the README's command; half, drawn anew, in ``.ci/run``; all in ``.ci/stress``."""
    share = {"same": 5, "fresh": 2}.get(settings.get_current_profile_name(), 1)
    return max(number // share, 2)
