"""Seed shared by ranks and workers.

Loaders give stages before the sharding filter the same seed everywhere, and torchdata's give those after it
another in each worker. A stage after the filter whose result must not depend on who does the work (random
augmentation, sub-sampling, the order of later passes) therefore has a small pipe put before the filter that does
nothing but take that seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import Self

from torchdata_ais.errors import StateError
from torchdata_ais.pipes.base.each_item import Unchanged
from torchdata_ais.pipes.base.pipe import IterDataPipe, ShardingFilter
from torchdata_ais.pipes.base.seed import EpochSeed, mix_seed
from torchdata_ais.pipes.base.upstream import below_plan, upstream, with_above
from torchdata_ais.samples import PlannedSample

if TYPE_CHECKING:
    from torchdata_ais.pipes.planned.stage import DrawnStage, PlannedStage


class SharedSeed(Unchanged):
    """Pass items on, and keep the seed sent to stages before the filter."""

    def __init__(self, source: IterDataPipe[object]) -> None:
        super().__init__(source)
        self.sent: int | None = None
        self.sends = 0

    def set_seed(self, seed: int) -> Self:
        """Take the seed of the next epoch: loaders call it."""
        self.sent = int(seed)
        self.sends += 1
        return self


def with_shared_seed(source: IterDataPipe[object]) -> IterDataPipe[object]:
    """Return `source`, or a copy, with a `SharedSeed` before any filter."""
    if shared_seed_above(source) is not None:
        return source
    sharder = sharder_above(source)
    return SharedSeed(source) if sharder is None else _before(sharder, source)


def _before(sharder: ShardingFilter, pipe: IterDataPipe[object]) -> IterDataPipe[object]:
    if pipe is sharder:
        return with_above(pipe, SharedSeed)
    return with_above(pipe, partial(_before, sharder))


def shared_seed_above(pipe: IterDataPipe[object]) -> SharedSeed | None:
    """Return the nearest `SharedSeed` above `pipe`, or None."""
    return next((above for above in upstream(pipe) if isinstance(above, SharedSeed)), None)


def sharder_above(pipe: IterDataPipe[object]) -> ShardingFilter | None:
    """Return the nearest sharding filter above `pipe`, or None."""
    return next((above for above in upstream(pipe) if isinstance(above, ShardingFilter)), None)


def instances_of(sharder: ShardingFilter | None) -> tuple[int, int]:
    """Return the number of instances that share items, and this one's number."""
    return (1, 0) if sharder is None else (sharder.num_of_instances, sharder.instance_id)


class SharedEpochSeed(EpochSeed):
    """Gives each epoch the seed of `SharedSeed`, equal in ranks and workers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._sends = 0

    def next_epoch_of(self, pipe: IterDataPipe[object]) -> int:
        """Return the seed of the epoch that the calling stage `pipe` begins now."""
        shared = shared_seed_above(pipe)
        if shared is not None and shared.sends != self._sends:
            self._sends = shared.sends
            if self._next is None and shared.sent is not None:
                self.send(shared.sent)
        return self.next_epoch()


class SampleSeeds:
    """Gives each sample of an epoch its seed.

    Below a plan `own_seed` takes the place of the epoch's, where the seed of the run and the draw say the rest.
    """

    def __init__(self, pipe: IterDataPipe[object], epoch_seed: int, own_seed: int = 0) -> None:
        self.epoch_seed = epoch_seed
        self._own_seed = own_seed
        self._plan: PlannedStage | None = None
        self._drawn: DrawnStage | None = None
        if below_plan(pipe):
            # A pipe without a plan has no use for the modules of plans: they would double what it imports.
            from torchdata_ais.pipes.planned.batches import drawn_above, plan_of

            self._plan, self._drawn = plan_of(pipe), drawn_above(pipe)
        self._last: tuple[int, int] | None = None
        _, self._instance = instances_of(sharder_above(pipe))
        # Where a sample can come twice in an epoch, its key alone would draw the same both times.
        self._again = any(getattr(type(above), "repeats", False) for above in upstream(pipe))
        self._shared = shared_seed_above(pipe)
        self._count = 0

    def of(self, item: object) -> int:
        """Return the seed for `item`, by key or URL, or by the items before it."""
        if self._plan is not None:
            return self._of_draw(item)
        if isinstance(item, Mapping):
            name = item.get("__key__", item.get("url"))
        else:
            name = item if isinstance(item, str) else None
        if name is not None and not self._again:
            return mix_seed(self.epoch_seed, "key", name)
        shard = getattr(item, "shard", -1)
        if name is None or shard < 0:
            self._count += 1
            return mix_seed(self.epoch_seed, "count", self._instance, self._count)
        sent = self._shared.sent if self._shared is not None else None  # another one in each pass
        return mix_seed(self.epoch_seed, "key", name, shard, sent)

    def _of_draw(self, item: object) -> int:
        """Return the seed for an item of a plan, by its draw and its number in it."""
        assert self._plan is not None
        if isinstance(item, PlannedSample):
            drawn = item.source, item.draw
        else:
            drawn = (0, -1) if self._drawn is None else self._drawn.drawn
        if drawn != self._last:
            self._last, self._count = drawn, 0
        self._count += 1
        return mix_seed(self._plan.run_seed, self._own_seed, "draw", *drawn, self._count)

    def check_saveable(self) -> None:
        """Raise `StateError` if seeds depend on the number of earlier items."""
        if self._count:
            raise StateError.at(
                "random draws for items without a key depend on the items before them",
                todo="put the stage behind .group_samples(), where samples have keys",
            )


def reseed(pipe: IterDataPipe[object], seed: int) -> None:
    """Send random stages at and above `pipe` seeds that follow from `seed`."""
    for index, above in enumerate(upstream(pipe)):
        if callable(getattr(above, "set_seed", None)):
            above.set_seed(mix_seed(seed, index) >> 1)
