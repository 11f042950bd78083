"""How often a drawn case is tried."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return the share of `number` that a run draws.

    A sixth in the README's command; a third, other ones each time, in ``.ci/run``, and a twentieth where that runs the
    tests in other orders; all in ``.ci/stress``.
    """
    share = {"same": 6, "fresh": 3, "few": 20}.get(settings.get_current_profile_name(), 1)
    return max(number // share, 2)
