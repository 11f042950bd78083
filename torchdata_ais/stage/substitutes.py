"""Batches in the place of empty ones: which they are depends on the plan alone, so they are read for that.

A worker that is resumed, or another number of them, gives what a worker gives that has not stopped. So nothing is kept
of the batches that were made before: a second copy of the chain reads the positions of the substitute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torchdata_ais.errors import EmptyBatchError
from torchdata_ais.plan import Run
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.stage.above import with_above
from torchdata_ais.stage.pipe import IterDataPipe, Pipe
from torchdata_ais.stage.planned import Task
from torchdata_ais.stage.policy import ErrorPolicy


class Substitutes:
    """Finds what is given in the place of an empty batch.

    That is what is left of the slices of the other ranks in that step. If nothing is, it is the nearest batch of the
    epoch before it, and else after it, of which something is left. So a step gives the same samples for any number of
    ranks.

    Args:
        task: What the worker gives.
        rows_of: Reads some positions with a copy of the chain, and returns what stages leave of them.
    """

    def __init__(self, task: Task, rows_of: Callable[[Task], list[Any]]) -> None:
        self._task, self._rows_of = task, rows_of
        self._own: int | None = None  # the last step of which something is left in the slice of this worker
        self._before: tuple[int, Integers | None] | None = (
            None  # a step, and the nearest batch up to it, if any
        )
        self._after: tuple[int, Integers] | None = None  # likewise from a step on

    def note(self, step: int) -> None:
        """Note that something is left of the slice of this worker in `step`."""
        self._own = step

    def rows(self, step: int, left: int) -> list[Any]:
        """Return the rows that are given in the place of the empty batch of `step`.

        Args:
            step: The step.
            left: How many batches the worker has left, this one included.

        Raises:
            EmptyBatchError: Nothing is left of any batch of the epoch.
        """
        run, rank = self._task.run, self._task.share.rank
        for other in range(1, run.ranks):
            if rows := self._read(run.positions(step, (rank + other) % run.ranks)):
                return rows
        rows, positions = self._nearest_before(step)
        self._before = step, positions
        rows = rows or self._nearest_after(step)
        if not rows:
            raise EmptyBatchError.at(
                f"a worker has {left} batches left in this epoch, and nothing is left of them or of any other",
                todo="filter when the index is chosen (index.select)",
            )
        return rows

    def _nearest_before(self, step: int) -> tuple[list[Any], Integers | None]:
        run, rank = self._task.run, self._task.share.rank
        for number, slices in run_before(run, step, rank):
            if number == self._own:
                own = run.positions(number, rank)
                return self._read(own), own
            if self._before is not None and self._before[0] == number:
                known = self._before[1]
                return ([], None) if known is None else (self._read(known), known)
            for positions in slices:
                if rows := self._read(positions):
                    return rows, positions
        return [], None

    def _nearest_after(self, step: int) -> list[Any]:
        run, rank = self._task.run, self._task.share.rank
        if self._after is not None and self._after[0] > step:
            return self._read(self._after[1])
        for number in range(step + 1, run.epoch_of(step).end):
            for other in range(run.ranks):
                positions = run.positions(number, (rank + other) % run.ranks)
                if rows := self._read(positions):
                    self._after = number, positions
                    return rows
        return []

    def _read(self, positions: Integers) -> list[Any]:
        return self._rows_of(self._task._replace(only=positions))


def run_before(run: Run, step: int, rank: int) -> Iterator[tuple[int, list[Integers]]]:
    """Yield the steps of an epoch before `step`, the nearest first, with the slices of all ranks, that of `rank` first.

    Steps before the last segment of the run are counted in its global batches.
    """
    ranks = [(rank + other) % run.ranks for other in range(run.ranks)]
    epoch = run.epoch_of(step)
    for number in range(step - 1, epoch.step - 1, -1):
        yield number, [run.positions(number, one) for one in ranks]
    number, end = epoch.step - 1, epoch.position
    while end > epoch.known:
        begin = max(end - epoch.slots.global_batch, epoch.known)
        yield number, [part for one in ranks if len(part := epoch.slots.part(begin, end, one))]
        number, end = number - 1, begin


def separate(pipe: IterDataPipe[Any]) -> IterDataPipe[Any]:
    """Return a copy of a chain that runs next to it, and counts errors for itself."""
    other = with_above(pipe, separate)
    other = copy.copy(pipe) if other is pipe else other
    if isinstance(other, Pipe):
        policy = other.error_policy()
        if policy is not None:
            vars(other)["_policy"] = ErrorPolicy(policy.on_error)
        if "epoch_seed" in vars(other):
            vars(other)["epoch_seed"] = copy.copy(vars(other)["epoch_seed"])
    return other
