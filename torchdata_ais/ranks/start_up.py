"""When a rank begins: many ranks one after the other, so that their first requests do not meet at the cluster."""

from __future__ import annotations

import time
from contextlib import nullcontext

from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.world import World

_TOGETHER = 64  # so many ranks may begin at once
_STARTS_A_SECOND = 500.0  # workers whose first requests a cluster takes beside its other work
_LONGEST_S = 30.0


def spread_of(processes: int, workers: int, given_s: float | None = None) -> float:
    """Return over how many seconds the ranks of a job begin.

    Args:
        processes: How many begin.
        workers: Workers of each.
        given_s: What the program says; None: nothing for up to 64 ranks, else as long as 500 workers begin a second,
            30 s at most.

    Example:
        >>> spread_of(64, 8), spread_of(1000, 8), spread_of(10_000, 8), spread_of(10_000, 8, given_s=2.0)
        (0.0, 16.0, 30.0, 2.0)
    """
    if given_s is not None:
        return given_s
    return 0.0 if processes <= _TOGETHER else min(_LONGEST_S, processes * workers / _STARTS_A_SECOND)


def delay_of(process: int, processes: int, spread_s: float) -> float:
    """Return how many seconds the process waits: the first none, the last nearly all.

    Example:
        >>> [delay_of(process, 4, 10.0) for process in range(4)]
        [0.0, 2.5, 5.0, 7.5]
    """
    return spread_s * process / processes


def wait_for_turn(world: World, workers: int, given_s: float | None, ranks: Ranks | None) -> None:
    """Wait until this process may begin; the others hear meanwhile that it lives."""
    process, processes = world.members
    delay_s = delay_of(process, processes, spread_of(processes, workers, given_s))
    if delay_s > 0:
        with nullcontext() if ranks is None else ranks.alive():
            time.sleep(delay_s)
