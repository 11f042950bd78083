"""How often a rank makes a request to the store that all share, beside its batches."""

from __future__ import annotations

from torchdata_ais.stage.seed import mix_seed

_MOST_S = 10.0
LEAST_S = 1.0
_REQUESTS_A_SECOND = 100
_JITTER = 0.2


def usual_interval(ranks: int) -> float:
    """Return how many seconds ranks let pass between two requests, on average.

    Example:
        >>> usual_interval(8), usual_interval(500), usual_interval(10_000)
        (1.0, 5.0, 10.0)
    """
    return min(_MOST_S, max(LEAST_S, ranks / _REQUESTS_A_SECOND))


def interval_of(rank: int, ranks: int) -> float:
    """Return how many seconds a rank lets pass between two requests: 1 to 10, and up to a fifth more or less.

    Example:
        >>> 0.8 <= interval_of(0, 8) <= 1.2, 8 <= interval_of(17, 10000) <= 12
        (True, True)
    """
    share = mix_seed(rank, "request to the store") % 1000 / 999
    return usual_interval(ranks) * (1 + _JITTER * (2 * share - 1))
