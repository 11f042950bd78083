"""`ais_loader`: one call that runs a pipe over workers and ranks, epoch after epoch, and can be resumed."""

from __future__ import annotations

import logging
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

from typing_extensions import Self, Unpack

from torchdata_ais.arguments import check_number, checked
from torchdata_ais.errors import LoaderError, StateError, UsageError
from torchdata_ais.loaders.engine_options import EngineName, EngineOptions
from torchdata_ais.loaders.engines import pinned
from torchdata_ais.loaders.epoch_steps import StepsName, steps_named
from torchdata_ais.loaders.first_look import oddities
from torchdata_ais.loaders.passes import Passes
from torchdata_ais.loaders.planned import ALLOWED, PlannedPasses, PlannedSteps
from torchdata_ais.loaders.state import check_plan_state, check_state
from torchdata_ais.observe.collect import Report
from torchdata_ais.observe.draw import draw, html
from torchdata_ais.observe.report import Stats, stats, with_stats
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import Tail
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.ranks.rendezvous import begin_together
from torchdata_ais.ranks.replicas import Replicas
from torchdata_ais.stage.checkpoint import stage_names
from torchdata_ais.stage.origin import trimmed
from torchdata_ais.stage.pipe import IterDataPipe, is_sharding, upstream
from torchdata_ais.stage.slots import check_planned
from torchdata_ais.state import MergedState, StreamState, to_plain, unpack
from torchdata_ais.world import RankNames, World, WorldOptions

__all__ = ["AISLoader", "ais_loader"]

_log = logging.getLogger("torchdata_ais")


class LoaderNames(RankNames, total=False):
    """The arguments of a loader that are about ranks, and about what they share out by index; see `ais_loader`."""

    global_batch: int | None
    tail: Tail | None


class AISLoader:
    """Runs `pipe` over workers and ranks: an iterable of batches, a context manager. One `iter` is one epoch.

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
            or ``"auto"``: DataLoader2.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        stall_after: Seconds an item may take in a worker; then its log gets the stacks of its threads, and a
            `StallError` names worker, stage and object. With no workers, or under ``engine="dataloader"``, only the
            log says where it stands. A worker that does not run at all (stopped, swapped out) is a `StallError` two
            seconds later. None: no limit but those of the transport, and 30 s for a worker that a signal has stopped.
        on_stats: Called with what `stats` returns, between two batches, every `stats_every` seconds and at the end of
            an epoch.
        stats_every: Seconds.
        **named: For pipes that read by index (``.read_samples()``) ``global_batch=``: samples a step over all ranks;
            default what the pipe batches, for each rank. The order of an epoch is then a function of (data, seed,
            epoch, global batch) alone, and ranks take equal steps. ``tail=``: what becomes of a remainder; see
            `AISSampleReader`.
            For ranks ``rank=``, ``world_size=``: this rank, and how many ranks share out the data (1 for a loader of
            this process alone); default what torch.distributed says at the first iteration. ``store=``: a store of
            torch.distributed by which the ranks compare what they read (each loader of a run in turn may use the
            same); default the process group's, where `rank` is not given. ``rank_timeout_s=1800``: how long to wait
            for a rank that has not begun. ``mesh=``: the slice of a `DeviceMesh` that shares out the data
            (``mesh["dp"]``), or ``group=``: its process group; processes of one place in it get equal batches. With a
            mesh they compare every ``replica_check=256``-th of them.

    Attributes:
        epoch: The epoch under way, or the last one; -1 before the first.
        repeated: Batches repeated in this epoch to reach the length of the longest rank.

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

    functional_name: ClassVar[str] = "ais_loader"

    @checked
    def __init__(
        self,
        pipe: IterDataPipe[Any],
        *,
        num_workers: int = 0,
        seed: int = 0,
        epoch_steps: StepsName = None,
        prefetch: int = 2,
        pin_memory: bool = False,
        engine: EngineName = "auto",
        multiprocessing_context: str | None = None,
        stall_after: float | None = None,
        on_stats: Callable[[Stats], object] | None = None,
        stats_every: float = 60.0,
        **named: Unpack[LoaderNames],
    ) -> None:
        if not isinstance(pipe, IterDataPipe):
            raise UsageError.at(
                f"ais_loader() was given an item of type {type(pipe).__name__}, not a pipe",
                todo="pass the last stage of a chain that begins with AISSourceLister(...) or IterableWrapper([...])",
            )
        if stats_every <= 0:
            raise UsageError.at(f"stats_every={stats_every}", todo="use seconds, more than 0")
        ranks: dict[str, Any] = {**named}
        global_batch, tail = ranks.pop("global_batch", None), ranks.pop("tail", None)
        self._world_options = WorldOptions(**ranks)
        planned = check_planned(pipe)
        self._steps = PlannedSteps(epoch_steps) if planned is not None else steps_named(epoch_steps)
        how = EngineOptions(num_workers, prefetch, engine, multiprocessing_context, stall_after)
        self._pipe = pipe
        self._num_workers = num_workers
        self._pin = pin_memory
        self._on_stats = on_stats
        self._stats_every = stats_every
        self._no_state: StateError | None = None
        self._stages: list[str] = []
        self._plan: PlannedPasses | None = None
        if isinstance(planned, AISSampleReader):
            check_number(global_batch, 1, "global_batch", optional=True)
            steps = epoch_steps if isinstance(epoch_steps, int) else None
            self._plan = PlannedPasses(
                pipe, planned, how, seed, self._world_options,
                global_batch=global_batch, epoch_steps=steps, tail=tail,
            )  # fmt: skip
        elif global_batch is not None or tail is not None:
            raise UsageError.at(
                "global_batch= and tail= are for pipes that read by index",
                todo="begin the pipe with .read_samples(), or use epoch_steps=",
            )
        else:
            self._look_at(pipe)
        self._passes = self._plan or Passes(
            pipe, how, seed, stateful=self._no_state is None, ahead=self._steps.ahead
        )
        self._joined: tuple[World, Listing, Ranks | None] | None = None
        self._replicas: Replicas | None = None
        self._closed = self._loaded = False
        self.epoch = -1
        self.repeated = 0
        self._next_epoch = 0
        self._step = 0
        self._run = self._newest = 0
        self._looked = False

    def _look_at(self, pipe: IterDataPipe[Any]) -> None:
        """Warn at once about what cannot be right; remember why a checkpoint could not be taken."""
        if not any(is_sharding(stage) for stage in upstream(pipe)):
            warnings.warn(
                "no stage of the pipe splits the data over ranks and workers: each of them yields everything; "
                "put .sharding_filter() behind the source",
                stacklevel=4,  # this, the constructor, and what checks its arguments
            )
        try:
            self._stages = stage_names(pipe)
        except StateError as error:
            self._no_state = error

    @property
    def under_way(self) -> bool:
        """Whether the next `iter` finishes an epoch that a checkpoint was taken in."""
        if self._plan is not None:
            return self._loaded and self._plan.begin(self._plan.epoch)[1] > 0
        resume = self._passes.resume
        return resume is not None and (isinstance(resume, MergedState) or resume.step > 0)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch; nothing changes for the epoch under way."""
        if epoch != self.epoch:
            self._next_epoch = epoch

    def __len__(self) -> int:
        """The number of batches, where it is known: with a fixed number of steps, and by index."""
        if self._plan is not None:
            return self._plan.length
        if self._steps.length is None:
            raise TypeError(
                "the number of batches is not known before the epoch ends; epoch_steps=N fixes it"
            )
        return self._steps.length

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise LoaderError.at("the loader was closed", todo="make a new one with ais_loader(...)")
        self._run += 1
        self._newest = self._run
        items = self._epoch_items(self._run)
        return items if self._on_stats is None else with_stats(items, self, self._on_stats, self._stats_every)

    def _epoch_items(self, run: int) -> Iterator[Any]:
        world, listing, ranks = self._join()
        self._begin()
        steps = self._steps.steps(self._passes, world, listing, ranks, self._step)
        try:
            for item, worker, state in steps:
                if run != self._run:
                    self._refuse_older(run)
                    return  # the loader was closed, or told to go on elsewhere
                if ranks is not None:
                    ranks.look_round()
                if worker >= 0:
                    self._passes.gave(worker, state)
                else:
                    self.repeated += 1
                if self._replicas is not None:
                    self._replicas.compare(self._step if self._plan is None else self._plan.step - 1, item)
                self._step += 1
                if not self._looked:
                    self._looked = True
                    for sentence in oddities(item, self._pipe):
                        _log.warning("%s", sentence)
                yield pinned(item) if self._pin else item
        except Exception as error:  # noqa: BLE001 - raised again
            self._refuse_older(run)
            if ranks is not None:
                ranks.report(error)
                ranks.linger()
            self._steps.forget()
            if self._num_workers:
                self._passes.stop()  # processes that have failed do not run again
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has
        self._steps.end(self._passes)
        self._step = 0

    def _refuse_older(self, run: int) -> None:
        if run < self._newest:
            raise LoaderError.at(
                "a newer iterator of this loader has taken over: a loader runs one epoch at a time",
                todo="make a second ais_loader for a second loop beside the first",
            ) from None

    def _join(self) -> tuple[World, Listing, Ranks | None]:
        """List and meet the other ranks, the first time."""
        if self._joined is None:
            world = self._world_options.find()
            if world.size > 1:
                self._steps.check(world, self._world_options)
            settings = {
                "loader": "ais_loader",
                "seed": self._passes.seed,
                "epoch_steps": self._steps.given,
            }
            if self._plan is None:
                settings["num_workers"] = self._num_workers
            else:
                settings |= {"global_batch": self._plan.global_batch(), "order": self._plan.order()}
            options = self._world_options
            self._joined = (world, *begin_together(self._pipe, world, settings, options.rank_timeout_s))
            ranks = self._joined[2]
            if ranks is not None and world.processes:
                self._replicas = Replicas(ranks, world, options.replica_check)
            workers, shards = max(1, self._num_workers) * world.size, self._joined[1].shards
            if self._plan is None and 0 < shards < workers:
                text = "%d shards for %d workers: %d of them have nothing to do. Use fewer workers, or smaller shards"
                _log.warning(text, shards, workers, workers - shards)
        return self._joined

    def _begin(self) -> None:
        """Begin an epoch, or the rest of one."""
        if self._plan is not None:
            wanted = self._plan.epoch if self._loaded else self._next_epoch
            self.epoch, self._step = self._plan.begin(wanted)
            self._loaded = False
        elif self._passes.resume is not None:
            resume = self._passes.resume.parts[0]
            self.epoch, self._step = resume.user_epoch, resume.step
        else:
            self.epoch, self._step = self._next_epoch, 0
            self._steps.begin(self._passes, self.epoch)
        self._next_epoch = self.epoch + 1
        self.repeated = 0 if self._plan is None else self._plan.repeated()

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank's loader stands: after the batch that was received last.

        Returns:
            Plain values, the same shape at every step: some hundred bytes a worker, and 11 bytes for each
            sample in a shuffle buffer; JSON can hold it. `merge_states` joins those of ranks.

        Raises:
            StateError: The pipe has a stage that a checkpoint cannot pass through; names it.
        """
        if self._plan is not None:
            return to_plain(self._plan.state())
        if self._no_state is not None:
            raise self._no_state
        passes = self._passes
        if passes.resume is not None:
            return to_plain(passes.resume)
        under_way = passes.instances is not None
        if not under_way:
            self._steps.begin(passes, self._next_epoch)
        passes.take_state()
        world, digest = (
            (self._joined[0], self._joined[1].digest) if self._joined else (self._world_options.find(), "")
        )
        instances = passes.instances
        return to_plain(
            StreamState(
                stages=self._stages,
                seed=int(passes.seed),
                epoch=int(passes.number),
                user_epoch=int(self.epoch if under_way and self._step else self._next_epoch),
                step=self._step,
                rank=world.rank,
                ranks=world.size,
                workers=passes.workers,
                turn=passes.turn,
                shards=digest,
                instances=None if instances is None else [unpack(state) for state in instances],
            )
        )

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Make the next `iter` finish the epoch in which `state` was taken.

        Args:
            state: One rank's `state_dict`, or what `merge_states` made of those of all ranks. By index any rank's is
                that of all.
            allow: By index, what may have changed: ``"batch"`` (the global batch), ``"weights"``, ``"sources"``.
                Nothing is lost or repeated by it.

        Raises:
            StateError: It is no state, of another version, damaged, or of another pipeline. The loader is then as it
                was.
        """
        if unknown := set(allow) - set(ALLOWED):
            raise UsageError.at(f"allow={sorted(unknown)}", todo=f"use {', '.join(ALLOWED)}")
        if self._plan is not None:
            self._plan.load(check_plan_state(state), allow)
            self._loaded = True
            self._run += 1
            return
        if self._no_state is not None:
            raise self._no_state
        resume = check_state(state, self._stages)
        first = resume.parts[0]
        self._passes.resume, self._passes.seed, self._passes.number = resume, first.seed, first.epoch
        self._steps.forget()
        self._run += 1

    def samples_of(self, step: int) -> list[tuple[str, str]]:
        """Return ``(key, shard)`` of each sample of a global step, of all ranks, without reading any.

        Args:
            step: Counted over the whole run, from 0; of those before the last change at a resume nothing is known.

        Raises:
            UsageError: The pipe does not read by index.
            IndexError: There is no such step.
        """
        if self._plan is None:
            raise UsageError.at("samples_of() of a stream", todo="read by index: .read_samples()")
        return self._plan.samples_of(step)

    def stats(self) -> Stats:
        """Return what the stages did so far; see `torchdata_ais.stats`."""
        return stats(self)

    def _ais_loader_stats(self) -> list[Report]:
        return self._passes.reports()

    def close(self) -> None:
        """End the workers; the loader cannot be iterated any more. Idempotent."""
        if not self._closed:
            self._passes.take_state()  # a checkpoint may still be asked for
        self._closed = True
        self._run += 1
        self._steps.forget()
        self._passes.stop()
        if self._joined is not None and self._joined[2] is not None:
            self._joined[2].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self._title()}:\n" + textwrap.indent(draw(self._pipe), "  ")

    def _repr_html_(self) -> str:
        return f"<b>{self._title()}</b>{html(self._pipe)}"

    def _title(self) -> str:
        return f"ais_loader(num_workers={self._num_workers}, seed={self._passes.seed})"


ais_loader = AISLoader
"""The name that users call: ``with ais_loader(pipe, num_workers=4) as loader``."""
