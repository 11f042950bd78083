"""``.read_samples()``: samples by index, in any order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import numpy.typing as npt

from torchdata_ais._util.arguments import check_number, check_seed
from torchdata_ais.errors import AISError, TransportError
from torchdata_ais.index import IndexedSamples, Mixture, ShardsFrom
from torchdata_ais.index.listing_check import compare_with_listing
from torchdata_ais.pipes.base.contract import Effect, MemoryBound, mib
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy, OnError
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import NextEpoch
from torchdata_ais.pipes.base.sources import StageTransport
from torchdata_ais.pipes.list_ais import AISSourceLister
from torchdata_ais.pipes.planned.stage import PlannedStage
from torchdata_ais.plan import Shuffle, Tail
from torchdata_ais.reading.by_index import IndexedReader
from torchdata_ais.reading.open_shard import Safety
from torchdata_ais.reading.planned import PlannedData, PlannedReading
from torchdata_ais.samples import PlannedSample
from torchdata_ais.store import Cluster, ObjectCache, Retry, StoreOptions, given_options


@stage("read_samples")
class AISSampleReader(PlannedStage, Pipe[PlannedSample]):
    """Read samples by index (``.read_samples()``), in any order of them.

    The order is the same for any number of ranks and workers.

    Args:
        source: A `SampleIndex`; a `Mixture` of several; the place of a stored index, as `SampleIndex.open` takes it; or
            a lister, whose shards have their index next to them (``AISSourceLister(...).read_samples()``).
        shuffle: ``"samples"``: all samples, in an order that is another in each epoch; ``"runs"``: adjacent samples
            stay together, so that fewer requests are made; None: the stored order.
        seed: Seed of the order. A loader's counts instead, where it has one.
        positions: The numbers of the samples to read, in this order, instead of all (they may repeat).
        batch_size: How many samples of a rank make a batch, for loaders that batch by themselves. Below this stage
            ``.batched(n)`` says so.
        tail: What becomes of the remainder of an epoch that makes no whole global batch: ``"short"`` deals it evenly
            over the ranks, ``"drop"``, or ``"pad"`` with the start of the epoch.
        empty: What becomes of a batch of which filters and error policies left nothing: ``"error"``, or ``"repeat"``:
            what is left of the slices of the other ranks in that step; else the nearest batch of the epoch before it,
            or after it, of which something is left. It is read again, so it is the same after a resume.
        epoch_steps: Global batches of an epoch; the next continues in the data where it stopped. None: all samples
            (or what the `Mixture` says).
        index_dir: A folder of this node that an index in a bucket is copied to, once for all processes
            (`SampleIndex.kept_in`). Without it each process copies rows that it requests again and again to
            temporary files, up to 1 GiB.
        shards_from: Of a place or a lister: further places whose shards the index may name, see `SampleIndex.open`.
        run_bytes: Bytes of adjacent samples that ``"runs"`` keeps together, at most an eighth of a global batch.
        cluster: As for `load_tar`; default what the index was opened with. So are `prefetch_bytes` and `retry`.
        safety: As for `load_tar`: ``max_sample_bytes`` counts here.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the sample is skipped.
        max_errors: How many samples to give up: a count, or a share of all.
        cache: As for `load_tar`: whole shards are kept, and read from there.

    Yields:
        `Sample`, as `group_samples` gives it for the stream, with ``sample.source`` (the number of its index in the
        mixture). Of an index that is joined (`SampleIndex.join`), the fields of the others come with it.

    Order:
        A function of seed, position and, for ``"runs"``, the first global batch. Global batch k holds the same samples
        for any number of ranks and workers. Ranks take equal slices of it; their batches go round their workers.

    Memory:
        ``prefetch_bytes + max(sample)``; for the index 9 bytes a shard, 8 a selected sample, 20 MiB of its rows and 500
        bytes for each of about 16,384 samples that are looked up; 512 KiB for each of up to 16 requests under way.

        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> AISSampleReader(SampleIndex.build(example_shards())).memory_bound().text
        '32 MiB + sample'

    Raises:
        SampleIndexError: A shard, or a sample in it, is not what was indexed.
        ObjectChangedError: A shard is another one than was indexed.
        TransportError: As for `load_tar`.
        SampleError: As the stream would.
        UsageError: An empty index; a global batch larger than an epoch; several ranks or workers, and nothing says
            what a batch is.

    Example:
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> [sample["__key__"] for sample in AISSampleReader(index)]
        ['00000', '00001', '00002', '00003', '00004']
        >>> sorted(sample["__key__"] for sample in AISSampleReader(index, shuffle="samples"))
        ['00000', '00001', '00002', '00003', '00004']
    """

    transport: StageTransport

    def __init__(
        self,
        source: object,
        *,
        shuffle: Shuffle = None,
        seed: int = 0,
        positions: npt.ArrayLike | None = None,
        batch_size: int | None = None,
        tail: Tail = "short",
        empty: Literal["error", "repeat"] = "error",
        epoch_steps: int | None = None,
        run_bytes: int = 8 << 20,
        index_dir: str | os.PathLike[str] | None = None,
        shards_from: ShardsFrom = None,
        cluster: Cluster = None,
        safety: Safety | None = None,
        prefetch_bytes: int | None = None,
        retry: Retry | None = None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        cache: ObjectCache | None = None,
    ) -> None:
        super().__init__()
        check_number(batch_size, 1, "batch_size", optional=True)
        check_number(run_bytes, 1, "run_bytes")
        check_seed(seed)
        given = given_options(cluster)
        if isinstance(source, AISSourceLister):
            given = given or source.transport.given
            source = source.named_sources()
        self.transport = StageTransport(given, prefetch_bytes=prefetch_bytes, retry=retry)
        self.data = PlannedData(
            source, positions, given,
            shuffle=shuffle, tail=tail, epoch_steps=epoch_steps, run_bytes=run_bytes, index_dir=index_dir,
            shards_from=shards_from,
        )  # fmt: skip
        self._safety = safety or Safety()
        self._cache = cache
        self._policy = ErrorPolicy(on_error, max_errors)
        self._seed = self.run_seed = seed
        self.batch_size = batch_size
        self._empty = empty
        self._compared = False
        self.next_epoch = NextEpoch()

    @property
    def gives_all(self) -> bool:
        """True if an unreadable sample ends the iteration: none is left out."""
        return self._policy.on_error == "raise"

    def told(self) -> list[str]:
        """Return the arguments that must be equal in all ranks."""
        size = [] if self.batch_size is None else [f"batch_size={self.batch_size}"]
        return [*self.data.told(), f"seed={self._seed}", *size]

    # Reading

    def compare_with_listing(self) -> None:
        """Compare unread shards with one listing, once.

        Loaders call it in one process of all ranks.

        Raises:
            SampleIndexError: One is not what was indexed.
        """
        if not self._compared:
            for index, options in zip(self.data.joined.all, self.stored_options(), strict=True):
                compare_with_listing(index, options)
            self._compared = True

    def _items(self) -> Iterator[PlannedSample]:
        run, share, epoch = self._next()
        if share.rank == 0 and share.worker == 0 and self._task is None:
            self.compare_with_listing()
        task = self._begin(run, share, epoch)
        steps = run.given_steps(task.step, epoch.end)[share.worker :: share.workers][task.given :]
        if task.only is not None:
            steps = [task.step]
        live = self._live = PlannedReading(
            run,
            share.rank,
            steps,
            self.data,
            self.stored_options(),
            task.places,
            task.into,
            task.only,
            max_bytes=self._safety.max_sample_bytes,
            cache=self._cache,
        )
        stats, policy = self.stats, self._policy
        try:
            for whole in live.read():
                wanted = whole.wanted
                self.slot, self.drawn = wanted.slot, (wanted.source, wanted.draw)
                stats.items += 1
                try:
                    sample = live.sample_of(whole)
                except AISError as error:
                    if isinstance(error, TransportError) and not share.alone:
                        raise  # the others that get these data may have the sample
                    if not policy.goes_on(error, stats, "read_samples"):
                        return
                    continue
                self._busy = sample
                yield sample
            self.slots_given = len(steps)
            policy.at_end(stats, "read_samples")
        finally:
            live.reader.close()
            stats.add(_counts(live.reader))
            live.over = True

    # What it says of itself

    def stored_options(self) -> list[StoreOptions]:
        """Return the access settings of the shards of each source.

        Those of joined sources are included.
        """
        return [self.transport.resolve_over(index.options) for index in self.data.joined.all]

    def effect(self) -> Effect:
        return Effect("unknown", mixes=self.data.shuffle is not None, holds=True)

    def memory_bound(self) -> MemoryBound:
        prefetch, _ = self.transport.sizes(self)
        return MemoryBound(f"{mib(prefetch)} + sample", prefetch)

    def arguments(self) -> str:
        source = self.data.source
        shown = [repr(source)] if isinstance(source, (str, Mixture)) else []
        if isinstance(source, IndexedSamples):
            shown.append(f"{len(source)} samples")
        if self.data.shuffle:
            shown.append(f"shuffle={self.data.shuffle!r}")
        return ", ".join(shown + self._policy.shown())

    def counts(self) -> StageStats:
        total = StageStats().add(self.stats)
        if self._live is not None and not self._live.over:
            total.add(_counts(self._live.reader))
        return total


def _counts(reader: IndexedReader) -> StageStats:
    """Return what reading has counted."""
    return StageStats(
        bytes=reader.stats.bytes,
        retries=reader.stats.retries,
        wait_s=reader.stats.wait_s,
        refetched=reader.refetched,
        held=reader.held,
        held_max=reader.held_max,
    )
