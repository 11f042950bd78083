"""Sharding filters told which instance they are, so that ranks come first."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any

from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES, apply_sharding
from torchdata_ais.stage.pipe import IterDataPipe, ShardingFilter
from torchdata_ais.stage.planned import PlannedStage
from torchdata_ais.stage.upstream import upstream
from torchdata_ais.world import instance_of

_TRAVERSING = threading.Lock()
"""torch looks at one graph at a time, and raises in a second thread that tries."""

os.register_at_fork(
    before=_TRAVERSING.acquire, after_in_parent=_TRAVERSING.release, after_in_child=_TRAVERSING.release
)


def shard_instance(pipe: IterDataPipe[Any], number: int, instance: int) -> None:
    """Make `pipe` the `instance`-th of `number` in this process.

    What another loader left in its sharding filters is taken out first: torch refuses to mix kinds of splits.
    """
    for stage in upstream(pipe):
        if isinstance(stage, ShardingFilter):
            stage.groups.clear()
            stage._update_num_of_instances()
        elif isinstance(stage, PlannedStage):
            stage.forget_split()
    if number > 1:
        with _TRAVERSING:
            apply_sharding(pipe, number, instance, SHARDING_PRIORITIES.DISTRIBUTED)


def number_ranks_first(stages: Iterable[Any]) -> None:
    """Number the instances of the filters that were split over ranks and workers: ranks first.

    torch numbers the workers of rank 0 first: with 6 shards over 2 ranks of 2 workers rank 0 would get 4 of them.
    """
    for stage in stages:
        if isinstance(stage, ShardingFilter) and stage.sharding_group_filter is None:
            ranks, rank = stage.groups.get(SHARDING_PRIORITIES.DISTRIBUTED, (1, 0))
            workers, worker = stage.groups.get(SHARDING_PRIORITIES.MULTIPROCESSING, (1, 0))
            if ranks * workers == stage.num_of_instances:
                stage.instance_id = instance_of(rank, ranks, worker)
