"""`ais_loader`: one call that runs a pipe over workers and ranks, epoch after epoch, and can be resumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from typing_extensions import Self

from torchdata_ais.errors import LoaderError, StateError, UsageError
from torchdata_ais.loaders.engine_options import EngineName, EngineOptions, make_engine
from torchdata_ais.loaders.engines import Engine, InProcessEngine, Step, pinned
from torchdata_ais.loaders.equal_steps import Agreement, stop_together
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.state import check_state, plans_for
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.observe.report import Stats, stats, with_stats
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.ranks.rendezvous import begin_together
from torchdata_ais.stage.checkpoint import chain_of, stage_names
from torchdata_ais.stage.pipe import IterDataPipe, is_sharding, upstream
from torchdata_ais.state import MergedState, StreamState, to_plain, unpack
from torchdata_ais.workers.counts import ended
from torchdata_ais.world import World, WorldOptions, instance_of

__all__ = ["AISLoader", "ais_loader"]


def ais_loader(
    pipe: IterDataPipe[Any],
    *,
    num_workers: int = 0,
    seed: int = 0,
    epoch_steps: int | Literal["pad", "shortest"] | None = None,
    prefetch: int = 2,
    pin_memory: bool = False,
    engine: EngineName = "auto",
    multiprocessing_context: str | None = None,
    stall_after: float | None = None,
    on_stats: Callable[[Stats], object] | None = None,
    stats_every: float = 60.0,
    rank: int | None = None,
    world_size: int | None = None,
    store: Any = None,
    rank_timeout_s: float = 1800.0,
) -> AISLoader:
    """Return a loader over `pipe`.

    Args:
        pipe: A pipe that batches by itself, e.g. with ``.batched(64)``.
        num_workers: Worker processes of this rank; 0 runs the pipe in this process.
        seed: Seed of all epochs. The order of an epoch is a function of (data, seed, epoch, ranks, workers).
        epoch_steps: Batches a rank gives in an epoch. None: all it has, every sample once, ranks may differ.
            A number: exactly that many; an epoch goes on in the data where the last one stopped.
            ``"shortest"``: ranks stop together when the first has none left, the rest of the epoch is dropped.
            ``"pad"``: ranks go on until the last has none left, the others repeat samples (``loader.repeated``).
        prefetch: Batches each worker makes ahead.
        pin_memory: Put tensors into page-locked memory.
        engine: ``"dataloader2"`` (workers live on between epochs), ``"dataloader"`` (torch's, new workers each epoch),
            or ``"auto"``: DataLoader2 where torchdata has it.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        stall_after: Seconds an item may take in a worker; then its log gets the stacks of its threads, and a
            `StallError` names worker, stage and object. With no workers, or under ``engine="dataloader"``, only the
            log says where it stands. A worker that does not run at all (stopped, swapped out) is a `StallError` two
            seconds later. None: no limit but those of the transport, and 30 s for a worker that a signal has stopped.
        on_stats: Called with what `stats` returns, between two batches, every `stats_every` seconds and at the end of
            an epoch.
        stats_every: Seconds.
        rank: This rank, of `world_size`. Default: what torch.distributed says at the first iteration.
        world_size: How many ranks share out the data; 1 for a loader of this process alone.
        store: A store of torch.distributed by which the ranks compare what they read; each loader of a run in turn
            may use the same. Default: the process group's, where `rank` is not given.
        rank_timeout_s: How long to wait for a rank that has not begun.

    Returns:
        An iterable of batches, a context manager. One `iter` is one epoch.

    Raises:
        UsageError: Arguments that cannot work, a pipe that cannot be sent to workers, ``WORLD_SIZE`` above 1 without
            torch.distributed or `rank`; ranks that were given different pipes, sources or arguments.
        ObjectChangedError: The ranks have listed different objects.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).shuffle().load_tar().group_samples().decode().to_tuple("cls")
        >>> with ais_loader(pipe.batched(4), seed=1) as loader:
        ...     first = [n for (batch,) in loader for n in batch.tolist()]
        ...     second = [n for (batch,) in loader for n in batch.tolist()]
        >>> sorted(first) == sorted(second) == [0, 1, 2, 3, 4, 5]
        True
    """
    return AISLoader(
        pipe,
        num_workers=num_workers,
        seed=seed,
        epoch_steps=epoch_steps,
        prefetch=prefetch,
        pin_memory=pin_memory,
        engine=engine,
        multiprocessing_context=multiprocessing_context,
        stall_after=stall_after,
        on_stats=on_stats,
        stats_every=stats_every,
        world=WorldOptions(rank, world_size, store),
        rank_timeout_s=rank_timeout_s,
    )


class AISLoader:
    """See `ais_loader`.

    Attributes:
        epoch: The epoch under way, or the last one; -1 before the first.
        repeated: Batches repeated in this epoch to reach the length of the longest rank.
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        *,
        num_workers: int,
        seed: int,
        epoch_steps: int | Literal["pad", "shortest"] | None,
        prefetch: int,
        pin_memory: bool,
        engine: EngineName,
        multiprocessing_context: str | None,
        stall_after: float | None,
        on_stats: Callable[[Stats], object] | None,
        stats_every: float,
        world: WorldOptions,
        rank_timeout_s: float,
    ) -> None:
        if not isinstance(pipe, IterDataPipe):
            raise UsageError.at(
                f"ais_loader was given an item of type {type(pipe).__name__}, not a pipe",
                todo="pass the last stage of a chain that begins with AISSourceLister(...) or IterableWrapper([...])",
            )
        if isinstance(epoch_steps, str) and epoch_steps not in ("pad", "shortest"):
            raise UsageError.at(
                f"epoch_steps={epoch_steps!r}", todo='use None, a number, "pad" or "shortest"'
            )
        if isinstance(epoch_steps, int) and epoch_steps < 1:
            raise UsageError.at(f"epoch_steps={epoch_steps}", todo="use at least 1")
        if stats_every <= 0:
            raise UsageError.at(f"stats_every={stats_every}", todo="use seconds, more than 0")
        self._how = EngineOptions(num_workers, prefetch, engine, multiprocessing_context, stall_after)
        self._pipe = pipe
        self._num_workers = num_workers
        self._seed = seed
        self._epoch_steps = epoch_steps
        self._pin = pin_memory
        self._on_stats = on_stats
        self._stats_every = stats_every
        self._no_state: StateError | None = None
        self._stages: list[str] = []
        self._look_at(pipe)
        self._engine: Engine | None = None
        self._world_options = world
        self._rank_timeout_s = rank_timeout_s
        self._world: World | None = None
        self._listing: Listing | None = None
        self._ranks: Ranks | None = None
        self._closed = False
        self.epoch = -1
        self.repeated = 0
        self._next_epoch = 0
        self._step = 0
        self._data_epoch = 0
        self._turn = 0
        self._instances: list[bytes] | None = None
        self._stream: Iterator[Step] | None = None
        self._resume: StreamState | MergedState | None = None
        self._run = 0
        self._past_reports: list[Report] = []

    def _look_at(self, pipe: IterDataPipe[Any]) -> None:
        """Warn at once about what cannot be right; remember why a checkpoint could not be taken."""
        if not any(is_sharding(stage) for stage in upstream(pipe)):
            warnings.warn(
                "no stage of the pipe splits the data over ranks and workers: each of them yields everything; "
                "put .sharding_filter() behind the source",
                stacklevel=4,
            )
        try:
            chain_of(pipe)
            self._stages = stage_names(pipe)
        except StateError as error:
            self._no_state = error

    @property
    def _workers(self) -> int:
        return max(1, self._num_workers)

    @property
    def under_way(self) -> bool:
        """Whether the next `iter` finishes an epoch that a checkpoint was taken in."""
        resume = self._resume
        return resume is not None and (isinstance(resume, MergedState) or resume.step > 0)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch; nothing changes for the epoch under way."""
        if epoch != self.epoch:
            self._next_epoch = epoch

    def __len__(self) -> int:
        """The number of batches, where it is known: with a fixed number of steps."""
        if isinstance(self._epoch_steps, int):
            return self._epoch_steps
        raise TypeError("the number of batches is not known before the epoch ends; epoch_steps=N fixes it")

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise LoaderError.at("the loader was closed", todo="make a new one with ais_loader(...)")
        self._run += 1
        items = self._epoch_items(self._run)
        return items if self._on_stats is None else with_stats(items, self, self._on_stats, self._stats_every)

    def _epoch_items(self, run: int) -> Iterator[Any]:
        rank, ranks = self._join()
        self._begin()
        steps = self._steps(rank, ranks)
        try:
            for item, worker, state in steps:
                if run != self._run:
                    return  # a newer iterator has taken over
                if self._ranks is not None:
                    self._ranks.look_round()
                if worker >= 0:
                    self._turn = (worker + 1) % self._workers
                    if state is not None and self._instances is not None:
                        self._instances[worker] = state
                else:
                    self.repeated += 1
                self._step += 1
                yield pinned(item) if self._pin else item
        except Exception as error:
            if self._ranks is not None:
                self._ranks.report(error)
                self._ranks.linger()
            self._stream = None
            if self._num_workers:
                self._drop_engine()  # processes that have failed do not run again
            raise
        if not isinstance(self._epoch_steps, int):
            self._instances = None
            self._data_epoch += 1
        self._step = 0
        self._next_epoch = self.epoch + 1

    def _join(self) -> tuple[int, int]:
        """List and meet the other ranks, the first time; return rank and ranks."""
        world = self._world
        if world is None:
            world = self._world_options.find()
            if world.size > 1:
                self._look_at_steps(world)
            settings = {
                "loader": "ais_loader",
                "seed": self._seed,
                "num_workers": self._num_workers,
                "epoch_steps": self._epoch_steps,
            }
            self._listing, self._ranks = begin_together(self._pipe, world, settings, self._rank_timeout_s)
            self._world = world
        return world.rank, world.size

    def _look_at_steps(self, world: World) -> None:
        if isinstance(self._epoch_steps, str) and self._world_options.rank is not None:
            raise UsageError.at(
                f"epoch_steps={self._epoch_steps!r} asks the ranks of torch.distributed at every step, and rank= names "
                "others",
                todo="use epoch_steps=N, or leave out rank= and world_size=",
            )
        if self._epoch_steps is None and torch.is_grad_enabled():
            warnings.warn(
                f"the {world.size} ranks may take different numbers of steps in an epoch: in training the others then "
                'wait for ever. epoch_steps=N gives each the same number, "shortest" and "pad" stop them together; '
                "for evaluation under torch.no_grad() nothing need be done",
                stacklevel=5,
            )

    def _begin(self) -> None:
        """Begin an epoch, or the rest of one."""
        if self._resume is not None:
            resume = self._resume.parts[0]
            self.epoch, self._step, self._data_epoch = resume.user_epoch, resume.step, resume.epoch
        else:
            self.epoch, self._step = self._next_epoch, 0
            if not isinstance(self._epoch_steps, int):
                self._data_epoch = self.epoch
        self._next_epoch = self.epoch + 1
        self.repeated = 0

    def _steps(self, rank: int, ranks: int) -> Iterator[Step]:
        if isinstance(self._epoch_steps, int):
            if self._stream is None:
                self._stream = self._endless(rank, ranks)
            for _ in range(self._epoch_steps - self._step):
                yield next(self._stream)
            return
        steps = self._one_epoch(rank, ranks)
        if self._epoch_steps is None or ranks == 1:
            yield from steps
            return
        assert self._ranks is not None
        more = self._again() if self._epoch_steps == "pad" else None
        yield from stop_together(steps, Agreement(self._ranks), ranks, more)

    def _endless(self, rank: int, ranks: int) -> Iterator[Step]:
        while True:
            empty = True
            for step in self._one_epoch(rank, ranks):
                empty = False
                yield step
            if empty:
                raise UsageError.at(
                    f"rank {rank} of {ranks} got no batch in a whole epoch, so it cannot give {self._epoch_steps}",
                    todo="use more shards than ranks, or smaller batches",
                )
            self._data_epoch += 1

    def _again(self) -> Iterator[Step]:
        """Yield batches of the epoch from its beginning, for a rank that has none left: -1 for the worker."""
        while True:
            assert self._listing is not None
            engine = InProcessEngine(self._pipe, False, self._listing)
            for item, _, _ in engine.epoch([InstancePlan.of(self._seed, self._data_epoch, 1, 0)]):
                yield item, -1, None

    def _one_epoch(self, rank: int, ranks: int) -> Iterator[Step]:
        """Yield the steps of one pass over the data, or of the rest of one."""
        resume, self._resume = self._resume, None
        workers = self._workers
        number = ranks * workers
        plans = [
            InstancePlan.of(self._seed, self._data_epoch, number, instance_of(rank, ranks, worker))
            for worker in range(workers)
        ]
        if resume is not None:
            plans = plans_for(resume, rank, ranks, workers, self._digest)
        self._turn = 0
        self._instances = [plan.not_begun() for plan in plans]
        if self._engine is None:
            self._past_reports = [ended(report) for report in self._past_reports]
            # In this process the loader asks for no item ahead, so it can ask for the state when that is wanted.
            asked = self._num_workers == 0 and not isinstance(self._epoch_steps, str)
            assert self._world is not None
            assert self._listing is not None
            stateful = self._no_state is None and not asked
            self._engine = make_engine(self._pipe, stateful, self._how, self._listing, self._world)
        return self._engine.epoch(plans)

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank's loader stands: after the batch that was received last.

        Returns:
            Plain values, the same shape at every step: some hundred bytes a worker, and 11 bytes for each
            sample in a shuffle buffer; JSON can hold it. `merge_states` joins those of ranks.

        Raises:
            StateError: The pipe has a stage that a checkpoint cannot pass through; names it.
        """
        if self._no_state is not None:
            raise self._no_state
        if self._resume is not None:
            return to_plain(self._resume)
        world = self._world or self._world_options.find()
        under_way = self._instances is not None
        self._take_state()
        data_epoch = self._data_epoch if under_way or isinstance(self._epoch_steps, int) else self._next_epoch
        return to_plain(
            StreamState(
                stages=self._stages,
                seed=int(self._seed),
                epoch=int(data_epoch),
                user_epoch=int(self.epoch if under_way and self._step else self._next_epoch),
                step=self._step,
                rank=world.rank,
                ranks=world.size,
                workers=self._workers,
                turn=self._turn,
                shards=self._digest,
                instances=None if self._instances is None else [unpack(state) for state in self._instances],
            )
        )

    @property
    def _digest(self) -> str:
        return "" if self._listing is None else self._listing.digest

    def _take_state(self) -> None:
        """Ask the engine of this process where it stands; workers say so with every batch."""
        begun = self._step > 0 or self._stream is not None
        if isinstance(self._engine, InProcessEngine) and not isinstance(self._epoch_steps, str) and begun:
            self._instances = [self._engine.state() or (self._instances or [b""])[0]]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter` finish the epoch in which `state` was taken.

        Args:
            state: One rank's `state_dict`, or what `merge_states` made of those of all ranks.

        Raises:
            StateError: It is no state, of another version, damaged, or of another pipeline. The loader is then as it
                was.
        """
        if self._no_state is not None:
            raise self._no_state
        self._resume = check_state(state, self._stages)
        self._seed = self._resume.parts[0].seed
        self._stream = None
        self._run += 1

    def stats(self) -> Stats:
        """Return what the stages did so far; see `torchdata_ais.stats`."""
        return stats(self)

    def _ais_loader_stats(self) -> list[Report]:
        now = self._engine.reports() if self._engine is not None else []
        return [*self._past_reports, *now] or [report_of(self._pipe)]

    def close(self) -> None:
        """End the workers; the loader cannot be iterated any more. Idempotent."""
        if not self._closed:
            self._take_state()  # a checkpoint may still be asked for
        self._closed = True
        self._run += 1
        self._stream = None
        self._drop_engine()
        if self._ranks is not None:
            self._ranks.close()

    def _drop_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            self._past_reports += engine.reports()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        stages = [repr(stage) for stage in upstream(self._pipe)][::-1]
        return f"ais_loader(num_workers={self._num_workers}, seed={self._seed}):\n  " + "\n  ".join(stages)
