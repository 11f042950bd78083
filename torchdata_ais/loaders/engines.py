"""Three ways to run a pipe for `ais_loader`: in this process, under torch's DataLoader, under DataLoader2.

Each yields ``(item, worker, packed state)`` in strict round robin over the workers that still have items, so that the
order is a function of the data, the seed, the epoch and the topology, and not of timing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torchdata_ais.errors import StallError
from torchdata_ais.lifetime import end_with
from torchdata_ais.loaders.engine_options import EngineSettings
from torchdata_ais.loaders.instance import InstancePlan, begin, pack_or_refuse
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.ranks.sharding import shard_instance
from torchdata_ais.stage.meter import iterate
from torchdata_ais.stage.origin import note_place
from torchdata_ais.stage.pipe import IterDataPipe, Pipe, at_work
from torchdata_ais.workers.counts import Counts, ended
from torchdata_ais.workers.failure import Failure
from torchdata_ais.workers.pulse import GRACE_S, Patience, Pulse, is_stopped
from torchdata_ais.workers.stall import Watchdog
from torchdata_ais.world import World

__all__ = [
    "DataLoader2Engine",
    "DataLoaderEngine",
    "Engine",
    "InProcessEngine",
    "Step",
    "make_engine",
    "pinned",
]

Step = tuple[Any, int, "bytes | None"]
"""An item, the worker that made it, and where that worker stood after it (None: not known, or ask the engine)."""


_LOOK_ROUND_S = 0.5
"""How often to look after torch's workers while nothing comes."""

_END: Any = object()


class Engine(Protocol):
    """What runs a pipe."""

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps of one epoch of this rank; one plan a worker."""

    def reports(self) -> list[Report]:
        """Return what `report_of` last gave in each process; see `torchdata_ais.stats`."""

    def close(self) -> None:
        """End processes and connections. Idempotent."""


class InProcessEngine:
    """Runs the pipe in this process.

    Where the caller asks for no item ahead of the one the user has, `state` gives at no cost, when it is wanted, what
    `EngineSettings.stateful` would have it give with each item.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    def state(self) -> bytes | None:
        """Return where the pipe stands now."""
        return pack_or_refuse(self._settings.pipe)

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps; the state of each is taken right after it."""
        (plan,) = plans
        pipe, stateful = self._settings.pipe, self._settings.stateful
        shard_instance(pipe, plan.number, plan.instance)
        begin(pipe, plan)
        with self._settings.listing.on(pipe):
            for item in _watched(pipe, self._settings.options.stall_after, "this process", None):
                yield item, 0, pack_or_refuse(pipe) if stateful else None

    def reports(self) -> list[Report]:
        """Return the counts of the pipe."""
        return [report_of(self._settings.pipe)]

    def close(self) -> None:
        """There is nothing to close."""


class _Workers(IterableDataset[Any]):
    """What each worker of torch's DataLoader runs.

    It never ends by itself: DataLoader hands the turn of an ended worker on as soon as it hears of the end, which
    depends on timing. An ended worker yields None when it is its turn, and the main process counts.
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        plans: Sequence[InstancePlan],
        stateful: bool,
        stall_after: float | None,
        pulses: Sequence[Pulse],
    ) -> None:
        self._stall_after = stall_after
        self._pipe = pipe
        self._plans = plans
        self._stateful = stateful
        self._pulses = pulses
        self._main_pid = os.getpid()

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        end_with(self._main_pid)  # torch's own watch looks at the parent, which may be a fork server
        if self._pulses:
            self._pulses[info.id].begin()
        plan = self._plans[info.id]
        shard_instance(self._pipe, plan.number, plan.instance)
        begin(self._pipe, plan)
        counts = Counts(self._pipe)
        name = f"worker process {info.id}"
        try:
            for item in _watched(self._pipe, self._stall_after, name, info.id):
                state = pack_or_refuse(self._pipe) if self._stateful else None
                yield item, info.id, state, counts.take(self._pipe)
        except Exception as error:  # noqa: BLE001 - raised again in the main process, which torch would prefix
            note_place(error, None, None, at_work(self._pipe))
            yield Failure.of(error, f"in DataLoader {name}")
        yield info.id, counts.take(self._pipe, now=True)
        while True:
            yield None


def _watched(
    pipe: IterDataPipe[Any], stall_after: float | None, process: str, worker: int | None
) -> Iterator[Any]:
    """Yield the items of `pipe`, watched if `stall_after` says so; what takes too long is logged."""
    if stall_after is None:
        yield from iterate(pipe)
        return
    watchdog = Watchdog(stall_after, process, worker, None, pipe)
    with watchdog.running():
        yield from watchdog.watch(iterate(pipe))


def _as_it_is(item: Any) -> Any:
    return item


class DataLoaderEngine:
    """Runs the pipe in the workers of torch's DataLoader: new ones each epoch."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._running: Any = None
        self._past: list[Report] = []
        self._reports: dict[int, Report] = {}

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps; ends when every worker has."""
        pipe, options = self._settings.pipe, self._settings.options
        pulses = [] if options.stall_after is None else [Pulse(options.stall_after) for _ in plans]
        loader: Any = DataLoader(
            _Workers(pipe, plans, self._settings.stateful, options.stall_after, pulses),
            batch_size=None,
            num_workers=options.num_workers,
            prefetch_factor=max(1, options.prefetch),
            collate_fn=_as_it_is,
            multiprocessing_context=options.context,
            timeout=_LOOK_ROUND_S,
        )
        self.close()
        self._past = [ended(report) for report in self.reports()]
        self._reports.clear()
        with self._settings.listing.on(pipe):  # for the copies that the workers are started with
            self._running = iter(loader)
        idle = 0
        try:
            for step in self._patiently(self._running, pulses):
                if isinstance(step, Failure):
                    raise step.rebuild()
                if step is not None and step[-1] is not None:
                    self._reports[step[-3 if len(step) > 2 else 0]] = step[-1]
                if step is not None and len(step) > 2:
                    idle = 0
                    yield step[:3]
                    continue
                idle += 1
                if idle == options.num_workers:  # a whole round of them: nobody has anything left
                    return
        finally:
            self.close()

    def _patiently(self, running: Any, pulses: Sequence[Pulse]) -> Iterator[Any]:
        """Yield what torch's loader yields, and look after its workers while nothing comes."""
        stall_after = self._settings.options.stall_after
        patience = [
            Patience(f"worker process {worker}", worker, process.pid, stall_after, pulse)
            for (worker, process), pulse in zip_longest(enumerate(running._workers), pulses)
        ]
        waited_s = 0.0
        while True:
            try:
                step = next(running, _END)
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
            else:
                if step is _END:
                    return
                waited_s = 0.0
                yield step
                continue
            for one in patience:
                one.waited(_LOOK_ROUND_S)
            waited_s += _LOOK_ROUND_S if all(pulse.beats for pulse in pulses) else 0.0
            # The worker has noticed by then, and has told its log where it stands; unless it does not run.
            runs = all(one.silent_s < GRACE_S for one in patience)
            if stall_after is not None and waited_s >= stall_after + GRACE_S and runs:
                raise StallError.at(
                    f"a worker process made no item for {stall_after:g} s",
                    todo="its log says in which stage it stands; look there, or raise stall_after=",
                )

    def reports(self) -> list[Report]:
        """Return the last report of each worker, of those of former epochs, too."""
        return self._past + [self._reports[worker] for worker in sorted(self._reports)]

    def close(self) -> None:
        """End the workers."""
        running, self._running = self._running, None
        if running is None:
            return
        workers = running._workers
        for worker in workers:
            if is_stopped(worker.pid):  # else it could not even be told to end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGCONT)
        running._shutdown_workers()
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join(1.0)


class _Tail(Pipe[Any]):
    """The last stage in each worker of the reading service: takes the plan, and gives the state with each item."""

    hidden = True

    def __init__(self, source: IterDataPipe[Any], stateful: bool) -> None:
        super().__init__(source)
        self._stateful = stateful
        self._running = False

    def _ais_reset(self, *, epoch: int, extras: Any) -> None:  # noqa: ARG002 - the plan says all
        if extras is not None:
            begin(self._source, extras)

    def _ais_envelope(self) -> bytes | None:
        return pack_or_refuse(self._source) if self._stateful and self._running else None

    def _items(self) -> Iterator[Any]:
        self._running = False
        for item in iterate(self._source):
            self._running = True
            yield item


class DataLoader2Engine:
    """Runs the pipe under DataLoader2 with this package's reading service; the workers live as long as it.

    Raises:
        UsageError: The pipe does not pickle.
    """

    def __init__(self, settings: EngineSettings) -> None:
        from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService

        # The ranks share no seeds: with a fixed number of steps they do not begin epochs together.
        how, world = settings.options, settings.world
        service = MultiProcessingReadingService(
            how.num_workers, how.context, how.prefetch, 0, stall_after=how.stall_after
        )
        service.joined = (World(world.rank, world.size), settings.listing)
        tail = _Tail(settings.pipe, settings.stateful)
        self._loader: Any = DataLoader2(tail, reading_service=service)
        self._closed = False

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps."""
        service: Any = self._loader.reading_service
        service.reset_extras = dict(enumerate(plans))
        self._loader.seed(plans[0].epoch_seed >> 1)
        for item in self._loader:
            worker = service.last_worker
            yield item, worker, service.last_extras.get(worker)

    def reports(self) -> list[Report]:
        """Return the last report of each worker."""
        service: Any = self._loader.reading_service
        reports: list[Report] = service.stats_reports()
        return reports

    def close(self) -> None:
        """End the workers."""
        if not self._closed:
            self._closed = True
            self._loader.shutdown()


def make_engine(settings: EngineSettings) -> Engine:
    """Return a new engine, of the kind that the options name."""
    name = settings.options.engine
    if settings.options.num_workers == 0:
        return InProcessEngine(settings)
    return DataLoaderEngine(settings) if name == "dataloader" else DataLoader2Engine(settings)


def pinned(item: Any) -> Any:
    """Return `item` with its tensors in page-locked memory; containers keep their types."""
    if isinstance(item, torch.Tensor):
        return item.pin_memory()
    if isinstance(item, dict):
        return {name: pinned(value) for name, value in item.items()}
    if isinstance(item, tuple):
        values = [pinned(value) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else tuple(values)
    if isinstance(item, list):
        return [pinned(value) for value in item]
    return item
