"""What `ais_loader` runs a pipe with: its steps, and what can be asked of it meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.observe.batches import BatchRecorder
from torchdata_ais.observe.collect import Report
from torchdata_ais.observe.flight import ProcessPart
from torchdata_ais.observe.records import Recorded
from torchdata_ais.stage.meter import iterate
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.workers.stall import Watchdog

Step = tuple[Any, int, "bytes | None"]
"""An item, the worker that made it, and where that worker stood after it (None: not known, or ask the engine)."""


class Engine(ABC):
    """What runs a pipe.

    Attributes:
        on_started: Called when an epoch has started its processes, before its first step.
    """

    on_started: Callable[[], object] | None = None

    def started(self) -> None:
        """Say that all processes of the epoch run."""
        if self.on_started is not None:
            self.on_started()

    @abstractmethod
    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps of one epoch of this rank; one plan a worker."""

    def ready(self) -> bool:
        """Return whether the next item of the epoch is known to be there, so that asking for it does not wait."""
        return False

    @abstractmethod
    def reports(self) -> list[Report]:
        """Return what `report_of` last gave in each process; see `torchdata_ais.stats`."""

    @abstractmethod
    def records(self) -> list[tuple[int, Recorded]]:
        """Return what was noted of batches since this was last asked for, by worker."""

    def doing(self) -> list[ProcessPart]:
        """Return what the worker processes are doing, if there are any."""
        return []

    def close(self) -> None:  # noqa: B027 - not every engine has something
        """End processes and connections. Idempotent."""


def watched(
    pipe: IterDataPipe[Any],
    stall_after: float | None,
    process: str,
    worker: int | None,
    recorder: BatchRecorder | None,
    iteration: int | None = None,
) -> Iterator[Any]:
    """Yield the items of `pipe`: what takes longer than `stall_after` is logged, and `recorder` notes each."""
    watchdog = Watchdog(stall_after, process, worker, None, pipe)
    with watchdog.running():
        items = watchdog.watch(iterate(pipe))
        if recorder is not None:
            recorder.begin(pipe, iteration)
            items = recorder.watch(items)
        yield from items
