"""`as_dataset`: a pipe as an `IterableDataset` that shards itself and carries state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_sharding

from torchdata_ais.errors import StateError
from torchdata_ais.loaders.instance import InstancePlan, begin, pack_fresh, pack_state
from torchdata_ais.loaders.state import check_single, make_state
from torchdata_ais.pipes._checkpoint import stage_names
from torchdata_ais.pipes._pipe import IterDataPipe, ShardingFilter, upstream
from torchdata_ais.pipes._seed import mix_seed

__all__ = ["PipeDataset", "as_dataset", "rank_and_ranks", "shard_instance"]


def rank_and_ranks() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; ``(0, 1)`` without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def shard_instance(pipe: IterDataPipe[Any], number: int, instance: int) -> None:
    """Make `pipe` the `instance`-th of `number` in this process.

    What another loader left in its sharding filters is taken out first: torch refuses to mix kinds of splits.
    """
    for stage in upstream(pipe):
        if isinstance(stage, ShardingFilter):
            stage.groups.clear()
            stage._update_num_of_instances()
    if number > 1:
        apply_sharding(pipe, number, instance, SHARDING_PRIORITIES.DISTRIBUTED)


def as_dataset(pipe: IterDataPipe[Any], *, seed: int = 0) -> PipeDataset:
    """Return `pipe` as a dataset for torch's `DataLoader` and torchdata's `StatefulDataLoader`.

    Args:
        pipe: A pipe that batches by itself; use ``batch_size=None`` in the loader.
        seed: Seed of all epochs.

    Returns:
        An `IterableDataset` that splits its shards over ranks and workers by itself, with ``set_epoch``,
        ``state_dict`` and ``load_state_dict``. `StatefulDataLoader` finds the latter two in its workers; resume with
        the same number of ranks and workers.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode().to_tuple("cls").batched(4)
        >>> sorted(n for (batch,) in DataLoader(as_dataset(pipe), batch_size=None) for n in batch.tolist())
        [0, 1, 2, 3, 4, 5]
    """
    return PipeDataset(pipe, seed=seed)


class PipeDataset(IterableDataset[Any]):
    """See `as_dataset`."""

    def __init__(self, pipe: IterDataPipe[Any], *, seed: int = 0) -> None:
        self._pipe = pipe
        self._seed = seed
        self._runs = 0
        # In shared memory, so that set_epoch reaches workers that live on between epochs.
        self._epoch = torch.full((1,), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._plan: InstancePlan | None = None
        self._pending: dict[str, Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; without it each iteration counts as one."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Any]:
        number, instance, worker_seed = self._where()
        epoch = int(self._epoch[0])
        if epoch >= 0:
            epoch_seed = mix_seed(self._seed, "epoch", epoch)
        elif worker_seed is not None:
            epoch_seed = mix_seed(self._seed, "worker", worker_seed)
        else:
            epoch_seed = mix_seed(self._seed, "run", self._runs)
        self._runs += 1
        plan = InstancePlan(epoch_seed, number, instance)
        if self._pending is not None:
            plan, self._pending = self._resumed(self._pending, number, instance), None
        shard_instance(self._pipe, number, instance)
        self._plan = plan
        begin(self._pipe, plan)
        yield from self._pipe
        self._plan = None

    @staticmethod
    def _where() -> tuple[int, int, int | None]:
        rank, ranks = rank_and_ranks()
        info = get_worker_info()
        if info is None:
            return ranks, rank, None
        # The loader draws one seed an epoch and adds the worker's number.
        return ranks * info.num_workers, rank * info.num_workers + info.id, info.seed - info.id

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration of this process stands.

        Raises:
            StateError: A stage that a checkpoint cannot pass through; names it.
        """
        number, instance, _ = self._where()
        packed = None
        if self._plan is not None:
            packed = pack_state(self._pipe) or pack_fresh(number, instance)
        return make_state(
            stages=stage_names(self._pipe),
            seed=self._plan.epoch_seed if self._plan is not None else 0,
            epoch=self._runs,
            rank=instance,
            ranks=number,
            workers=1,
            instances=None if packed is None else [packed],
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration go on where `state` was taken.

        Raises:
            StateError: It is none, damaged, of another pipeline, or of several workers.
        """
        state = check_single(state, stage_names(self._pipe))
        self._runs = state["epoch"]
        self._pending = state if state["instances"] is not None else None

    def _resumed(self, state: dict[str, Any], number: int, instance: int) -> InstancePlan:
        if (state["ranks"], state["rank"]) != (number, instance):
            raise StateError.at(
                f"the state is of instance {state['rank']} of {state['ranks']}, this is {instance} of {number}",
                todo="resume a StatefulDataLoader with the same ranks and workers; ais_loader can change both",
            )
        return InstancePlan(state["seed"], number, instance, state["instances"])
