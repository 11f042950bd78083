"""A pipe run in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchdata_ais.loaders.engine import Engine, Step, watched
from torchdata_ais.loaders.engine_options import EngineSettings
from torchdata_ais.loaders.instance import InstancePlan, begin, pack_or_refuse
from torchdata_ais.observe.batches import BatchRecorder
from torchdata_ais.observe.collect import Report, report_of
from torchdata_ais.observe.records import Recorded
from torchdata_ais.ranks.sharding import shard_instance


class InProcessEngine(Engine):
    """Runs the pipe in this process.

    Where the caller asks for no item ahead of the one the user has, `state` gives at no cost, when it is wanted, what
    `EngineSettings.stateful` would have it give with each item.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._recorder = BatchRecorder(settings.pipe) if settings.options.records else None

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
            stall_after = self._settings.options.stall_after
            items = watched(pipe, stall_after, "this process", None, self._recorder)
            self.started()
            for item in items:
                yield item, 0, pack_or_refuse(pipe) if stateful else None

    def reports(self) -> list[Report]:
        """Return the counts of the pipe."""
        return [report_of(self._settings.pipe)]

    def records(self) -> list[tuple[int, Recorded]]:
        """Return what was noted of batches since this was last asked for, by worker."""
        return [] if self._recorder is None else [(0, self._recorder.take())]
