"""Pipes that read by index, run as the workers of several ranks would run them, in one process and thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.pipes.planned.stage import Share, Task
from torchdata_ais.plan import Run, RunSegment

Items = list[Any]


def steps_of(
    make: Callable[[], Any], ranks: int, workers: int, batch: int, *, seed: int = 0, epoch: int = 0
) -> list[list[Items]]:
    """Return for each rank what its loader would give in an epoch: the items of its workers, round and round.

    Args:
        make: Returns the pipe anew: each worker has a copy.
        ranks: How many ranks.
        workers: Of each; 0 counts as 1.
        batch: Samples of a global batch.
        seed: Of the run.
        epoch: Which one.
    """
    workers = max(1, workers)
    everything = []
    for rank in range(ranks):
        items = []
        for worker in range(workers):
            pipe = make()
            reader: Any = plan_of(pipe)
            sources = reader.data.sources_with()
            weights = sources.weights_at(0)
            segment = RunSegment(0, 0, 0, batch, weights, (0,) * len(weights))
            run = Run(sources, seed, [segment], ranks=ranks)
            share = Share(rank, ranks, worker, workers)
            reader.take_task(Task(run, share, run.epoch(epoch).step, list(range(len(weights)))))
            items.append(list(pipe))
        most = max(map(len, items))
        everything.append([part[turn] for turn in range(most) for part in items if turn < len(part)])
    return everything
