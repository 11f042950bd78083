"""How often a drawn case is tried."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return a share of `number`: a sixth in the README's command, a third, drawn anew, in ``.ci/run``.

    All in ``.ci/stress``; a twentieth where ``.ci/run`` runs the tests in other orders.
    """
    share = {"same": 6, "fresh": 3, "few": 20}.get(settings.get_current_profile_name(), 1)
    return max(number // share, 2)
