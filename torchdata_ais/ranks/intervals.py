"""Intervals between starts of ranks, and between their requests."""

from __future__ import annotations

_MOST_S = 10.0
LEAST_S = 1.0
_REQUESTS_A_SECOND = 100


def usual_interval(ranks: int) -> float:
    """Return how many seconds ranks let pass between two requests, on average.

    Example:
        >>> usual_interval(8), usual_interval(500), usual_interval(10_000)
        (1.0, 5.0, 10.0)
    """
    return min(_MOST_S, max(LEAST_S, ranks / _REQUESTS_A_SECOND))


_TOGETHER = 64  # so many ranks may begin at once
_STARTS_A_SECOND = 500.0  # workers whose first requests a cluster serves next to its other work
_LONGEST_S = 30.0


def spread_of(processes: int, workers: int, given_s: float | None = None) -> float:
    """Return over how many seconds the ranks of a job start.

    Without the program's value `given_s`: 0 for up to 64 ranks, else the time in which all workers start at 500 a
    second, 30 s at most.

    Example:
        >>> spread_of(64, 8), spread_of(1000, 8), spread_of(10_000, 8), spread_of(10_000, 8, given_s=2.0)
        (0.0, 16.0, 30.0, 2.0)
    """
    if given_s is not None:
        return given_s
    return 0.0 if processes <= _TOGETHER else min(_LONGEST_S, processes * workers / _STARTS_A_SECOND)


def delay_of(process: int, processes: int, spread_s: float) -> float:
    """Return the delay of one process in seconds: 0 for the first one.

    Example:
        >>> [delay_of(process, 4, 10.0) for process in range(4)]
        [0.0, 2.5, 5.0, 7.5]
    """
    return spread_s * process / processes
