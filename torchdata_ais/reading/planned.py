"""One iteration of what a plan has laid down for a worker: its batches, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        max_bytes: Bound on one sample.
        cache: Where whole shards are kept.

    Attributes:
        reader: What makes the requests.
        over: Whether the iteration has ended.
    """

    def __init__(
        self,
        run: Run,
        rank: int,
        steps: range,
        data: PlannedData,
        options: Sequence[StoreOptions],
        places: Sequence[int | None] | None,
        into: int = 0,
        *,
        max_bytes: int | None,
        cache: ObjectCache | None,
    ) -> None:
        self._run, self._rank, self._steps = run, rank, steps
        self._data, self._places, self._into = data, places, into
        self._options = options
        self._urls: dict[tuple[int, int], str] = {}
        self.over = False
        self.reader = IndexedReader(options, max(one.prefetch_bytes for one in options), max_bytes, cache)

    def read(self) -> Iterator[Whole]:
        """Yield what was wanted, in its order, and what came."""
        return read_whole(self.reader.read, self._wanted())

    def _wanted(self) -> Iterator[list[Wanted]]:
        """Yield what is to be read, some batches at a time: at first few, so that the first sample comes soon."""
        positions: list[Integers] = []
        slots: list[Integers] = []
        count, most = 0, 1
        for slot, step in enumerate(self._steps):
            positions.append(self._run.positions(step, self._rank)[0 if slot else self._into :])
            slots.append(np.full(len(positions[-1]), slot))
            count += len(positions[-1])
            if count >= most or slot + 1 == len(self._steps):
                yield self._data.look_up(
                    self._run, np.concatenate(positions), np.concatenate(slots), self._places
                )
                count, most, positions, slots = 0, min(_AT_ONCE, 4 * count), [], []

    def sample_of(self, whole: Whole) -> PlannedSample:
        """Return what came as a sample.

        Raises:
            AISError: It is none.
        """
        wanted, found, _ = whole
        reference = wanted.reference
        if isinstance(found, AISError):
            raise naming_index(found, self._data.mixture.sources[wanted.source], reference)
        sample = planned_sample(found, self._url_of(wanted), wanted.source, wanted.draw)
        sample.place = pack_place(reference.number, found.offset)
        if wanted.partners:
            self._data.joined.add_partners(sample, whole)
        return sample

    def _url_of(self, wanted: Wanted) -> str:
        """Return the URL of a sample's shard, as samples of the stream have it."""
        place = wanted.source, wanted.reference.number
        url = self._urls.get(place)
        if url is None:
            if len(self._urls) > 4096:
                self._urls.clear()
            url = url_of_shard(wanted.reference.shard.name, self._options[wanted.source].endpoint)
            self._urls[place] = url
        return url

    def size_of(self, slot: int) -> int:
        """Return how many samples are planned for a batch."""
        step = self._steps[slot]
        if self._data.groups is not None:
            return self._data.planned_samples(self._run, self._run.positions(step, self._rank), self._places)
        epoch = self._run.epoch_of(step)
        return epoch.slots.size(step - epoch.step, self._rank)

    def lost(self, slot: int) -> EmptyBatchError:
        """Return the error for a batch of which nothing is left."""
        positions = self._run.positions(self._steps[slot], self._rank)[:8]
        wanted = self._data.look_up(self._run, positions, places=self._places)
        return EmptyBatchError.at(
            f"nothing is left of the batch of the positions {positions.tolist()}: the samples "
            f"{[one.reference.key for one in wanted]} were left out",
            todo="filter when the index is chosen (index.select), or give the batch before again: empty='repeat'",
        )
