"""A pipe run in the workers of torch's DataLoader: new ones each epoch."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torchdata_ais.errors import StallError
from torchdata_ais.lifetime import end_with
from torchdata_ais.loaders.engine import Engine, Step, watched
from torchdata_ais.loaders.engine_options import EngineSettings
from torchdata_ais.loaders.instance import InstancePlan, begin, pack_or_refuse
from torchdata_ais.observe.collect import Report
from torchdata_ais.observe.flight import NOT_ASKED, ProcessPart
from torchdata_ais.observe.records import Recorded
from torchdata_ais.ranks.sharding import shard_instance
from torchdata_ais.stage.origin import note_place
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.sending import received, sendable
from torchdata_ais.stage.upstream import at_work
from torchdata_ais.workers.counts import Counts, ended
from torchdata_ais.workers.failure import Failure
from torchdata_ais.workers.pulse import GRACE_S, Patience, Pulse, is_stopped

_LOOK_ROUND_S = 0.5
"""How often to look after torch's workers while nothing comes."""

_END: Any = object()


@dataclass(eq=False)
class _Workers(IterableDataset[Any]):
    """What each worker of torch's DataLoader runs.

    It never ends by itself: DataLoader hands the turn of an ended worker on as soon as it hears of the end, which
    depends on timing. An ended worker yields None when it is its turn, and the main process counts.
    """

    pipe: IterDataPipe[Any]
    plans: Sequence[InstancePlan]
    stateful: bool
    stall_after: float | None
    pulses: Sequence[Pulse]
    iteration: int | None

    def __getstate__(self) -> Any:
        return {**vars(self), "pipe": sendable(self.pipe)}

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state, pipe=received(state["pipe"]))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        if self.pulses:
            self.pulses[info.id].begin()
        plan = self.plans[info.id]
        shard_instance(self.pipe, plan.number, plan.instance)
        begin(self.pipe, plan)
        counts = Counts(self.pipe, records=self.iteration is not None)
        name = f"worker process {info.id}"
        items = watched(self.pipe, self.stall_after, name, info.id, counts.recorder, self.iteration)
        try:
            for item in items:
                state = pack_or_refuse(self.pipe) if self.stateful else None
                yield item, info.id, state, counts.take(self.pipe)
        except Exception as error:  # noqa: BLE001 - raised again in the main process, which torch would prefix
            note_place(error, None, None, at_work(self.pipe))
            yield Failure.of(error, f"in DataLoader {name}")
        yield info.id, counts.take(self.pipe, now=True)
        while True:
            yield None


def _as_it_is(item: Any) -> Any:
    return item


def _end_with(main_pid: int, _worker: int) -> None:
    end_with(main_pid)


class DataLoaderEngine(Engine):
    """Runs the pipe in the workers of torch's DataLoader: new ones each epoch."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._running: Any = None
        self._past: list[Report] = []
        self._last_doing: list[ProcessPart] = []
        self._iterations = 0
        self._reports: dict[int, Report] = {}

    def epoch(self, plans: Sequence[InstancePlan]) -> Iterator[Step]:
        """Yield the steps; ends when every worker has."""
        pipe, options = self._settings.pipe, self._settings.options
        pulses = [] if options.stall_after is None else [Pulse(options.stall_after) for _ in plans]
        self._iterations += 1
        iteration = self._iterations if options.records else None
        loader: Any = DataLoader(
            _Workers(pipe, plans, self._settings.stateful, options.stall_after, pulses, iteration),
            batch_size=None,
            num_workers=options.num_workers,
            prefetch_factor=max(1, options.prefetch),
            collate_fn=_as_it_is,
            multiprocessing_context=options.context,
            timeout=_LOOK_ROUND_S,
            # torch's own watch looks at the parent: a fork server, or whoever adopted a worker whose parent was
            # killed before the watch began.
            worker_init_fn=partial(_end_with, os.getpid()),
        )
        self.close()
        self._past = [ended(report) for report in self.reports()]
        self._reports.clear()
        with self._settings.listing.on(pipe):  # for the copies that the workers are started with
            self._running = iter(loader)
        self.started()
        idle = 0
        try:
            for step in self._patiently(self._running, pulses):
                if isinstance(step, Failure):
                    raise step.rebuild()
                if step is not None and step[-1] is not None:
                    worker = step[-3 if len(step) > 2 else 0]
                    self._reports[worker] = step[-1].after(self._reports.get(worker))
                if step is not None and len(step) > 2:
                    idle = 0
                    yield step[:3]
                    continue
                idle += 1
                if idle == options.num_workers:  # a whole round of them: nobody has anything left
                    return
        except Exception:
            self._last_doing = self.doing()  # whoever hears of the error finds the processes ended
            raise
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

    def records(self) -> list[tuple[int, Recorded]]:
        """Return what the workers have told of their batches since this was last asked for."""
        taken = ((worker, report.take()) for worker, report in sorted(self._reports.items()))
        return [(worker, recorded) for worker, recorded in taken if recorded is not None]

    def doing(self) -> list[ProcessPart]:
        """Return what the system says of torch's workers: they cannot be asked."""
        running = self._running  # another thread may close it meanwhile
        if running is None:
            return self._last_doing
        return [
            ProcessPart(f"worker process {number}", worker.pid, trouble=NOT_ASKED)
            for number, worker in enumerate(running._workers)
        ]

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
