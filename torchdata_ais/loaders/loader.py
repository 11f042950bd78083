"""ais_loader."""

from __future__ import annotations

import json
import logging
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch.utils.data import ChainDataset
from typing_extensions import Self

from torchdata_ais._util.arguments import check_number, check_seed, checked, whole_number
from torchdata_ais._util.device import DeviceName, gpu_named
from torchdata_ais._util.process_end import close_at_exit
from torchdata_ais._util.world import WorldOptions
from torchdata_ais.codecs import Normalize
from torchdata_ais.dataloader2.own.prefetch import pin_memory_fn
from torchdata_ais.errors import ArgumentError, LoaderError, StateError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.index import Schedule
from torchdata_ais.loaders.engine import EngineOptions
from torchdata_ais.loaders.epoch_runner import EpochOptions, EpochRunner, StepsName
from torchdata_ais.loaders.observing import KEPT, Observing
from torchdata_ais.loaders.planned import ALLOWED, PlannedRunner
from torchdata_ais.loaders.rank_setup import RankSetup
from torchdata_ais.loaders.sample_dataset import SampleDataset
from torchdata_ais.loaders.streamed import runner_class
from torchdata_ais.loaders.to_device import normalized
from torchdata_ais.observe.collect import Counts, Report, added, counts_of, first_empty, since
from torchdata_ais.observe.diagnosis.rank_table import Readiness
from torchdata_ais.observe.draw import draw, html
from torchdata_ais.observe.stats import Stats, stats, with_stats
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import trimmed
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.planned.batches import check_planned
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import Tail
from torchdata_ais.plan.changes import Skip
from torchdata_ais.state import to_plain
from torchdata_ais.workers.process import StartMethod


def check_pipe(given: object, name: str) -> None:
    """Raise `UsageError` unless a loader was given a pipe."""
    if isinstance(given, IterDataPipe):
        return
    todo = "pass the last stage of a chain that begins with AISSourceLister(...) or IterableWrapper([...])"
    if isinstance(given, SampleDataset):
        todo = "pass AISSampleReader(index).batched(32), or give the data set to torch's DataLoader"
    if isinstance(given, list | tuple | ChainDataset):  # the sum of two pipes
        todo = (
            "make one pipe of several: one.concat(other), one after the other; one.mix_random(other), mixed"
        )
    raise UsageError.at(f"{name} was given an item of type {type(given).__name__}, not a pipe", todo=todo)


def runner_of(
    pipe: IterDataPipe[object], how: EngineOptions, given: EpochOptions, meeting: RankSetup
) -> EpochRunner:
    """Return the epoch runner of `pipe`: by a plan, or as a stream."""
    planned = check_planned(pipe)
    if isinstance(planned, AISSampleReader):
        return PlannedRunner(pipe, planned, how, given, meeting)
    if given != EpochOptions(given.seed, given.epoch_steps, None, None):
        raise UsageError.at(
            "global_batch=, tail=, rank_weights=, micro_batches= and schedule= are for pipes that read by index",
            todo="begin the pipe with .read_samples(), or use epoch_steps=",
        )
    return runner_class(given.epoch_steps)(pipe, how, given, meeting)


def likely_mistakes(item: object, pipe: IterDataPipe[object]) -> Iterator[str]:
    """Yield a sentence for each likely mistake.

    Example:
        >>> from torchdata_ais.pipes import Batcher
        >>> pipe = Batcher([(b"a", 1), (b"b", 2)], 2)
        >>> list(likely_mistakes(next(iter(pipe)), pipe))  # doctest: +ELLIPSIS
        ['column 0 of the batches holds bytes: put .decode() behind .group_samples(), ...']
    """
    stages = [stage_of(stage) for stage in upstream(pipe)]
    columns = _columns(item)
    if item is None:
        yield "the items are None: a function of the pipe returned nothing: let it return the value"
    elif not any(stage.effect().gives == "batches" for stage in stages):
        known = all(stage.effect().gives != "unknown" or stage.ready or stage.hidden for stage in stages)
        if known and any(isinstance(value, torch.Tensor) and value.ndim for value in columns.values()):
            yield "the items are single samples, not batches: end the pipe with .batched(32)"
    elif isinstance(item, list) and item and isinstance(item[0], (tuple, dict)):
        yield "the batches are lists of samples, as torch's .batch(n) makes them: .batched(n) makes columns"
    else:
        yield from _unusable_columns(columns, {stage.functional_name for stage in stages})


def _columns(item: object) -> Mapping[object, object]:
    """Return the columns of a batch by name, or by position."""
    if isinstance(item, Mapping):
        return item
    return dict(enumerate(item if isinstance(item, tuple) else [item]))


def _unusable_columns(columns: Mapping[object, object], names: set[str]) -> Iterator[str]:
    """Yield a sentence for each kind of column that no model takes."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, column in columns.items():
        if isinstance(column, list) and column and not str(name).startswith("__"):
            found.setdefault(_kind(column[0], names), []).append(repr(name))
    for (what, todo), which in found.items():
        if what:
            some = f"column {which[0]}" if len(which) == 1 else f"columns {', '.join(which)}"
            yield f"{some} of the batches hold{'s' * (len(which) == 1)} {what}: {todo}"


def _kind(value: object, names: set[str]) -> tuple[str, str]:
    """Return a value's description and remedy if no model takes it, else ""."""
    if isinstance(value, bytes) and "decode" not in names:
        if names & {"load_tar"} and "group_samples" not in names:
            return "bytes", "put .group_samples().decode().to_tuple(...) behind .load_tar()"
        return "bytes", 'put .decode() behind .group_samples(), of pictures .decode("torchrgb8", size=224)'
    if value is None:
        return "None", "a function of the pipe returned nothing: let it return the value"
    if type(value).__module__.startswith("PIL."):
        todo = 'decode to tensors with .decode("torchrgb8", size=224), or transform them before .batched()'
        return "PIL images", todo
    return "", ""


_log = logging.getLogger("torchdata_ais")

_EMPTY_WAIT_S = 60.0  # for other ranks, if this one has no batch
_MOST_STEPS = 1 << 31  # to begin at: times the largest global batch they can be counted

_SEEDED = {"shuffle", "shuffled", "rsample", "resampled", "read_samples", "mix_random"}
"""Stages whose result is another one in each epoch."""

_OF_TORCH = {
    "dataset": "Its data are those of the pipe it was made with; an index has a SampleDataset",
    "batch_size": "Batches are made in the pipe, by .batched(n)",
    "sampler": "The pipe, or the plan of .read_samples(), says which samples come",
    "batch_sampler": "The pipe, or the plan of .read_samples(), says which samples come",
    "collate_fn": "Batches are made in the pipe, by .batched(n, collation_fn=...)",
    "drop_last": ".batched(n, partial=False) leaves out a last batch that is smaller",
    "num_workers": "It is an argument of ais_loader, which stats() shows",
    "reset": "Each iter(loader) begins the next epoch; set_epoch(n) repeats one",
}


class AISLoader:
    """Runs `pipe` over workers and ranks: an iterable of batches.

    It is also a context manager. One `iter` is one epoch.

    Args:
        pipe: A pipe that batches by itself, e.g. with ``.batched(64)``.
        num_workers: Worker processes of this rank; 0 runs the pipe in this process. Workers live on between epochs.
        seed: Seed of all epochs. The order of an epoch is a function of (data, seed, epoch, ranks, workers).
        epoch_steps: Batches a rank gives in an epoch. None: all it has, every sample once, ranks may differ. A number:
            exactly that many; an epoch continues in the data where the last one stopped. ``"shortest"``: ranks stop
            together when the first has none left, the rest of the epoch is dropped. ``"pad"``: ranks continue until
            the last has none left, the others repeat samples (``loader.repeated``).
        prefetch: Batches each worker makes ahead.
        pin_memory: Put tensors into page-locked memory; ``device=`` does that by itself.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        stall_after: Seconds an item may take in a worker; then its log gets the stacks of its threads, and a
            `StallError` names worker, stage and object. With no workers only the log shows its position. A worker that
            does not run at all (stopped, swapped out) is a `StallError` two seconds later. None: no limit but those of
            the transport, and 30 s for a worker that a signal has stopped.
        on_stats: Called with the result of `stats`, between two batches, every `stats_every` seconds and at the end of
            an epoch.
        stats_every: Seconds.
        global_batch: For pipes that read by index (``.read_samples()``): samples a step over all ranks. None: the batch
            of the pipe, for each rank. The order of an epoch is then a function of (data, seed, epoch, global batch)
            alone, and ranks take equal steps.
        tail: By index, the treatment of a remainder; see `AISSampleReader`.
        rank_weights: By index, a whole number for each rank: its share of the global batch, where some GPUs are faster
            than others. None: equal shares. Global batches and states are the same with any shares.
        micro_batches: By index, how many batches of each rank make a step of the optimizer. Steps, states, schedule and
            `samples_of` count such steps; a state taken within one begins it again. ``.batched(n)`` is then the size of
            a micro-batch, ``global_batch=`` counts the samples of a step.
        schedule: By index, changes by step: a `Schedule`, or its JSON value.
        start_step: By index, the step of the run to begin at, as if its state had been loaded: with the same data, seed
            and global batch it gives the same batches. `load_state_dict` takes its place.
        rank: This rank. None: that of torch.distributed at the first iteration.
        world_size: How many ranks share out the data; 1 for a loader of this process alone. Goes with `rank`.
        store: A store of torch.distributed by which the ranks compare their listings; each loader of a run in turn may
            use the same. None: the process group's, where `rank` is not passed.
        rank_timeout_s: How long to wait for a rank that has not started.
        mesh: The slice of a `DeviceMesh` that shares out the data (``mesh["dp"]``). All processes of the job make the
            loader; those of one data rank get equal batches.
        group: The process group of such a slice, in place of `mesh`.
        replica_check: Processes of one data rank compare every so many-th of their batches. None: they compare none,
            and a group's loader waits for the processes of that group alone.
        start_spread_s: Over how many seconds the ranks start, each at another moment, once they have met. None: 0 for
            up to 64 ranks, above that the time in which all workers start at 500 a second, 30 s at most.
        trace: Keep a record of each of the last 4,096 batches (a number: of so many), for `trace` and `report`.
        run_dir: A folder for all ranks. Each writes its status there every 5 s, for ``torchdata-ais watch``. On an
            error, after 60 s without a batch and on SIGUSR2 it writes the activity of all its processes, for
            ``torchdata-ais doctor``.
        device: ``"cuda"`` (or ``"cuda:1"``): batches are there when the loop gets them. A thread pins them and copies
            them on a separate stream, up to two ahead of the loop, whose stream waits for its own batch only. All
            tensors in tuples, named tuples, lists, mappings and packed sequences are copied, the rest is handed on.
            ``"cpu"`` is the same without all that.
        allow_empty: Whether an epoch without a batch is fine. By default it is a `LoaderError`, except at the end of an
            epoch that a checkpoint was taken in. With several ranks it is an error if none of them has a batch; one
            rank without a batch logs it.
        normalize: ``Normalize()``: uint8 images (N, C, H, W) of a batch are floats when the loop gets them, made on the
            device.

    Memory:
        With ``device="cuda"`` 4 batches on it (and one more with ``epoch_steps="shortest"`` or ``"pad"``): two copied
        ahead, the one in the loop, and the one before it until its work is done; 3 page-locked in the host's.

    Attributes:
        epoch: The epoch under way, or the last one; -1 before the first.
        repeated: Batches repeated in this epoch to reach the length of the longest rank.

    Raises:
        UsageError: Arguments that cannot work, a pipe that cannot be sent to workers, ``WORLD_SIZE`` above 1 without
            torch.distributed or `rank`; ranks with different pipes, sources or arguments.
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
        pipe: IterDataPipe[object],
        *,
        num_workers: int = 0,
        seed: int = 0,
        epoch_steps: StepsName = None,
        prefetch: int = 2,
        pin_memory: bool = False,
        multiprocessing_context: StartMethod | None = None,
        stall_after: float | None = None,
        on_stats: Callable[[Stats], object] | None = None,
        stats_every: float = 60.0,
        global_batch: int | None = None,
        tail: Tail | None = None,
        rank_weights: Sequence[int] | None = None,
        micro_batches: int = 1,
        schedule: Schedule | Mapping[str, object] | None = None,
        start_step: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        store: object = None,
        rank_timeout_s: float = 1800.0,
        mesh: object = None,
        group: object = None,
        replica_check: int | None = 256,
        start_spread_s: float | None = None,
        trace: bool | int = False,
        run_dir: str | PathLike[str] | None = None,
        device: DeviceName = None,
        normalize: Normalize | None = None,
        allow_empty: bool = False,
    ) -> None:
        records = bool(trace) or run_dir is not None
        self._meeting = RankSetup(
            WorldOptions(rank, world_size, store, rank_timeout_s, mesh, group, replica_check, start_spread_s)
        )
        with self._meeting.awaited(self):
            check_pipe(pipe, "ais_loader()")
            if stats_every <= 0:
                raise UsageError.at(f"stats_every={stats_every}", todo="use seconds, more than 0")
            gpu = gpu_named(device)
            check_seed(seed)
            if not isinstance(pin_memory, bool):
                raise UsageError.at(f"pin_memory={pin_memory!r}", todo="pass True or False")
            if pin_memory and not torch.cuda.is_available():
                _log.warning("pin_memory=True does nothing here: torch sees no GPU")
                pin_memory = False
            if normalize is not None and not isinstance(normalize, Normalize):
                raise UsageError.at(
                    f"normalize={normalize!r:.60}", todo="pass Normalize(), or Normalize(mean, std)"
                )
            how = EngineOptions(num_workers, prefetch, multiprocessing_context, stall_after, records)
            shares = tuple(whole_number(one, "rank_weights", 1, _MOST_STEPS) for one in rank_weights or ())
            check_number(micro_batches, 1, "micro_batches")
            given = EpochOptions(
                seed, epoch_steps, global_batch, tail, Schedule.of(schedule), shares, micro_batches
            )
            self._runner = runner_of(pipe, how, given, self._meeting)
            if whole_number(start_step, "start_step", most=_MOST_STEPS):
                self._runner.start_at(start_step)
            self._observing: Observing | None = None
            if records:
                self._observing = Observing(
                    KEPT if trace in (True, False) else trace, run_dir, self._runner.doing
                )
                self._runner.recorder = self._observing.recorder
            self._runner.gpu = gpu
        self._pipe = pipe
        self._num_workers = num_workers
        self._pin = pin_memory and gpu is None
        self._normalize = normalize
        self._on_stats = on_stats
        self._stats_every = stats_every
        self._allow_empty = allow_empty
        self._closed = False
        self.epoch = -1
        self.repeated = 0
        self._next_epoch = 0
        self._step = 0
        self._run = self._newest = 0
        self._begun_epochs = 0  # equal on all ranks
        self._looked = False
        self._itself = object()  # what the pipe knows of it

    @property
    def under_way(self) -> bool:
        """True if the next `iter` finishes an epoch of a checkpoint."""
        return self._runner.under_way

    @checked
    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, also to repeat one.

        Nothing changes for the epoch under way.

        Raises:
            UsageError: A state was loaded that was taken in the middle of another epoch; or the epochs are steps of a
                stream, and another one is next.
        """
        epoch = whole_number(epoch, "epoch")
        self._runner.check_epoch(epoch, self._next_epoch)
        self._next_epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, where it is known.

        It is known with a fixed number of steps, and by index.
        """
        return self._runner.length

    @property
    def classes(self) -> tuple[str, ...] | Mapping[str, tuple[str, ...]] | None:
        """The names of the classes, by label; None if they are not known.

        They are those of the index (see `torchdata_ais.SampleIndex.classes`), or of ``classes.json`` beside the
        shards that the pipe lists. A mapping by field where other fields than ``cls`` have names.
        """
        for part in upstream(self._pipe):
            if isinstance(part, AISSampleReader):
                return part.data.mixture.classes
            if isinstance(part, AISSourceLister):
                return part.read_classes()
        return None

    @property
    def step(self) -> int:
        """The number of steps of the run so far, over all epochs.

        Raises:
            UsageError: The pipe does not read by index.
        """
        return self._runner.run_step

    @checked
    def set_schedule(self, schedule: Schedule | Mapping[str, object]) -> int:
        """Change the schedule between two batches, or before the first.

        All ranks call it with the same schedule. It waits for them.

        Args:
            schedule: It takes the place of the one before, and is part of the states from now on.

        Returns:
            The step from which on it holds: the first that no rank has passed.

        Raises:
            UsageError: The pipe does not read by index; the schedule cannot be; another rank has another one.
            LoaderError: A rank does not come.

        Example:
            >>> from torchdata_ais import AISSampleReader, SampleIndex, Schedule
            >>> from torchdata_ais.testing import example_shards
            >>> pipe = AISSampleReader(SampleIndex.build(example_shards(counts=(30, 50, 20)))).decode()
            >>> with ais_loader(pipe.to_tuple("cls").batched(8)) as loader:
            ...     batches = iter(loader)
            ...     first = next(batches)
            ...     loader.set_schedule(Schedule(global_batch={3: 40})), [len(batch) for (batch,) in batches]
            (1, [8, 8, 40, 36])
        """
        return self._runner.set_schedule(Schedule.of(schedule))

    @checked
    def skip(self, steps: int | range, samples: Skip = "drop") -> int:
        """Skip steps that are to come, as after a spike of the loss.

        All ranks call it alike, between two batches. See `set_schedule`.

        Args:
            steps: How many of the next steps, or a range of steps of the run.
            samples: ``"drop"`` leaves out their samples, too; with ``"defer"`` these come in the steps after.

        Returns:
            The first step that no rank has passed.

        Raises:
            UsageError: As for `set_schedule`; or some of the steps have passed.
        """
        if not isinstance(steps, range):
            check_number(steps, 1, "steps")
        elif steps.step != 1 or not steps:
            raise UsageError.at(f"steps={steps!r}", todo="pass a range of steps: range(500, 520)")
        return self._runner.skip(steps, samples)

    def samples_seen(self) -> tuple[int, ...]:
        """Return how many samples of each source were drawn for the steps so far.

        Those of all ranks are counted, and the remainder of an epoch that ``tail="drop"`` left out.

        Returns:
            A number for each index of the `Mixture`, in its order.

        Raises:
            UsageError: The pipe does not read by index.

        Example:
            >>> from torchdata_ais import AISSampleReader, SampleIndex
            >>> from torchdata_ais.testing import example_shards
            >>> pipe = AISSampleReader(SampleIndex.build(example_shards(counts=(30, 50, 20)))).batched(8)
            >>> with ais_loader(pipe, start_step=10) as loader:
            ...     loader.step, loader.samples_seen(), len(list(loader)), loader.step
            (10, (80,), 3, 13)
        """
        return self._runner.samples_seen()

    @property
    def steps_left(self) -> int:
        """Return the batches left of the epoch under way.

        Between epochs, and before the first, those of the next.

        Raises:
            TypeError: It is not known, as for `len`.
        """
        return self._runner.length - self._runner.steps_given(self._step)

    def __getitem__(self, index: object) -> NoReturn:
        raise ArgumentError.at(
            f"a loader has no batch {index!r:.40}: its batches come one after the other",
            todo="take the first by next(iter(loader)); to reach samples by number, make a SampleDataset of an index",
        )

    if not TYPE_CHECKING:

        def __next__(self) -> NoReturn:
            raise ArgumentError.at(
                "a loader is no iterator itself",
                todo="take the first batch by next(iter(loader)), all by a for loop",
            )

        def __getattr__(self, name: str) -> NoReturn:
            advice = f" {_OF_TORCH[name]}" if name in _OF_TORCH else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{advice}")

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs from the next one on, below `count`.

        After `load_state_dict` the first one is that of the state, whose rest the loop gets. Each is to be iterated
        once in the body of the loop.

        Args:
            count: How many epochs the training has in all.

        Raises:
            LoaderError: The body of the loop did not iterate the loader.

        Example:
            >>> from torchdata_ais import AISSourceLister
            >>> from torchdata_ais.testing import example_shards
            >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().batched(4)
            >>> with ais_loader(pipe) as loader:
            ...     [(epoch, sum(1 for _ in loader)) for epoch in loader.epochs(2)]
            [(0, 2), (1, 2)]
        """
        check_number(count, 0, "count")
        while (epoch := self._following()) < count:
            run = self._run
            yield epoch
            if self._run == run:
                raise LoaderError.at(
                    f"epoch {epoch} was not iterated in the loop over epochs()",
                    todo="write for batch in loader: in its body",
                )

    def _following(self) -> int:
        """Return the number of the epoch that begins next."""
        number = self._runner.settings(self._next_epoch)["epoch"]
        assert isinstance(number, int)
        return number

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise LoaderError.at("the loader was closed", todo="make a new one with ais_loader(...)")
        self._run += 1
        self._newest = self._run
        items = self._epoch_items(self._run)
        close_at_exit(items)
        return items if self._on_stats is None else with_stats(items, self, self._on_stats, self._stats_every)

    # One generator with many branches: whatever an epoch starts must end where the generator ends.
    def _epoch_items(self, run: int) -> Iterator[Any]:
        meeting, runner = self._meeting, self._runner
        meeting.join(self._pipe, runner, self._next_epoch)
        ranks, replicas = meeting.ranks, meeting.replicas
        job, errors, telling = meeting.counts, meeting.errors, ExitStack()
        begun = came = False
        resumed = runner.under_way
        self._begun_epochs += 1
        before = self._counts()
        try:
            self.epoch, self._step = runner.begin(self._next_epoch)
            self._next_epoch = self.epoch + 1
            if self.epoch == 0 and not resumed and not self._step:
                self._note_first_epoch()
            self.repeated = runner.repeated()
            if self._observing is not None:
                self._observing.begin(meeting.world, self.epoch)
            for item, worker, state in runner.epoch(self._step):
                if not came:
                    came = self._tell_of_batch()
                if run != self._run:
                    self._refuse_older(run)
                    return  # the loader was closed, or moved to another position
                if ranks is not None:
                    ranks.raise_heard()
                if job is not None and not begun:  # by now no process is forked any more in this epoch
                    begun = True
                    telling.enter_context(job.running(self.epoch))
                if errors is not None:
                    errors.look_round(job)
                if worker >= 0:
                    runner.record_output(worker, state)
                else:
                    self.repeated += 1
                if replicas is not None:
                    replicas.note(runner.given(self._step), item)
                self._step += 1
                if not self._looked:
                    self._looked = True
                    self._warn_of_mistakes(item)
                if self._pin:
                    item = pin_memory_fn(item)  # noqa: PLW2901 - a name less that holds it
                yield item if self._normalize is None else normalized(item, self._normalize)
            self._check_end()
            if not came:
                self._check_empty(since(before, self._counts()), refuse=not (resumed or self._allow_empty))
        except (KeyboardInterrupt, SystemExit):
            if not came:
                runner.stop()  # the processes may not all have been started: the next epoch starts new ones
            raise
        except Exception as error:  # noqa: BLE001 - raised again
            self._refuse_older(run)
            self._report_failure(error)
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has
        finally:
            telling.close()
        runner.finish()
        self._step = 0
        if self._observing is not None:
            self._observing.end("between epochs")

    def _note_first_epoch(self) -> None:
        """Log once if another loader of this pipe and seed began at epoch 0, too."""
        if not isinstance(self._pipe, Pipe):
            return
        seeds = vars(self._pipe).setdefault("begun_by", {})
        other = seeds.setdefault(self._runner.seed, self._itself)
        names = {stage_of(part).functional_name for part in upstream(self._pipe)}
        if other is not self._itself and other is not None and names & _SEEDED:
            seeds[self._runner.seed] = None  # once is enough
            _log.warning(
                "a second loader of this pipe and seed begins at epoch 0: it gives the same order as the first. "
                "Keep one loader for all epochs, or call loader.set_epoch(n)"
            )

    def _warn_of_mistakes(self, item: object) -> None:
        """Log the likely mistakes that the first item shows."""
        for sentence in likely_mistakes(item, self._pipe):
            _log.warning("%s", sentence)

    def _counts(self) -> Counts:
        """Return what the stages took and returned so far, where they run."""
        return counts_of([one for one in self._runner.reports() if one.in_workers == (self._num_workers > 0)])

    def _check_empty(self, counts: Counts, *, refuse: bool) -> None:
        """Raise `LoaderError` for an epoch without a batch on any rank.

        Where only this rank has none, that is logged; so it is if another rank does not say within a minute whether it
        has one, or the ranks have no common store.

        Args:
            counts: Of this rank's stages in the epoch.
            refuse: Whether to raise or log. The store gets the counts in any case.
        """
        ranks, world = self._meeting.ranks, self._meeting.world
        key, where = self._batch_key(), ""
        if ranks is not None:
            ranks.tell(f"{key}/{ranks.rank}", json.dumps(counts))
        if not refuse:
            return
        if ranks is not None:
            names = {rank: f"{key}/{rank}" for rank in range(ranks.world_size)}
            all_counts = ranks.hear_within(names, _EMPTY_WAIT_S, unless=key)
            if all_counts:
                counts = added([json.loads(one) for one in all_counts.values()])
                where = f" on any of {ranks.world_size} ranks"
        why = first_empty(counts) or "no stage was given an item"
        if world.members[1] > 1 and not where:
            _log.warning(
                "rank %d of %d has no batch in epoch %d: %s", world.rank, world.size, self.epoch, why
            )
            return
        raise LoaderError.at(
            f"epoch {self.epoch} has no batch{where}: {why}",
            todo=Remedy(
                "check that functions return their sample, and what stages leave out",
                "pass allow_empty=True if that may be",
            ),
        )

    def _tell_of_batch(self) -> bool:
        """Let ranks without a batch know that this epoch has one; return True."""
        if self._meeting.ranks is not None:
            self._meeting.ranks.tell(self._batch_key(), "1")
        return True

    def _batch_key(self) -> str:
        """Return the key that ranks with a batch in this epoch set."""
        return f"batch/{self._begun_epochs}"

    def _check_end(self) -> None:
        """Exchange the last counts of the epoch, and check the job's limits."""
        job, errors = self._meeting.counts, self._meeting.errors
        if job is not None and (errors is not None or self._meeting.replicas is not None):
            job.exchange_last()
        if errors is not None:
            errors.check(job, at_end=True)

    def _report_failure(self, error: Exception) -> None:
        """Report an error of the epoch to the other ranks, and end the epoch."""
        ranks, job = self._meeting.ranks, self._meeting.counts
        if self._observing is not None:
            self._observing.failed(error)
        if ranks is not None:
            ranks.report(error)
            if job is not None:
                job.tell_failure()
            ranks.linger()
        self._runner.forget()
        if self._num_workers:
            self._runner.stop()  # processes that have failed do not run again

    def _refuse_older(self, run: int) -> None:
        if run < self._newest:
            raise LoaderError.at(
                "a newer iterator of this loader has taken over: a loader runs one epoch at a time",
                todo="make a second ais_loader for a second loop beside the first",
            ) from None

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank's loader after the last batch received.

        Returns:
            Plain values, the same shape at every step: some hundred bytes a worker, and 11 bytes for each
            sample in a shuffle buffer; JSON can hold it. `merge_states` joins those of ranks.

        Raises:
            StateError: The pipe has a stage that a checkpoint cannot pass through; names it.
        """
        return to_plain(self._runner.saved(self.epoch, self._next_epoch, self._step))

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Make the next `iter` finish the epoch in which `state` was taken.

        Args:
            state: One rank's `state_dict`, or the result of `merge_states` for all ranks. By index any rank's is that
                of all.
            allow: By index, permitted changes: ``"batch"`` (the global batch), ``"weights"``, ``"sources"``,
                ``"schedule"``. Nothing is lost or repeated by it.

        Raises:
            StateError: It is not a state, of another version, damaged, or of another pipeline. The loader is then as
                it was.
        """
        if isinstance(state, str | PathLike):
            raise StateError.at(
                f"load_state_dict() was given {fspath(state)!r:.80}, not a state",
                todo="read it first: load_state_dict(torch.load(path)), or state_from_json(text)",
            )
        allow = {allow} if isinstance(allow, str) else allow
        with self._meeting.awaited(self):
            if not isinstance(allow, Collection) or any(change not in ALLOWED for change in allow):
                raise UsageError.at(f"allow={allow!r:.60}", todo=f"use {', '.join(ALLOWED)}")
            self._runner.load(state, allow)
        self._run += 1

    @checked
    def samples_of(self, step: int) -> list[tuple[str, str]]:
        """Return ``(key, shard)`` of each sample of a global step, of all ranks.

        Reads none of them.

        Args:
            step: Counted over the whole run, from 0; of those before the last change at a resume nothing is known.

        Raises:
            UsageError: The pipe does not read by index; the step does not exist, or is before that change.
        """
        return self._runner.samples_of(step)

    @checked
    def trace(self, path: str | PathLike[str]) -> None:
        """Write the records of the last batches as a Chrome trace.

        ui.perfetto.dev opens it.

        Raises:
            UsageError: The loader was made without ``trace=True``.
            LoaderError: The file cannot be written.
        """
        self._observed().trace(path)

    def report(self, group: object = None, *, timeout_s: float = 60.0) -> Readiness:
        """Return how ready the data were on each rank, and the cause of delays.

        It names the rank that delays the others.

        Args:
            group: A group of torch.distributed, all ranks of which call this. None: this rank, and with ``run_dir=``
                the last reports of the others.
            timeout_s: How long to wait for the other ranks of the group.

        Raises:
            UsageError: The loader was made without ``trace=True``.
            LoaderError: A rank of the group does not come, or is gone.
        """
        return self._observed().report(group, timeout_s)

    def _observed(self) -> Observing:
        if self._observing is None:
            raise UsageError.at(
                "this loader keeps no records", todo="make it with ais_loader(..., trace=True) or run_dir="
            )
        return self._observing

    def stats(self) -> Stats:
        """Return the counts of the stages so far; see `torchdata_ais.stats`."""
        return stats(self)

    def stats_reports(self) -> list[Report]:
        """Return the last counts of each worker process, which `stats` adds up."""
        return [report.of_rank(*self._meeting.world.members) for report in self._runner.reports()]

    def close(self) -> None:
        """End the workers; the loader cannot be iterated any more. Idempotent."""
        if not self._closed:
            self._runner.take_state()  # a checkpoint may still be requested
        self._closed = True
        self._run += 1
        self._runner.forget()
        self._runner.stop()
        if self._observing is not None:
            self._observing.close()
        self._meeting.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._meeting.failed(error)
        self.close()

    def __repr__(self) -> str:
        return f"{self._title()}:\n" + textwrap.indent(draw(self._pipe), "  ")

    def _repr_html_(self) -> str:
        return f"<b>{self._title()}</b>{html(self._pipe)}"

    def _title(self) -> str:
        return f"ais_loader(num_workers={self._num_workers}, seed={self._runner.seed})"


ais_loader = AISLoader
"""Public name: ``with ais_loader(pipe, num_workers=4) as loader``."""
