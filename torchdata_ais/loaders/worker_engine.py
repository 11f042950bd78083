"""Run a pipe in worker processes: DataLoader2 with the reading service of this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.loaders.engine import Engine, EngineSettings, Step
from torchdata_ais.loaders.instance import InstancePlan, begin, pack_or_refuse
from torchdata_ais.observe.collect import Report
from torchdata_ais.observe.flight import ProcessPart
from torchdata_ais.observe.records import Recorded
from torchdata_ais.stage.meter import iterate
from torchdata_ais.stage.pipe import IterDataPipe, Pipe
from torchdata_ais.world import World


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
        """Return what the workers have told of their batches since this was last asked for."""
        return self._service.new_records()

    def doing(self) -> list[ProcessPart]:
        """Return what the workers are doing."""
        return self._service.doing()

    def close(self) -> None:
        """End the workers."""
        self._loader.shutdown()
