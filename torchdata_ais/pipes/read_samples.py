"""``.read_samples()``: samples by index, in an order that is a function of the position alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash
from torch.utils.data import get_worker_info
from typing_extensions import Self, Unpack, override

from torchdata_ais.arguments import check_number
from torchdata_ais.errors import AISError, EmptyBatchError, TransportError, UsageError
from torchdata_ais.index import IndexedSamples, Mixture
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.plan import Epoch, Run, RunSegment, Sources, Tail
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.reading.by_index import IndexedReader
from torchdata_ais.reading.listed import compare_with_listing
from torchdata_ais.reading.open_shard import Safety
from torchdata_ais.reading.requests import Wanted
from torchdata_ais.reading.samples import naming_index, planned_sample, url_of_shard
from torchdata_ais.samples import PlannedSample, pack_place
from torchdata_ais.stage.bound import MemoryBound, mib
from torchdata_ais.stage.contract import Effect
from torchdata_ais.stage.datapipes import SHARDING_PRIORITIES
from torchdata_ais.stage.pipe import Pipe, stage
from torchdata_ais.stage.place import place_in
from torchdata_ais.stage.policy import ErrorPolicy, OnError
from torchdata_ais.stage.seed import mix_seed
from torchdata_ais.stage.slots import PlannedStage, Share, Task
from torchdata_ais.stage.stats import StageStats
from torchdata_ais.stage.transport import StageTransport
from torchdata_ais.store import (
    Cluster,
    ClusterNames,
    ObjectCache,
    Retry,
    StoreOptions,
    given_options,
)
from torchdata_ais.world import known_ranks

__all__ = ["AISSampleReader"]

_AT_ONCE = 1024  # positions that are looked up in the index at a time
_NO_BATCH = 8192  # positions a step, where nobody makes batches

Shuffle = Literal["samples", "runs"] | None


@stage("read_samples")
class AISSampleReader(Pipe[PlannedSample], PlannedStage):
    """Read samples by index (``.read_samples()``): any order of them, the same for any number of ranks and workers.

    Args:
        source: A `SampleIndex`; a `Mixture` of several; the place of a stored index, as `SampleIndex.open` takes it; or
            a lister, whose shards have their index beside them (``AISSourceLister(...).read_samples()``).
        shuffle: ``"samples"``: all samples, in an order that is another in each epoch; ``"runs"``: neighbours stay
            together, so that fewer requests are made; None: the stored order.
        seed: Seed of the order. A loader's counts instead, where it has one.
        positions: The numbers of the samples to read, in this order, instead of all (they may repeat).
        batch_size: How many samples of a rank make a batch, for loaders that batch by themselves. Below this stage
            ``.batched(n)`` says so.
        tail: What becomes of the remainder of an epoch that makes no whole global batch: ``"short"`` deals it evenly
            over the ranks, ``"drop"``, or ``"pad"`` with the beginning of the epoch.
        empty: What becomes of a batch of which filters and error policies left nothing: ``"error"``, or ``"repeat"``:
            the worker's last batch is given again.
        epoch_steps: Global batches of an epoch; the next goes on in the data where it stopped. None: all samples
            (or what the `Mixture` says).
        run_bytes: Bytes of neighbours that ``"runs"`` keeps together, at most an eighth of a global batch.
        cluster: As for `load_tar`; default what the index was opened with. So are `prefetch_bytes`, `retry` and version
            0.1's names.
        safety: As for `load_tar`: ``max_sample_bytes`` counts here.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the sample is skipped.
        max_errors: How many samples to give up: a count, or a share of all.
        cache: As for `load_tar`: whole shards are kept, and read from there.

    Yields:
        `Sample`, as `group_samples` gives it for the stream, with ``sample.source`` (the number of its index in the
        mixture).

    Order:
        A function of seed, position and, for ``"runs"``, global batch. Global batch k holds the same samples for any
        number of ranks and workers. Ranks take equal slices of it; their batches go round their workers.

    Memory:
        ``prefetch_bytes + max(sample)``; 8 bytes a shard and a selected sample for the index.

        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> AISSampleReader(SampleIndex.build(example_shards())).memory_bound().text
        '32 MiB + sample'

    Raises:
        SampleIndexError: A shard, or a sample in it, is not what was indexed.
        ObjectChangedError: A shard is another one than was indexed.
        TransportError: As for `load_tar`.
        SampleError: As the stream would.
        UsageError: An empty index; several ranks or workers, and nothing says what a batch is.

    Example:
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> [sample["__key__"] for sample in AISSampleReader(index)]
        ['00000', '00001', '00002', '00003', '00004']
        >>> sorted(sample["__key__"] for sample in AISSampleReader(index, shuffle="samples"))
        ['00000', '00001', '00002', '00003', '00004']
    """

    splits = True
    loop = "_items"
    transport: StageTransport

    def __init__(
        self,
        source: Any,
        *,
        shuffle: Shuffle = None,
        seed: int = 0,
        positions: npt.ArrayLike | None = None,
        batch_size: int | None = None,
        tail: Tail = "short",
        empty: Literal["error", "repeat"] = "error",
        epoch_steps: int | None = None,
        run_bytes: int = 8 << 20,
        cluster: Cluster = None,
        safety: Safety | None = None,
        prefetch_bytes: int | None = None,
        retry: Retry | None = None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        cache: ObjectCache | None = None,
        **named: Unpack[ClusterNames],
    ) -> None:
        super().__init__()
        check_number(batch_size, 1, "batch_size", optional=True)
        check_number(run_bytes, 1, "run_bytes")
        if empty not in ("error", "repeat"):
            raise UsageError.at(f"empty={empty!r}", todo='use "error" or "repeat"')
        lister = source if isinstance(source, AISSourceLister) else None
        given = given_options(cluster, **named) or (lister.transport.given if lister is not None else None)
        self.transport = StageTransport(given, prefetch_bytes=prefetch_bytes, retry=retry)
        self._of = source if lister is None else lister.named_sources()
        self._numbers = None if positions is None else np.asarray(positions, dtype=np.int64)
        self._safety = safety or Safety()
        self._cache = cache
        self._policy = ErrorPolicy(on_error, max_errors)
        self._seed = self.run_seed = seed
        self.batch_size = batch_size
        self._empty = empty
        self._how: dict[str, Any] = {
            "shuffle": shuffle,
            "tail": tail,
            "epoch_steps": epoch_steps,
            "run_bytes": run_bytes,
        }
        Sources((1,), **self._how)  # says what cannot be
        self._epoch = 0
        self._was_set = False
        self._sent: int | None = None
        self._groups: dict[Any, tuple[int, int]] = {}
        self._task: Task | None = None
        self._given: Share | None = None
        self._compared = False
        if isinstance(source, (IndexedSamples, Mixture)):
            _ = self.mixture  # says what is wrong with it
            if self._numbers is not None:
                _checked(self._numbers, [len(index) for index in self.mixture.sources])

    # What there is to read

    @cached_property
    def mixture(self) -> Mixture:
        """What is read, as a mixture (of one)."""
        if isinstance(self._of, Mixture):
            return self._of
        if isinstance(self._of, IndexedSamples):
            index = self._of
        else:
            places = self._of if isinstance(self._of, (list, tuple)) else [self._of]
            given = self.transport.given
            index = IndexedSamples.concat([IndexedSamples.open(place, cluster=given) for place in places])
        if not len(index):
            raise UsageError.at(f"{index!r} has no sample", todo="index shards that have some")
        return Mixture({index: 1})

    def sources_with(self, epoch_steps: int | None = None, tail: Tail | None = None) -> Sources:
        """Return what is drawn from, and how, as the plan has it.

        Args:
            epoch_steps: Instead of what the stage was told.
            tail: Likewise.
        """
        mixture = self.mixture
        samples = tuple(len(index) for index in mixture.sources)
        if self._numbers is not None:
            samples = (_checked(self._numbers, samples),)
        runs = self._how["shuffle"] == "runs"
        return Sources(
            samples,
            tuple(index.mean_bytes() for index in mixture.sources) if runs else (),
            mixture.schedule,
            mixture.stop,
            **self._told(epoch_steps, tail),
        )

    def _told(self, epoch_steps: int | None, tail: Tail | None) -> dict[str, Any]:
        told = self._how | ({"epoch_steps": epoch_steps} if epoch_steps is not None else {})
        return told | ({"tail": tail} if tail is not None else {})

    def digests(self) -> list[str]:
        """Return what tells each source from others, as 16 hexadecimal digits."""
        chosen = b"" if self._numbers is None else self._numbers.tobytes()
        return [
            xxhash.xxh64_hexdigest(index.digest.encode() + b"/" + chosen) for index in self.mixture.sources
        ]

    def order(self, epoch_steps: int | None = None, tail: Tail | None = None) -> str:
        """Return in words how the order is made: a state fits only the same."""
        how = {"shuffle": None, "tail": "short", "epoch_steps": None, "run_bytes": 8 << 20}
        shown = [
            f"{name}={value!r}" for name, value in self._told(epoch_steps, tail).items() if value != how[name]
        ]
        return ", ".join([*shown, f"stop={self.mixture.stop!r}"])

    def told(self) -> list[str]:
        """Return what all ranks must have been given alike."""
        mixture = self.mixture
        weights = [f"weights {weights} from position {start}" for start, weights in mixture.schedule]
        sources = [
            f"{len(index)} samples with digest {digest}"
            for index, digest in zip(mixture.sources, self.digests(), strict=True)
        ]
        return [
            *sources,
            *weights,
            self.order(),
            f"seed={self._seed}",
            *([] if self.batch_size is None else [f"batch_size={self.batch_size}"]),
            *([] if self._numbers is None else [f"{len(self._numbers)} positions"]),
        ]

    # Who reads what of it

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: Any = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Take a part of a split over ranks or workers: loaders call it."""
        self._groups[sharding_group] = (num_of_instances, instance_id)

    def set_seed(self, seed: int) -> Self:
        """Take the seed of the next epoch: loaders call it."""
        self._sent = int(seed)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch; its order then follows from it and from `seed` alone."""
        self._epoch, self._was_set = int(epoch), True

    def use_batches_of(self, size: int) -> None:
        self.batch_size = size

    def take_task(self, task: Task) -> None:
        self._task = task

    def take_share(self, share: Share) -> None:
        self._given = share

    def forget_split(self) -> None:
        self._groups.clear()
        self._given = None

    def size_of(self, slot: int) -> int:
        return self._live.size_of(slot) if self._live is not None else 0

    def batches(self) -> int:
        return len(self._next(self._whole_share())[2].slots)

    def __len__(self) -> int:
        """The number of samples that this rank gets in the next epoch, in all its workers."""
        share = self._whole_share()
        return self._next(share)[2].slots.given(share.rank)

    def _whole_share(self) -> Share:
        """Return what this rank reads; where no loader has said, the rank is that of torch.distributed."""
        if self._task is not None or self._given is not None or self._groups:
            return self._share()
        rank, ranks = known_ranks()
        return Share(rank or 0, ranks)

    def _share(self) -> Share:
        """Return which part of the data this instance reads, as loaders have said."""
        if self._task is not None or self._given is not None:
            return self._task.share if self._task is not None else self._given or Share()
        ranks = workers = 1
        rank = worker = 0
        for group, (number, instance) in self._groups.items():
            info = get_worker_info()
            if group == SHARDING_PRIORITIES.MULTIPROCESSING:
                workers, worker = number, instance
            elif group == SHARDING_PRIORITIES.DEFAULT and info is not None:
                # torch's DataLoader numbers all workers, those of one number on all ranks one after the other.
                workers, ranks = info.num_workers, number // info.num_workers
                worker, rank = divmod(instance, ranks)
            else:
                ranks, rank = number, instance
        return Share(rank, ranks, worker, workers)

    def _next(self, share: Share | None = None) -> tuple[Run, Share, Epoch]:
        """Return the run, and what this instance, or another `share`, has of its next epoch."""
        if self._task is not None:
            task = self._task
            return task.run, task.share, task.run.epoch_of(task.step)
        share = share or self._share()
        if self.batch_size is None and share.ranks * share.workers > 1:
            raise UsageError.at(
                f"{share.ranks} ranks and {share.workers} workers share batches, and nothing says what a batch is",
                todo="put .batched(n) below, or pass batch_size=n to .read_samples() if the loader makes the batches",
            )
        sources, epoch = self.sources_with(), self._epoch
        size = self.batch_size
        if size is None:
            size, sources = _NO_BATCH, replace(sources, tail="short")
        self.run_seed = self._seed
        if self._sent is not None and not self._was_set:
            self.run_seed, epoch = mix_seed(self._seed, self._sent), 0
        draws = (0,) * len(sources.samples)
        segment = RunSegment(0, 0, 0, size * share.ranks, sources.weights_at(0), draws)
        run = Run(sources, self.run_seed, [segment], ranks=share.ranks)
        return run, share, run.epoch(epoch)

    # Reading

    def compare_with_listing(self) -> None:
        """Compare shards that nobody has read with one listing, once: loaders call it in one process of all ranks.

        Raises:
            SampleIndexError: One is not what was indexed.
        """
        if not self._compared:
            for index, options in zip(self.mixture.sources, self.stored_options(), strict=True):
                compare_with_listing(index, options)
            self._compared = True

    def _items(self) -> Iterator[PlannedSample]:
        run, share, epoch = self._next()
        if share.rank == 0 and share.worker == 0 and self._task is None:
            self.compare_with_listing()
        task, self._task = self._task, None
        if task is not None:
            self._given = task.share  # of a pass after this one, too
        self.run_seed = run.seed
        if task is None and not (self._sent is not None and not self._was_set):
            self._epoch = epoch.number + 1
        first = epoch.step if task is None else task.step
        steps = range(first + share.worker, epoch.end, share.workers)
        live = self._live = _Reading(run, share.rank, steps, self, None if task is None else task.places)
        self.slot, self.slots_given = -1, 0
        stats, policy = self.stats, self._policy
        try:
            for wanted, found in live.reader.read(live.wanted()):
                self.slot, self.drawn = wanted.slot, (wanted.source, wanted.draw)
                stats.items += 1
                try:
                    if isinstance(found, AISError):
                        raise naming_index(found, self.mixture.sources[wanted.source], wanted.reference)
                    sample = planned_sample(found, live.url_of(wanted), wanted.source, wanted.draw)
                except AISError as error:
                    if isinstance(error, TransportError) and not share.alone:
                        raise  # the others that get these data may have the sample
                    if not policy.goes_on(error, stats, "read_samples"):
                        return
                    continue
                sample.place = pack_place(wanted.reference.number, found.offset)
                self._busy = sample
                yield sample
            self.slots_given = len(steps)
            policy.at_end(stats, "read_samples")
        finally:
            live.reader.close()
            stats.add(live.counts())
            live.over = True

    def looked_up(
        self, run: Run, positions: Integers, places: list[int | None] | None = None
    ) -> list[Wanted]:
        """Return what stands at positions of a run, without reading any of it."""
        return _Reading(run, 0, range(0), self, places).looked_up(positions, np.zeros_like(positions))

    def lost(self, slot: int) -> EmptyBatchError | None:
        if self._empty == "repeat":
            return None
        live = self._live
        positions = (
            live.run.positions(live.steps[slot], live.rank)
            if live is not None
            else np.zeros(0, dtype=np.int64)
        )
        keys = [one.reference.key for one in live.of_step(slot)][:8] if live is not None else []
        return EmptyBatchError.at(
            f"nothing is left of the batch of the positions {positions[:8].tolist()}: the samples {keys} were left out",
            todo="filter when the index is chosen (index.select), or give the batch before again: empty='repeat'",
        )

    # What it says of itself

    def stored_options(self) -> list[StoreOptions]:
        """Return how the shards of each source are reached."""
        return [self.transport.resolve_over(index.options) for index in self.mixture.sources]

    def effect(self) -> Effect:
        return Effect("unknown", mixes=self._how["shuffle"] is not None, holds=True)

    def memory_bound(self) -> MemoryBound:
        """Return what the stage holds at most in one process; see "Memory" above."""
        prefetch, _ = self.transport.sizes(self)
        return MemoryBound(f"{mib(prefetch)} + sample", prefetch)

    def arguments(self) -> str:
        shown = [repr(self._of)] if isinstance(self._of, (str, Mixture)) else []
        if isinstance(self._of, IndexedSamples):
            shown.append(f"{len(self._of)} samples")
        if self._how["shuffle"]:
            shown.append(f"shuffle={self._how['shuffle']!r}")
        if self._policy.on_error != "raise":
            shown.append(repr(self._policy))
        return ", ".join(shown)

    def busy_with(self) -> dict[str, Any]:
        return place_in(self._busy)

    @override
    def counts(self) -> StageStats:
        total = StageStats().add(self.stats)
        if self._live is not None and not self._live.over:
            total.add(self._live.counts())
        return total

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if isinstance(state, dict) and isinstance(self._of, (IndexedSamples, Mixture)):
            state.pop("mixture", None)  # made anew of what is kept anyway
        return state


def _checked(numbers: Integers, samples: Sequence[int]) -> int:
    """Return how many `positions=` there are; raise where they cannot be."""
    if len(samples) > 1:
        raise UsageError.at("positions= of a mixture", todo="select from its indexes: index.select(numbers)")
    if numbers.ndim != 1 or not len(numbers):
        raise UsageError.at(f"positions= of shape {numbers.shape}", todo="pass a list of numbers")
    if int(numbers.min()) < 0 or int(numbers.max()) >= samples[0]:
        raise UsageError.at(
            f"positions= has {numbers.min()} to {numbers.max()}, the index {samples[0]} samples",
            todo="numbers begin at 0",
        )
    return len(numbers)


class _Reading:
    """One iteration."""

    def __init__(
        self, run: Run, rank: int, steps: range, stage: AISSampleReader, places: list[int | None] | None
    ) -> None:
        self._places = places or list(range(len(run.sources.samples)))
        self.run, self.rank, self.steps = run, rank, steps
        self.over = False
        options = stage.stored_options()
        window = max(one.prefetch_bytes for one in options)
        self._sources = stage.mixture.sources
        self._numbers = stage._numbers
        self._options = options
        self._urls: dict[tuple[int, int], str] = {}
        self.reader = IndexedReader(options, window, stage._safety.max_sample_bytes, stage._cache)

    def wanted(self) -> Iterator[list[Wanted]]:
        """Yield what is to be read, some batches at a time: at first few, so that the first sample comes soon."""
        positions: list[Integers] = []
        slots: list[Integers] = []
        count, most = 0, 1
        for slot, step in enumerate(self.steps):
            positions.append(self.run.positions(step, self.rank))
            slots.append(np.full(len(positions[-1]), slot))
            count += len(positions[-1])
            if count >= most or slot + 1 == len(self.steps):
                yield self.looked_up(np.concatenate(positions), np.concatenate(slots))
                count, most, positions, slots = 0, min(_AT_ONCE, 4 * count), [], []

    def size_of(self, slot: int) -> int:
        """Return how many samples are planned for a batch."""
        epoch = self.run.epoch_of(self.steps[slot])
        return epoch.slots.size(self.steps[slot] - epoch.step, self.rank)

    def looked_up(self, positions: Integers, slots: Integers) -> list[Wanted]:
        """Return what stands at positions, for the batches `slots`."""
        draws = self.run.at(positions)
        found: list[Wanted | None] = [None] * len(positions)
        for number in np.unique(draws.source).tolist():
            here = np.flatnonzero(draws.source == number)
            source = self._places[number] or 0
            numbers = draws.index[here] if self._numbers is None else self._numbers[draws.index[here]]
            references = self._sources[source].take(numbers)
            more = zip(
                here.tolist(), references, draws.draw[here].tolist(), slots[here].tolist(), strict=True
            )
            for place, reference, draw, slot in more:
                found[place] = Wanted(reference, source, draw, slot)
        return [one for one in found if one is not None]

    def of_step(self, slot: int) -> Sequence[Wanted]:
        """Return what was planned for a batch."""
        positions = self.run.positions(self.steps[slot], self.rank)
        return self.looked_up(positions, np.full(len(positions), slot))

    def url_of(self, wanted: Wanted) -> str:
        """Return the URL of a sample's shard, as samples of the stream have it."""
        place = wanted.source, wanted.reference.number
        url = self._urls.get(place)
        if url is None:
            if len(self._urls) > 4096:
                self._urls.clear()
            url = url_of_shard(wanted.reference.shard.name, self._options[wanted.source].endpoint)
            self._urls[place] = url
        return url

    def counts(self) -> StageStats:
        """Return what reading has counted."""
        reader = self.reader
        return StageStats(
            bytes=reader.stats.bytes,
            retries=reader.stats.retries,
            wait_s=reader.stats.wait_s,
            refetched=reader.refetched,
            held=reader.held,
            held_max=reader.held_max,
        )
