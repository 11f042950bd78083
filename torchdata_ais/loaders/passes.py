"""Passes over the data, one after the other, by the workers of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.loaders.engine_options import EngineOptions, EngineSettings
from torchdata_ais.loaders.engines import Engine, InProcessEngine, Step, make_engine
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.state import plans_for
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.state import MergedState, StreamState
from torchdata_ais.workers.counts import ended
from torchdata_ais.world import World, instance_of

__all__ = ["Passes"]


class Passes:
    """Runs a pipe over the data, again and again, and knows where each worker stands.

    Args:
        pipe: The pipe.
        how: Processes to run it in.
        seed: Seed of all passes.
        stateful: Whether a state can be taken of the pipe.
        ahead: Whether an item is asked for before the one before it was given out.

    Attributes:
        seed: As given.
        number: The pass under way, or the next.
        resume: The state to begin the next pass from, once.
        turn: The worker that gives the next item.
        instances: Where each worker stands, packed; None before the pass has begun.
    """

    def __init__(
        self, pipe: IterDataPipe[Any], how: EngineOptions, seed: int, *, stateful: bool, ahead: bool
    ) -> None:
        self.seed = seed
        self.number = 0
        self.resume: StreamState | MergedState | None = None
        self.turn = 0
        self.instances: list[bytes] | None = None
        self._pipe = pipe
        self._how = how
        # In this process nothing is made before it is asked for, so the state can be asked for when it is wanted.
        self._asks = how.num_workers == 0 and not ahead
        self._stateful = stateful and not self._asks
        self._has_given = False
        self._engine: Engine | None = None
        self._past_reports: list[Report] = []

    @property
    def workers(self) -> int:
        """How many instances of the pipe this rank runs."""
        return max(1, self._how.num_workers)

    def one(self, world: World, listing: Listing) -> Iterator[Step]:
        """Yield the steps of one pass, or of the rest of one."""
        resume, self.resume = self.resume, None
        instances = world.size * self.workers
        plans = [
            InstancePlan.of(self.seed, self.number, instances, instance_of(world.rank, world.size, worker))
            for worker in range(self.workers)
        ]
        if resume is not None:
            plans = plans_for(resume, world.rank, world.size, self.workers, listing.digest)
        self.turn = 0
        self.instances = [plan.not_begun() for plan in plans]
        self._has_given = False
        return self._begun(world, listing).epoch(plans)

    def _begun(self, world: World, listing: Listing) -> Engine:
        """Return the engine, a new one if there is none."""
        if self._engine is None:
            self._past_reports = [ended(report) for report in self._past_reports]
            try:
                self._engine = make_engine(self._settings(world, listing, stateful=self._stateful))
            except AISError as error:
                raise error.with_traceback(None)  # noqa: B904 - the way down to where pipes are copied says nothing
        return self._engine

    def endless(self, world: World, listing: Listing) -> Iterator[Step]:
        """Yield the steps of one pass after the other.

        Raises:
            UsageError: This rank gets nothing in a whole pass.
        """
        while True:
            empty = True
            for step in self.one(world, listing):
                empty = False
                yield step
            if empty:
                raise UsageError.at(
                    f"rank {world.rank} of {world.size} got no batch in a whole epoch, so it cannot give any",
                    todo="use more shards than ranks, or smaller batches",
                )
            self.number += 1

    def again(self, world: World, listing: Listing) -> Iterator[Step]:
        """Yield items of the pass from its beginning, for a rank that has none left: -1 for the worker."""
        while True:
            engine = InProcessEngine(self._settings(world, listing, stateful=False))
            for item, _, _ in engine.epoch([InstancePlan.of(self.seed, self.number, 1, 0)]):
                yield item, -1, None

    def _settings(self, world: World, listing: Listing, *, stateful: bool) -> EngineSettings:
        return EngineSettings(self._pipe, stateful, listing, world, self._how)

    def gave(self, worker: int, state: bytes | None) -> None:
        """Note that the item of `worker` goes out, and where the worker stands after it."""
        self._has_given = True
        self.turn = (worker + 1) % self.workers
        if state is not None and self.instances is not None:
            self.instances[worker] = state

    def end(self) -> None:
        """Note that the pass has ended."""
        self.instances = None
        self._has_given = False
        self.number += 1

    def take_state(self) -> None:
        """Ask the engine of this process where it stands; workers say so with every item."""
        if self._asks and self._has_given and isinstance(self._engine, InProcessEngine):
            self.instances = [self._engine.state() or (self.instances or [b""])[0]]

    def reports(self) -> list[Report]:
        """Return what `report_of` last gave in each process, ended ones included."""
        now = self._engine.reports() if self._engine is not None else []
        return [*self._past_reports, *now] or [report_of(self._pipe)]

    def stop(self) -> None:
        """End the processes; the next pass begins new ones."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            self._past_reports += engine.reports()
