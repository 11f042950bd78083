"""`MultiProcessingReadingService`: torchdata's name, without its hangs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import Self

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.process_end import close_at_exit
from torchdata_ais._util.world import World, WorldOptions
from torchdata_ais.dataloader2.own.graph import attach_wrapper, replace_dp, seed_graph
from torchdata_ais.dataloader2.own.prefetch import resume
from torchdata_ais.dataloader2.own.services import LimitFunction, ResetFunction
from torchdata_ais.dataloader2.split import (
    Parts,
    Reset,
    ServicePart,
    cut,
    pause,
    planned_stages,
    refuse_second_sharding,
    shard_over_ranks,
)
from torchdata_ais.dataloader2.torchdata_names import (
    OWN,
    FullSync,
    SeedGenerator,
    WorkerInfo,
    WorkersReadingService,
)
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.observe.diagnosis.batch_records import Recorded
from torchdata_ais.observe.diagnosis.flight_record import ProcessPart
from torchdata_ais.pipes.base.seed import NextEpoch
from torchdata_ais.pipes.base.torch_pipes import all_pipes, pipes_in, traverse_dps
from torchdata_ais.pipes.checkpoint.shard_order import warn_of_idle
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.ranks.rendezvous import begin_together
from torchdata_ais.workers.channel import Kind
from torchdata_ais.workers.pool import Pool
from torchdata_ais.workers.process import DISPATCHER, ProcessConfig, StartMethod, WorkerItems, start_context
from torchdata_ais.workers.producer import EnvelopeSender, notify_pipes


def epoch_seeds(seed_generator: Any, ranks: Ranks | None, number: int, *, apart: bool) -> Any:
    """Return an epoch's seed generator; advance `seed_generator` to the next.

    `number` epochs were started. If there are other ranks that cannot be reached (`apart`), a seed of torch's
    generator is an error: the ranks would have different ones.
    """
    seed = seed_generator.generate_shared_seed()
    drawn = _drawn_from_torch(seed)
    if drawn:
        # torchdata took the seed from torch's generator and put the number back: take it out, so that the next
        # epoch gets another one.
        torch.empty((), dtype=torch.int64).random_()
    if ranks is not None:
        shared = SeedGenerator(ranks.share_seed(number, seed))
        return shared.spawn(ranks.rank, inplace=True)
    if apart and drawn:
        raise UsageError.at(
            "the loader has no seed, and without a store the ranks cannot share one: each would take its part "
            "of another order",
            todo="call loader.seed(n), with the same n on all ranks, or pass store=",
        )
    return SeedGenerator(seed)


def _drawn_from_torch(seed: int) -> bool:
    """Return whether `seed` came from torch's present global generator state.

    Either as torchdata takes it directly, or after a DistributedReadingService has made a seed for all ranks of it.
    """
    with torch.random.fork_rng(devices=[]):
        direct = SeedGenerator().generate_shared_seed()
    return seed in (direct, SeedGenerator(direct).generate_shared_seed())


def notice_lost_ranks(pipe: object) -> None:
    """Make every ``fullsync`` of the graph raise when another rank is gone.

    torchdata's own requests the other ranks' state in a callback of a thread pool, where an error is logged and
    forgotten: the rank then waits for its time-out of half an hour.
    """
    if OWN:
        return  # ours raises by itself
    for part in all_pipes(pipe):
        if type(part) is FullSync:
            part.__class__ = _FullSync  # in place, for the service before this one holds it too


class _FullSync(FullSync):  # type: ignore[misc]
    def _callback_fn(self, expected: object) -> None:
        try:
            super()._callback_fn(expected)
        except Exception as error:  # noqa: BLE001 - gloo raises RuntimeErrors of many kinds
            with self._cv:
                self._error = LoaderError.at(
                    f"another rank cannot be reached any more: {error}",
                    todo="look for the rank that ended first; its own output says why",
                    rank=dist.get_rank(),
                )
                self._done_callback = True
                self._cv.notify()


_STARTED: weakref.WeakSet[MultiProcessingReadingService] = weakref.WeakSet()
"""The services of this process that have a pipe."""


class MultiProcessingReadingService(WorkersReadingService):  # type: ignore[misc]
    """Runs a pipe in worker processes for torchdata's DataLoader2.

    A drop-in that does not hang, crash or repeat. It takes torchdata's arguments, and works with any pipe. Parts that
    are not replicable stay in the main process. Pipes before a ``sharding_round_robin_dispatch`` run in one separate
    process. Under torch.distributed it also shards by rank, alone or after a ``DistributedReadingService``. With
    ``num_workers=0`` the pipe runs in this process.

    Order:
        Round robin over the workers that still have items, so it depends on the data, the seed, the epoch and the
        number of ranks and workers, not on timing. Every epoch has another seed: after ``loader.seed(s)`` the
        epochs' seeds follow from ``s``; without it each epoch takes one number from torch's global generator.

    Memory:
        At most ``worker_prefetch_cnt + ceil(main_prefetch_cnt / num_workers) + 1`` items are under way from each
        worker, in its memory or in shared memory. Tensors arrive in shared memory.

    Raises:
        StallError: An item took longer than `stall_after`, or a process does not run.
        WorkerDiedError: A process was killed, ran out of memory or exited; names it, its pid and exit code.
        LoaderError: Another rank failed, or the loader was shut down; also an error of a worker whose own class
            cannot be built from a text.
        UsageError: The pipe is sharded twice on one path, or has not exactly one branch that workers can run;
            ``WORLD_SIZE`` above 1 without torch.distributed or `rank`; ranks with different pipes or sources.
        ObjectChangedError: The ranks have listed different objects.
        Exception: Any error of a worker's pipe, functions or items, of the same class, with the original traceback in
            its text.

    Args:
        num_workers: Worker processes.
        multiprocessing_context: "fork", "spawn" or "forkserver". None is Python's default, except after CUDA has been
            initialised: then "forkserver" instead of "fork".
        worker_prefetch_cnt: Items each worker makes ahead.
        main_prefetch_cnt: Items made ahead by all workers together, on top of that.
        worker_init_fn: Called in each worker, once, with the sharded pipe and its ``WorkerInfo``; returns the pipe.
        worker_reset_fn: Called in each worker and in the dispatching process, for each epoch, with the seeded pipe,
            ``WorkerInfo`` and ``SeedGenerator``; returns the pipe.
        shard_by_rank: Whether to split the data over the ranks of torch.distributed. False for a loader that only
            one rank uses.
        rank_timeout_s: How long, in seconds, a rank waits for the others to begin the loader, or an epoch.
        stall_after: How long, in seconds, an item or one of the two functions may take in a worker process; None is
            for ever. Then the process logs the stacks of its threads, and a `StallError` names stage, object and
            worker. A process that does not run at all (stopped, swapped out) is a `StallError` two seconds later;
            with None one that a signal has stopped is, after 30 s.
        rank: This rank, of `world_size`. Default: that of torch.distributed when the loader is first iterated.
        world_size: How many ranks share out the data.
        store: A store of torch.distributed by which the ranks compare their listings, and share seeds. Default: the
            process group's, where `rank` is not given. Without any, seed the loader: ``loader.seed(n)``, the same on
            all ranks.

    Attributes:
        epoch: The number of the next epoch, which pipes receive; set it to resume.
        reset_extras: Worker id (`workers.process.DISPATCHER` for the dispatching process) -> anything that pickles, for
            the next epoch only. Each pipe of a worker that is a `workers.producer.EpochListener`, which is to have a
            method ``_ais_reset``, gets ``_ais_reset(epoch=..., extras=...)`` after it was seeded.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2 import DataLoader2
        >>> pipe = IterableWrapper(range(8)).shuffle().sharding_filter()
        >>> with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        ...     sorted(loader)
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    @checked
    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: StartMethod | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: Callable[..., object] | None = None,
        worker_reset_fn: Callable[..., object] | None = None,
        *,
        shard_by_rank: bool = True,
        rank_timeout_s: float = 1800.0,
        stall_after: float | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        store: object = None,
    ) -> None:
        if num_workers < 0:
            raise UsageError.at(f"num_workers={num_workers}", todo="use 0 for no worker processes, or more")
        if worker_prefetch_cnt < 0 or main_prefetch_cnt < 0:
            raise UsageError.at("a prefetch count is negative", todo="use 0 to make nothing ahead")
        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context not in (None, *methods):
            raise UsageError.at(
                f"multiprocessing_context={multiprocessing_context!r}",
                todo=f"use one of {', '.join(methods)}",
            )
        # All that torchdata's own would set: it is not called, for it warns that num_workers=0 is out of fashion.
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.main_prefetch_cnt = main_prefetch_cnt
        self.worker_init_fn = worker_init_fn
        self.worker_reset_fn = worker_reset_fn
        self.shard_by_rank = shard_by_rank
        self.rank_timeout_s = rank_timeout_s
        self.stall_after = stall_after
        self.joined: tuple[World, Listing] | None = None
        self.records = False  # whether workers note a record a batch
        self._world_options = WorldOptions(rank, world_size, store)
        self._world = World(0, 1)
        self.epoch = 0
        self.reset_extras: Mapping[int, object] = {}
        self._round = 0
        self._token = uuid.uuid4().hex
        self._owner_pid = os.getpid()
        self._worker_processes: list[tuple[Any, None, None]] = []  # as torchdata's own has them
        self._here: ServicePart | None = None  # without worker processes
        self._pool: Pool | None = None
        self._ranks: Ranks | None = None
        self._end_datapipe: Any = None
        self._set_epochs: list[NextEpoch] = []
        self._finalized = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # DataLoader2 works with a copy of the service it is given: end the copies.
        for service in [self, *_STARTED]:
            if service._token == self._token:
                service.finalize()

    @property
    def last_worker(self) -> int | None:
        """The worker that made the item just yielded; None before the first."""
        if self._pool is None:
            return None if self._end_datapipe is None else 0
        return self._pool.last_worker

    @property
    def last_extras(self) -> Mapping[int, Any]:
        """Worker id -> envelope of the worker's item last yielded.

        The envelope is the value of the last pipe's ``_ais_envelope()``. A pipe that has it is a
        `workers.producer.EnvelopeSender`. It is called in the worker right after the item was made, and once more after
        the last item, and may return None for nothing. Its value travels with the item, so the state of a worker is
        the state at the item the caller has, however far ahead the worker is.
        """
        if self._pool is not None:
            return self._pool.last_extras
        pipe = self._end_datapipe
        return {0: pipe._ais_envelope()} if isinstance(pipe, EnvelopeSender) else {}

    def is_ready(self) -> bool:
        """Report whether the worker whose turn it is has sent an item.

        Taking it does not wait then.
        """
        return self._pool is not None and self._pool.is_ready()

    def new_records(self) -> list[tuple[int, Recorded]]:
        """Return the workers' records of batches since the last call, by worker."""
        return [] if self._pool is None else self._pool.telling.records()

    def doing(self) -> list[ProcessPart]:
        """Return the workers' current activity, if they note records."""
        return [] if self._pool is None else self._pool.telling.doing()

    def stats_reports(self) -> list[Report]:
        """Return the last report of each worker; see `torchdata_ais.stats`."""
        if self._pool is not None:
            found = [report for _, report in sorted(self._pool.telling.reports.items())]
        else:
            found = [] if self._end_datapipe is None else [report_of(self._end_datapipe)]
        return [report.of_rank(*self._world.members) for report in found]

    def initialize(self, datapipe: object) -> Any:
        """Cut the graph, start the processes, and return the main process's pipe."""
        if self._finalized:
            raise LoaderError.at("this reading service was shut down", todo="make a new loader")
        self._owner_pid = os.getpid()
        _STARTED.add(self)
        close_at_exit(self, "finalize")
        self._join(datapipe)
        self._set_epochs = [stage.next_epoch for stage in planned_stages(all_pipes(datapipe))]
        parts = cut(datapipe) if self.num_workers else Parts(datapipe, None, None)
        refuse_second_sharding(parts)
        if self._world.size > 1:
            shard_over_ranks(parts, self._world.size, self._world.rank)
        if self._ranks is not None:
            notice_lost_ranks(datapipe if parts.rest is None else parts.rest)
        if self.num_workers:
            self._end_datapipe = self._start(parts)
        else:
            info = WorkerInfo(1, 0)
            self._here = ServicePart(datapipe, info, self.worker_init_fn, self.worker_reset_fn)
            self._end_datapipe = self._here.prepare(datapipe)
        return self._end_datapipe

    def _join(self, datapipe: Any) -> None:
        """List once for all processes of this loader, the same on all ranks."""
        if self.joined is not None:
            self._world, listing = self.joined
        else:
            self._world = self._world_options.find() if self.shard_by_rank else World(0, 1)
            settings = {"loader": "DataLoader2", "num_workers": self.num_workers}
            listing, self._ranks = begin_together(datapipe, self._world, settings, self.rank_timeout_s)
            if not list(planned_stages(all_pipes(datapipe))):
                warn_of_idle(listing.shards, max(1, self.num_workers) * self._world.size)
        listing.give(datapipe)

    def _start(self, parts: Parts) -> object:
        window = self.worker_prefetch_cnt + -(-self.main_prefetch_cnt // self.num_workers) + 1
        if multiprocessing.current_process().daemon:
            raise UsageError.at(
                "worker processes cannot be started inside a daemonic process",
                todo="use num_workers=0 here, or start this process with daemon=False",
            )
        self._pool = pool = Pool(start_context(self.multiprocessing_context, __name__), window, self._ranks)
        infos = [WorkerInfo(self.num_workers, worker_id) for worker_id in range(self.num_workers)]
        replica = attach_wrapper(parts.replica)
        with contextlib.ExitStack() as undo:
            undo.callback(self.finalize)
            sources: list[Any] = [None] * self.num_workers
            if parts.dispatched is not None:
                consumers, sources = _socket_pairs(self.num_workers, undo)
                pipe = attach_wrapper(parts.dispatched)
                part = ServicePart(pipe, infos[0], None, self.worker_reset_fn, dispatching=True)
                pool.launch(
                    ProcessConfig(part, DISPATCHER, consumers=consumers, stall_after=self.stall_after)
                )
            for info, source in zip(infos, sources, strict=True):
                part = ServicePart(replica, info, self.worker_init_fn, self.worker_reset_fn)
                pool.launch(
                    ProcessConfig(
                        part, info.worker_id, source, stall_after=self.stall_after, records=self.records
                    )
                )
            undo.pop_all()
        self._worker_processes = [(process, None, None) for process in pool.processes]
        items = WorkerItems(pool.items)
        self._worker_consumer_datapipe = items
        if parts.rest is None:
            return items
        replace_dp(traverse_dps(parts.rest), parts.replica, items)
        return parts.rest

    def initialize_iteration(
        self, seed_generator: object, iter_reset_fn: ResetFunction | None = None
    ) -> None:
        """Begin an epoch: send every process its seeds."""
        assert self._end_datapipe is not None
        if self._finalized:
            raise LoaderError.at("this reading service was shut down", todo="make a new loader")
        apart = self._ranks is None and self.joined is None and self._world.size > 1
        seeds = epoch_seeds(seed_generator, self._ranks, self._round, apart=apart)
        extras, self.reset_extras = self.reset_extras, {}
        epoch, calls = self.epoch, tuple(one.look() for one in self._set_epochs)
        self.epoch, self._round = epoch + 1, self._round + 1
        if self._here is not None:
            self._here.begin_pipe(
                self._end_datapipe, Reset(epoch, seeds, iter_reset_fn, extras.get(0), calls)
            )
            return
        assert self._pool is not None
        graph = traverse_dps(self._end_datapipe)
        seed_graph(graph, seeds)
        notify_pipes(pipes_in(graph), epoch, None)
        loads = [
            Reset(epoch, seeds.spawn(worker_id), iter_reset_fn, extras.get(worker_id), calls)
            for worker_id in range(self.num_workers)
        ]
        dispatched = Reset(epoch, seeds.spawn(0), iter_reset_fn, extras.get(DISPATCHER), calls)
        try:
            self._pool.reset(loads, dispatched)
        except Exception:
            self.finalize()
            raise

    def finalize_iteration(self) -> None:
        """End an epoch: raise if it is short because another rank failed."""
        if self._ranks is not None and not self._finalized:
            try:
                self._ranks.check()
            except LoaderError:
                self.finalize()
                raise

    def finalize(self) -> None:
        """End the processes, from any state.

        At once, or after the item under way, or by force after two seconds.
        """
        if self._finalized or self._owner_pid != os.getpid():
            return
        self._finalized = True
        if self._ranks is not None:
            self._ranks.close()
        if self._pool is not None:
            self._pool.close()
        self._worker_processes = []

    def _pause(self, pause_fn: ResetFunction | None = None) -> None:
        pause(self._end_datapipe)
        if self._pool is not None:
            self._pool.order(Kind.PAUSE, pause_fn)

    def _resume(self, resume_fn: ResetFunction | None = None) -> None:
        if self._pool is not None:
            self._pool.order(Kind.RESUME, resume_fn)
        resume(self._end_datapipe)

    def _limit(self, num_batches: int | None, limit_fn: LimitFunction | None = None) -> None:
        # DataLoader2 counts and pauses by itself; only a function of a service before this one has to travel.
        if limit_fn is not None and self._end_datapipe is not None:
            if self._pool is not None:
                self._pool.order(Kind.LIMIT, limit_fn, num_batches)
            limit_fn(self._end_datapipe, num_batches)


def _socket_pairs(count: int, undo: contextlib.ExitStack) -> tuple[list[socket.socket], list[socket.socket]]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(count)]
    for end in (end for pair in pairs for end in pair):
        undo.callback(end.close)
    ours, theirs = zip(*pairs, strict=True)
    return list(ours), list(theirs)
