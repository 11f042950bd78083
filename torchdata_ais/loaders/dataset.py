"""`as_dataset`: a pipe as an `IterableDataset` that shards itself and carries state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchdata_ais.arguments import checked
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders.instance import InstancePlan, begin
from torchdata_ais.loaders.state import check_single
from torchdata_ais.ranks.rendezvous import begin_together
from torchdata_ais.ranks.sharding import shard_instance
from torchdata_ais.stage.checkpoint import save, stage_names
from torchdata_ais.stage.origin import note_place, trimmed
from torchdata_ais.stage.pipe import IterDataPipe, at_work
from torchdata_ais.stage.seed import mix_seed
from torchdata_ais.stage.slots import Share, check_planned
from torchdata_ais.state import Part, StreamState, pack, to_plain, unpack
from torchdata_ais.world import WorldOptions, instance_of

__all__ = ["PipeDataset", "as_dataset"]


@checked
def as_dataset(
    pipe: IterDataPipe[Any],
    *,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    store: Any = None,
    rank_timeout_s: float = 1800.0,
) -> PipeDataset:
    """Return `pipe` as a dataset for torch's `DataLoader` and torchdata's `StatefulDataLoader`.

    Ranks are asked for, and the shards are listed, here and now: what comes and goes in the bucket later is not seen.
    Workers get both, whatever their start method.

    Args:
        pipe: A pipe that batches by itself; use ``batch_size=None`` in the loader.
        seed: Seed of all epochs.
        rank: This rank, of `world_size`. Default: what torch.distributed says.
        world_size: How many ranks share out the data; 1 for a dataset of this process alone.
        store: As for `ais_loader`.
        rank_timeout_s: How long to wait for a rank that has not come here.

    Returns:
        An `IterableDataset` that splits its shards over ranks and workers by itself, with ``set_epoch``,
        ``state_dict`` and ``load_state_dict``. `StatefulDataLoader` finds the latter two in its workers; resume with
        the same number of ranks and workers. Under several ranks call ``set_epoch(n)`` before each epoch, as for
        torch's ``DistributedSampler``: without it every epoch has the order of the first.

    Raises:
        UsageError: ``WORLD_SIZE`` above 1 without torch.distributed or `rank`; ranks that were given different pipes,
            sources or seeds.
        ObjectChangedError: The ranks have listed different objects.
        TransportError: The listing failed.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode().to_tuple("cls").batched(4)
        >>> sorted(n for (batch,) in DataLoader(as_dataset(pipe), batch_size=None) for n in batch.tolist())
        [0, 1, 2, 3, 4, 5]
    """
    return PipeDataset(pipe, seed, WorldOptions(rank, world_size, store), rank_timeout_s)


class PipeDataset(IterableDataset[Any]):
    """See `as_dataset`."""

    def __init__(
        self, pipe: IterDataPipe[Any], seed: int, world: WorldOptions, rank_timeout_s: float
    ) -> None:
        if not isinstance(pipe, IterDataPipe):
            raise UsageError.at(
                f"as_dataset was given an item of type {type(pipe).__name__}, not a pipe",
                todo="pass the last stage of a chain that begins with AISSourceLister(...) or IterableWrapper([...])",
            )
        self._pipe = pipe
        self._seed = seed
        found = world.find()
        self._rank, self._ranks = found.rank, found.size
        settings = {"loader": "as_dataset", "seed": seed}
        self._planned = check_planned(pipe)
        if self._planned is not None:
            self._planned.take_share(Share(self._rank, self._ranks))  # for len()
        self._listing, _ = begin_together(pipe, found, settings, rank_timeout_s)
        self._runs = 0
        # In shared memory, so that set_epoch reaches workers that live on between epochs.
        self._epoch = torch.full((1,), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._plan: InstancePlan | None = None
        self._pending: StreamState | None = None

    def __len__(self) -> int:
        """What ``.with_length(n)`` declares; and with ``.read_samples()`` how many items this rank gets in an epoch."""
        return len(self._pipe)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; without it each iteration counts as one."""
        self._epoch[0] = epoch

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        number, instance, worker_seed = self._where()
        epoch = int(self._epoch[0])
        if epoch >= 0:
            epoch_seed = mix_seed(self._seed, "epoch", epoch)
        elif self._ranks > 1:  # what torch's generator gives, and how often each rank iterates, may differ
            epoch_seed = mix_seed(self._seed, "epoch", 0)
        elif worker_seed is not None:
            epoch_seed = mix_seed(self._seed, "worker", worker_seed)
        else:
            epoch_seed = mix_seed(self._seed, "run", self._runs)
        self._runs += 1
        plan = InstancePlan(epoch_seed, number, instance)
        if self._pending is not None:
            plan, self._pending = self._resumed(self._pending, plan), None
        shard_instance(self._pipe, number, instance)
        if self._planned is not None:
            worker, rank = divmod(instance, self._ranks)
            self._planned.take_share(Share(rank, self._ranks, worker, number // self._ranks))
        self._plan = plan
        begin(self._pipe, plan)
        try:
            with self._listing.on(self._pipe):
                yield from self._pipe
        except Exception as error:  # noqa: BLE001 - raised again
            note_place(error, None, None, at_work(self._pipe))
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has
        self._plan = None

    def _where(self) -> tuple[int, int, int | None]:
        info = get_worker_info()
        if info is None:
            return self._ranks, self._rank, None
        # The loader draws one seed an epoch and adds the worker's number.
        instance = instance_of(self._rank, self._ranks, info.id)
        return self._ranks * info.num_workers, instance, info.seed - info.id

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration of this process stands.

        Raises:
            StateError: A stage that a checkpoint cannot pass through; names it.
        """
        number, instance, _ = self._where()
        plan, instances = self._plan, None
        if plan is not None:
            stands: Part = save(self._pipe) or unpack(plan.not_begun())
            instances = [stands]
        return to_plain(
            StreamState(
                stages=stage_names(self._pipe),
                seed=0 if plan is None else plan.epoch_seed,
                epoch=self._runs,
                user_epoch=self._runs,
                rank=instance,
                ranks=number,
                shards=self._listing.digest,
                instances=instances,
            )
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration go on where `state` was taken.

        Raises:
            StateError: It is none, damaged, of another pipeline, or of several workers.
        """
        single = check_single(state, stage_names(self._pipe))
        self._runs = single.epoch
        self._pending = single if single.instances is not None else None

    def _resumed(self, state: StreamState, plan: InstancePlan) -> InstancePlan:
        if (state.ranks, state.rank) != (plan.number, plan.instance) or state.instances is None:
            raise StateError.at(
                f"the state is of instance {state.rank} of {state.ranks}, this is {plan.instance} of {plan.number}",
                todo="resume a StatefulDataLoader with the same ranks and workers; ais_loader can change both",
            )
        digests = (state.shards, self._listing.digest)
        return InstancePlan(state.seed, plan.number, plan.instance, pack(state.instances[0]), digests)
