"""In which order the stages in front of the shards' reading are carried out, and which one is missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.webdataset import filters
from torchdata_ais.webdataset.shardlists import (
    SimpleShardList,
    single_node_only,
    split_by_node,
    split_by_worker,
)
from torchdata_ais.webdataset.shuffling import shuffle
from torchdata_ais.webdataset.tariterators import tarfile_samples
from torchdata_ais.webdataset.utils import Place

logger = logging.getLogger("torchdata_ais")

SPLITS = (split_by_node, split_by_worker, single_node_only)
"""Stages that are told which process this is."""

_RESAMPLED = (filters.resampled.f,)
_OWN = __name__.rpartition(".")[0]


def plan(stages: Sequence[Any], place: Place, *, split: bool) -> list[Any]:
    """Return the stages in the order to carry them out.

    Splits go before the random stages right in front of them: each process draws for itself, and a split of
    different orders would lose shards and double others.

    Args:
        stages: As the user wrote them.
        place: Which process this is.
        split: Whether to add a missing split by worker.
    """
    planned = list(stages)
    end = next((i for i, stage in enumerate(planned) if function_of(stage) is tarfile_samples), -1)
    if split and end > 0 and _reads_all(planned[:end]):
        if place.num_workers > 1:
            planned.insert(end, split_by_worker)
        if place.world_size > 1 and place.rank == 0 and place.worker == 0:
            logger.warning(
                "each of %d ranks reads all shards; put wds.split_by_node behind the list of shards",
                place.world_size,
            )
    result: list[Any] = []
    for stage in planned:
        position = len(result)
        if function_of(stage) in SPLITS:
            while position > 1 and _is_random(result[position - 1]):
                position -= 1
        result.insert(position, stage)
    return result


def function_of(stage: Any) -> Any:
    """Return the function that a curried stage stands for, or the stage itself."""
    return getattr(stage, "f", stage)


def _is_random(stage: Any) -> bool:
    return isinstance(stage, shuffle) or function_of(stage) is filters.rsample.f


def _reads_all(stages: Sequence[Any]) -> bool:
    """Return whether surely each worker would read the same shards: every stage is known, and none splits."""
    source, *others = stages
    if not isinstance(source, (SimpleShardList, list, tuple, IterDataPipe)):
        return False
    functions = [function_of(stage) for stage in others]
    known = all(str(getattr(f, "__module__", "")).startswith(_OWN) for f in functions)
    return known and not any(f in SPLITS or f in _RESAMPLED for f in functions)
