"""How many requests reading by a plan will make, counted with the code that makes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from torchdata_ais.plan import Epoch, Run
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.reading.joined import with_partners
from torchdata_ais.reading.requests import THREADS, Request, Wanted, chunks_in, requests_for, together

_MOST_SAMPLES = 1 << 16  # that are looked up; a larger epoch is estimated from those of some workers
_WORKERS = 8  # of these

LookUp = Callable[[Integers], Sequence[Wanted]]


class Traffic(NamedTuple):
    """What the workers of all ranks ask for in an epoch.

    Attributes:
        ranges: Ranges of shards.
        requests: In so many requests, several ranges in one where the cluster takes that.
        bytes: Of these ranges.
        connections: How many of them a worker has under way at the same time, at most.
        exact: Whether all of it was counted, or some workers' part, and the rest estimated from it.
    """

    ranges: int
    requests: int
    bytes: int
    connections: int
    exact: bool


def traffic_of(
    run: Run,
    epoch: Epoch,
    workers: int,
    look_up: LookUp,
    window_bytes: int,
    group_of: Callable[[Request], Hashable | None],
) -> Traffic:
    """Return what the workers of all ranks will ask for.

    Args:
        run: The run.
        epoch: Which of its epochs.
        workers: Of each rank.
        look_up: Returns what stands at some positions.
        window_bytes: What a worker asks for ahead.
        group_of: See `together`.
    """
    instances, planned = run.ranks * workers, epoch.slots.length
    exact = planned <= _MOST_SAMPLES
    chosen = range(instances) if exact else range(0, instances, -(-instances // _WORKERS))
    ranges = requests = size = looked = connections = 0
    for instance in chosen:
        rank, worker = instance // workers, instance % workers
        steps = range(epoch.step + worker, epoch.end, workers)
        most = len(steps) if exact else 1 + _MOST_SAMPLES // _WORKERS * run.ranks // epoch.slots.global_batch
        looked += sum(len(run.positions(step, rank)) for step in steps[:most])
        ahead: deque[tuple[int, int]] = deque()
        for chunk in chunks_in(with_partners(_looked_up(run, rank, steps[:most], look_up)), window_bytes):
            asked = requests_for(chunk)
            ranges += len(asked)
            size += sum(request.length for request in asked)
            sent = sum(1 for _ in together(asked, group_of))
            requests += sent
            ahead.append((sum(request.length for request in asked), sent))
            while len(ahead) > 1 and sum(held for held, _ in ahead) > window_bytes:
                ahead.popleft()
            connections = max(connections, sum(sent for _, sent in ahead))
    slots = epoch.slots
    given = min(slots.length, len(slots) * slots.global_batch) + slots.repeated()
    times = 1.0 if exact else given / looked
    return Traffic(
        round(ranges * times), round(requests * times), round(size * times), min(connections, THREADS), exact
    )


def _looked_up(run: Run, rank: int, steps: range, look_up: LookUp) -> Iterator[Sequence[Wanted]]:
    """Yield what a worker wants, some steps at a time."""
    for begin in range(0, len(steps), 64):
        yield look_up(np.concatenate([run.positions(step, rank) for step in steps[begin : begin + 64]]))
