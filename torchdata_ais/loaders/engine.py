"""Engines of ais_loader: worker processes, or this process.

Each engine yields its steps in strict round robin over the workers that still have items, so the order does not
depend on timing. It is a function of the data, the seed, the epoch and the topology.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchdata_ais._util.arguments import check_number
from torchdata_ais._util.world import World
from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.instance import InstancePlan, begin, state_packer
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.observe.diagnosis.batch_records import BatchRecorder, Recorded
from torchdata_ais.observe.diagnosis.flight_record import ProcessPart
from torchdata_ais.pipes.base.meter import iterate
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.ranks.listing import Listing, shard_instance
from torchdata_ais.workers.heartbeat import Watchdog
from torchdata_ais.workers.process import StartMethod

Step = tuple[Any, int, "bytes | None"]
"""An item, its worker, and the worker's packed state after it; None: unknown, or to be requested."""


@dataclass(frozen=True)
class EngineOptions:
    """The processes to run a pipe in: arguments of `ais_loader`.

    With `records` a record is noted for each batch.
    """

    num_workers: int
    prefetch: int
    context: StartMethod | None
    stall_after: float | None
    records: bool = False

    def __post_init__(self) -> None:
        check_number(self.num_workers, 0, "num_workers")
        check_number(self.prefetch, 0, "prefetch")
        methods = multiprocessing.get_all_start_methods()
        if isinstance(self.context, str) and self.context not in methods:
            raise UsageError.at(
                f"multiprocessing_context must be a start method, got {self.context!r}",
                todo=f"use {', '.join(methods)} or None",
            )
        if self.stall_after is not None and self.stall_after <= 0:
            raise UsageError.at(f"stall_after={self.stall_after}", todo="use seconds, more than 0, or None")


@dataclass(frozen=True)
class EngineSettings:
    """The pipe that an engine runs, and how.

    Workers start with the listing. If `stateful`, each item comes with the state after it.
    """

    pipe: IterDataPipe[object]
    stateful: bool
    listing: Listing
    world: World
    options: EngineOptions


class Engine(ABC):
    """Interface of an engine.

    `on_started` is called when an epoch has started its processes, before its first step.
    """

    on_started: Callable[[], object] | None = None

    def started(self) -> None:
        """Call `on_started`: all processes of the epoch run."""
        if self.on_started is not None:
            self.on_started()

    @abstractmethod
    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps of one epoch of this rank; one plan a worker."""

    def ready(self) -> bool:
        """Report whether the next item is there, so that a step does not wait."""
        return False

    @abstractmethod
    def reports(self) -> list[Report]:
        """Return the last report of each process; see `torchdata_ais.stats`."""

    @abstractmethod
    def records(self) -> list[tuple[int, Recorded]]:
        """Return the records of batches since the last call, by worker."""

    def doing(self) -> list[ProcessPart]:
        """Return the current activity of the worker processes, if there are any."""
        return []

    def close(self) -> None:  # noqa: B027 - reading in this process has nothing to end
        """End processes and connections. Idempotent."""


class InProcessEngine(Engine):
    """Runs the pipe in this process.

    Where the caller requests no item ahead of the one the user has, `state` returns at no cost, when it is needed, the
    state that `EngineSettings.stateful` would yield with each item.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._recorder = BatchRecorder(settings.pipe) if settings.options.records else None

    def state(self) -> bytes | None:
        """Return the current state of the pipe."""
        return state_packer(self._settings.pipe)()

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps; the state of each is taken right after it."""
        (plan,) = plans
        pipe, stateful = self._settings.pipe, self._settings.stateful
        shard_instance(pipe, plan.number, plan.instance)
        begin(pipe, plan)
        # Nothing in this process can end a wait of its own thread: a stall is only logged.
        watchdog = Watchdog(self._settings.options.stall_after, "this process", None, None, pipe)
        with self._settings.listing.on(pipe):
            self.started()
            with watchdog.running():
                items = watchdog.watch(iterate(pipe))
                if self._recorder is not None:
                    self._recorder.begin(pipe)
                    items = self._recorder.watch(items)
                pack_state = state_packer(pipe) if stateful else None
                for item in items:
                    yield item, 0, None if pack_state is None else pack_state()

    def reports(self) -> list[Report]:
        """Return the counts of the pipe."""
        return [report_of(self._settings.pipe)]

    def records(self) -> list[tuple[int, Recorded]]:
        """Return the records of batches since the last call."""
        return [] if self._recorder is None else [(0, self._recorder.take())]


class _Tail(Pipe[Any]):
    """Last stage of each worker: takes the plan, sends the state with an item."""

    hidden = True

    def __init__(self, source: IterDataPipe[object], stateful: bool) -> None:
        super().__init__(source)
        self._stateful = stateful

    def _ais_reset(self, *, epoch: int, extras: Any) -> None:  # noqa: ARG002 - the plan has all
        if extras is not None:
            begin(self._source, extras)

    def _ais_envelope(self) -> bytes | None:
        pack_state: Callable[[], bytes | None] | None = self._live
        return None if pack_state is None else pack_state()

    def _items(self) -> Iterator[object]:
        self._live = None  # no state before the first item
        pack_state = state_packer(self._source) if self._stateful else None
        for item in iterate(self._source):
            self._live = pack_state
            yield item


class WorkerEngine(Engine):
    """Runs the pipe in worker processes, which live as long as the engine.

    Raises:
        UsageError: The pipe does not pickle.
    """

    def __init__(self, settings: EngineSettings) -> None:
        # The ranks share no seeds: with a fixed number of steps they do not begin epochs together.
        how, world = settings.options, settings.world
        service = MultiProcessingReadingService(
            how.num_workers, how.context, how.prefetch, 0, stall_after=how.stall_after
        )
        service.joined = (World(world.rank, world.size), settings.listing)
        service.records = how.records
        tail = _Tail(settings.pipe, settings.stateful)
        self._loader: Any = DataLoader2(tail, reading_service=service)
        self._service: MultiProcessingReadingService = self._loader.reading_service  # a copy of that above

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps."""
        self._service.reset_extras = dict(enumerate(plans))
        self._loader.seed(plans[0].epoch_seed >> 1)
        items = iter(self._loader)
        self.started()
        for item in items:
            worker = self._service.last_worker
            assert worker is not None
            yield item, worker, self._service.last_extras.get(worker)

    def ready(self) -> bool:
        """Return whether the worker whose turn it is has sent an item."""
        return self._service.is_ready()

    def reports(self) -> list[Report]:
        """Return the last report of each worker."""
        return self._service.stats_reports()

    def records(self) -> list[tuple[int, Recorded]]:
        """Return the workers' records of batches since the last call."""
        return self._service.new_records()

    def doing(self) -> list[ProcessPart]:
        """Return the current activity of the workers."""
        return self._service.doing()

    def close(self) -> None:
        """End the workers."""
        self._loader.shutdown()
