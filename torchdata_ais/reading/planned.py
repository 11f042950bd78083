"""One iteration of what a plan has laid down for a worker: its batches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from torchdata_ais.errors import AISError, EmptyBatchError
from torchdata_ais.plan import Run
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.reading.by_index import IndexedReader
from torchdata_ais.reading.joined import Whole, read_whole
from torchdata_ais.reading.planned_data import PlannedData
from torchdata_ais.reading.requests import Wanted
from torchdata_ais.reading.samples import naming_index, planned_sample, url_of_shard
from torchdata_ais.samples import PlannedSample, pack_place
from torchdata_ais.store import ObjectCache, StoreOptions

_AT_ONCE = 1024  # positions that are looked up in the index at a time


@dataclass(eq=False, repr=False)
class PlannedReading:
    """Reads the batches of some steps of a run.

    Args:
        run: The run.
        rank: Whose slices are read.
        steps: The steps, one a batch.
        data: What the run is of.
        options: How the shards of each index are reached, of those that are joined, too (`PlannedData.joined`).
        places: Which of the indexes each source of the run is; None: in their order.
        into: How many samples of the first batch were given before.
        only: The positions of the one batch, instead of those of its step.
        max_bytes: Bound on one sample.
        cache: Where whole shards are kept.

    Attributes:
        reader: What makes the requests.
        over: Whether the iteration has ended.
    """

    run: Run
    rank: int
    steps: range
    data: PlannedData
    options: Sequence[StoreOptions]
    places: Sequence[int | None] | None
    into: int = 0
    only: Integers | None = None
    _: KW_ONLY
    max_bytes: int | None
    cache: ObjectCache | None

    def __post_init__(self) -> None:
        self.over = False
        window = max(one.prefetch_bytes for one in self.options)
        self.reader = IndexedReader(self.options, window, self.max_bytes, self.cache)

    def read(self) -> Iterator[Whole]:
        """Yield what was wanted, in its order, and what came."""
        return read_whole(self.reader.read, self._wanted())

    def _wanted(self) -> Iterator[list[Wanted]]:
        """Yield what is to be read, some batches at a time: at first few, so that the first sample comes soon."""
        positions: list[Integers] = []
        slots: list[Integers] = []
        count, most = 0, 1
        for slot, step in enumerate(self.steps):
            positions.append(self._positions(step)[0 if slot else self.into :])
            slots.append(np.full(len(positions[-1]), slot))
            count += len(positions[-1])
            if count >= most or slot + 1 == len(self.steps):
                yield self.data.look_up(
                    self.run, np.concatenate(positions), np.concatenate(slots), self.places
                )
                count, most, positions, slots = 0, min(_AT_ONCE, 4 * count), [], []

    def _positions(self, step: int) -> Integers:
        return self.run.positions(step, self.rank) if self.only is None else self.only

    def sample_of(self, whole: Whole) -> PlannedSample:
        """Return what came as a sample.

        Raises:
            AISError: It is none.
        """
        wanted, found, _ = whole
        reference = wanted.reference
        if isinstance(found, AISError):
            raise naming_index(found, self.data.mixture.sources[wanted.source], reference)
        url = url_of_shard(reference.shard.name, self.options[wanted.source].endpoint)
        sample = planned_sample(found, url, wanted.source, wanted.draw)
        sample.place = pack_place(reference.number, found.offset)
        if wanted.partners:
            self.data.joined.add_partners(sample, whole)
        return sample

    def size_of(self, slot: int) -> int:
        """Return how many samples are planned for a batch."""
        step = self.steps[slot]
        if self.data.groups is not None:
            return self.data.planned_samples(self.run, self._positions(step), self.places)
        if self.only is not None:
            return len(self.only)
        epoch = self.run.epoch_of(step)
        return epoch.slots.size(step - epoch.step, self.rank)

    def lost(self, slot: int) -> EmptyBatchError:
        """Return the error for a batch of which nothing is left."""
        positions = self.run.positions(self.steps[slot], self.rank)[:8]
        wanted = self.data.look_up(self.run, positions, places=self.places)
        return EmptyBatchError.at(
            f"nothing is left of the batch of the positions {positions.tolist()}: the samples "
            f"{[one.reference.key for one in wanted]} were left out",
            todo="filter when the index is chosen (index.select), or give another batch in its place: empty='repeat'",
        )
