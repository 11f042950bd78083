"""Planned reading, and a forecast of its requests."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from torchdata_ais._util.arguments import check_number
from torchdata_ais.errors import AISError, EmptyBatchError, UsageError
from torchdata_ais.index import IndexedSamples, Mixture, Schedule, ShardsFrom, check_no_places, opened_index
from torchdata_ais.index.format import as_numpy
from torchdata_ais.plan import Draws, Epoch, Run, Shuffle, Sources, Tail
from torchdata_ais.plan.packing import Groups
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.reading.by_index import IndexedReader
from torchdata_ais.reading.joined import JoinedIndexes, Whole, read_whole, with_partners
from torchdata_ais.reading.packing import Grouping, digest_of
from torchdata_ais.reading.requests import THREADS, Request, Wanted, chunks_in, requests_for, together
from torchdata_ais.reading.runs import naming_index, planned_sample, url_of_shard
from torchdata_ais.samples import PlannedSample
from torchdata_ais.store import ObjectCache, StoreOptions


@dataclass(eq=False, repr=False)
class PlannedData:
    """Indexes, how samples are drawn from them, and which were drawn.

    `source` is an index, a `Mixture`, or the places of stored indexes, which are opened when they are needed.
    `positions` are the numbers of the samples to read, instead of all. The rest is as for `AISSampleReader`.
    """

    source: Any
    positions: InitVar[npt.ArrayLike | None]
    cluster: StoreOptions | None
    _: KW_ONLY
    shuffle: Shuffle
    tail: Tail
    epoch_steps: int | None
    run_bytes: int
    index_dir: str | os.PathLike[str] | None
    shards_from: ShardsFrom = None

    def __post_init__(self, positions: npt.ArrayLike | None) -> None:
        self._numbers = None if positions is None else _numbers(positions)
        self._grouping: Grouping | None = None
        self._groups: list[Groups] | None = None
        self.check(self.epoch_steps, self.tail)
        if isinstance(self.source, (IndexedSamples, Mixture)):
            check_no_places(self.shards_from)
            self._samples()  # raises if it is invalid

    def check(self, epoch_steps: int | None, tail: Tail | None) -> None:
        """Raise `UsageError` for invalid replacements; nothing is opened."""
        check_number(epoch_steps, 1, "epoch_steps", optional=True)
        Sources((1,), **self._how_with(epoch_steps, tail))

    @cached_property
    def mixture(self) -> Mixture:
        """The data to read, as a mixture (of one)."""
        if isinstance(self.source, Mixture):
            return self.source.kept_in(self.index_dir)
        if isinstance(self.source, IndexedSamples):
            index = self.source
        else:
            places = self.source if isinstance(self.source, (list, tuple)) else [self.source]
            index = IndexedSamples.concat(
                [opened_index(place, self.shards_from, self.cluster) for place in places]
            )
        if not len(index):
            raise UsageError.at(f"{index!r} has no sample", todo="index shards that have some")
        return Mixture({index: 1}).kept_in(self.index_dir)

    @cached_property
    def joined(self) -> JoinedIndexes:
        """The indexes, and those that are joined to them."""
        return JoinedIndexes(self.mixture.sources)

    def group_by(self, grouping: Grouping | None) -> None:
        """Draw groups of samples instead of samples; None: samples again."""
        if grouping is None or self._grouping is None or grouping.words != self._grouping.words:
            self._groups = None
        self._grouping = grouping

    @property
    def groups(self) -> list[Groups] | None:
        """The groups that are drawn, of each source; None: samples are drawn."""
        if self._grouping is not None and self._groups is None:
            self._groups = [
                self._grouping.groups(number, index, self._numbers, shuffle=self.shuffle == "samples")
                for number, index in enumerate(self.mixture.sources)
            ]
        return self._groups

    @cached_property
    def shards(self) -> int:
        """Number of shards of the indexes."""
        return sum(part.head.shards for index in self.mixture.sources for part in index.parts.stored)

    def sources_with(
        self, epoch_steps: int | None = None, tail: Tail | None = None, schedule: Schedule | None = None
    ) -> Sources:
        """Return the sources for the plan, with these replacements."""
        mixture = self.mixture
        found = Sources(
            self._samples(),
            self._mean_bytes() if self.shuffle == "runs" else (),
            mixture.weights,
            mixture.stop,
            **self._how_with(epoch_steps, tail),
        )
        if not schedule:
            return found
        schedule.check(len(found.samples), found.epoch_steps, found.stop)
        return replace(found, changes=schedule.changes(found.weights), excluded=self.excluded(schedule))

    def _mean_bytes(self) -> tuple[float, ...]:
        means = tuple(index.mean_bytes() for index in self.mixture.sources)
        groups = self.groups
        if groups is None:
            return means
        return tuple(mean * len(one.order) / len(one) for mean, one in zip(means, groups, strict=True))

    def _how_with(self, epoch_steps: int | None, tail: Tail | None) -> dict[str, Any]:
        return {
            "shuffle": self.shuffle,
            "tail": self.tail if tail is None else tail,
            "epoch_steps": self.epoch_steps if epoch_steps is None else epoch_steps,
            "run_bytes": self.run_bytes,
        }

    def _samples(self) -> tuple[int, ...]:
        """Return how many samples each source has; check ``positions=``."""
        samples = tuple(len(index) for index in self.mixture.sources)
        if self.groups is not None:
            return tuple(map(len, self.groups))
        numbers = self._numbers
        if numbers is None:
            return samples
        if len(samples) > 1:
            raise UsageError.at(
                "positions= of a mixture", todo="select from its indexes: index.select(numbers)"
            )
        if int(numbers.min()) < 0 or int(numbers.max()) >= samples[0]:
            raise UsageError.at(
                f"positions= has {numbers.min()} to {numbers.max()}, the index {samples[0]} samples",
                todo="numbers begin at 0",
            )
        return (len(numbers),)

    def excluded(self, schedule: Schedule) -> tuple[tuple[int, Integers], ...]:
        """Return the numbers of samples that a schedule leaves out, by source."""
        if schedule.exclude and self.groups is not None:
            raise UsageError.at(
                "exclude of a schedule with packed samples",
                todo="leave the samples out of the index: index.select(...)",
            )
        return tuple(
            (source, _numbers_of(self.mixture.sources[source], source, given))
            for source, given in schedule.exclude
        )

    def digests(self) -> list[str]:
        """Return the identity of each source, as 16 hexadecimal digits."""
        chosen = b"" if self._numbers is None else self._numbers.tobytes()
        own = [
            xxhash.xxh64_hexdigest(index.digest.encode() + b"/" + chosen) for index in self.mixture.sources
        ]
        if self.groups is None:
            return own
        grouped = zip(own, map(digest_of, self.groups), strict=True)
        return [xxhash.xxh64_hexdigest(f"{one}/{groups}".encode()) for one, groups in grouped]

    def weights_digest(self) -> str:
        """Return the identity of the weights, as 16 hexadecimal digits."""
        said = sorted(zip(self.digests(), self.mixture.weights, strict=True))
        return xxhash.xxh64_hexdigest(repr(said).encode())

    def order(self, epoch_steps: int | None = None, tail: Tail | None = None) -> str:
        """Return in words how the order is made: a state fits only the same."""
        usual = Sources((1,))
        how = self._how_with(epoch_steps, tail)
        shown = [f"{name}={value!r}" for name, value in how.items() if value != getattr(usual, name)]
        grouped = [] if self._grouping is None else [self._grouping.words]
        return ", ".join([*shown, f"stop={self.mixture.stop!r}", *grouped])

    def told(self) -> list[str]:
        """Return the arguments that must be equal on all ranks."""
        mixture = self.mixture
        sources = [
            f"{len(index)} samples with digest {digest}"
            for index, digest in zip(mixture.sources, self.digests(), strict=True)
        ]
        weights = [f"weights {mixture.weights}"]
        chosen = [] if self._numbers is None else [f"{len(self._numbers)} positions"]
        return [*sources, *weights, self.order(), *chosen]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if isinstance(self.source, (IndexedSamples, Mixture)):
            state.pop("mixture", None)  # made again from the other fields
            state.pop("joined", None)
        return state

    def group_of(self, source: int, draw: int) -> int:
        """Return the number of the drawn group that a draw of a sample belongs to."""
        return draw if self.groups is None else draw // self.groups[source].most

    def planned_samples(self, run: Run, positions: Integers, places: Sequence[int | None] | None) -> int:
        """Return how many samples are at positions of a run."""
        groups = self.groups
        if groups is None:
            if not run.sources.excluded:
                return len(positions)
            draws = _drawn(run, positions, places)
            left = (
                _left(run, source, np.asarray(self._numbers_of(draws.index[draws.source == source])))
                for source in np.unique(draws.source).tolist()
            )
            return sum(int(kept.sum()) for kept in left)
        draws = _drawn(run, positions, places)
        pairs = zip(draws.source.tolist(), draws.index.tolist(), strict=True)
        return sum(int(groups[source].sizes(number)) for source, number in pairs)

    def look_up(
        self,
        run: Run,
        positions: Integers,
        slots: Integers | None = None,
        places: Sequence[int | None] | None = None,
    ) -> list[Wanted]:
        """Return the samples at positions of a run, without reading them.

        `slots` are the batches they are for, `places` the index of each source of the run.
        """
        draws = _drawn(run, positions, places)
        slots = np.zeros_like(positions) if slots is None else slots
        if self.groups is not None:
            return self._look_up_groups(self.groups, draws, slots)
        found: list[Wanted | None] = [None] * len(positions)
        for source in np.unique(draws.source).tolist():
            here = np.flatnonzero(draws.source == source)
            numbers = self._numbers_of(draws.index[here])
            if run.sources.excluded:
                kept = _left(run, source, np.asarray(numbers))
                here, numbers = here[kept], np.asarray(numbers)[kept].tolist()
            wanted = self.joined.wanted(source, numbers, draws.draw[here].tolist(), slots[here].tolist())
            for place, one in zip(here.tolist(), wanted, strict=True):
                found[place] = one
        return [one for one in found if one is not None]

    def _look_up_groups(self, groups: Sequence[Groups], draws: Draws, slots: Integers) -> list[Wanted]:
        """Return the samples of the drawn groups, whose draws are consecutive."""
        found: list[Wanted] = []
        columns = (draws.source, draws.index, draws.draw, slots)
        for source, group, draw, slot in zip(*(column.tolist() for column in columns), strict=True):
            numbers = self._numbers_of(groups[source].samples(group))
            count, first = len(numbers), draw * groups[source].most
            found += self.joined.wanted(source, numbers, range(first, first + count), [slot] * count)
        return found

    def _numbers_of(self, chosen: Integers) -> list[int]:
        """Return the numbers in the index of some of the samples to read."""
        numbers: list[int] = (chosen if self._numbers is None else self._numbers[chosen]).tolist()
        return numbers


def _numbers_of(index: IndexedSamples, source: int, given: Sequence[str | int]) -> Integers:
    """Return the numbers of samples that are given by key or number."""
    numbers = [one for one in given if not isinstance(one, str)]
    keys = dict.fromkeys(one for one in given if isinstance(one, str))
    missing: list[Any] = [one for one in numbers if one >= len(index)]
    found, begin = [np.array(numbers, dtype=np.int64)], 0
    if keys and not missing:
        known, wanted = set(), pa.array(list(keys))
        for chunk in index.keys.chunks():
            here = pc.indices_nonzero(pc.is_in(chunk, value_set=wanted))
            known.update(chunk.take(here).to_pylist())
            found.append(as_numpy(here).astype(np.int64) + begin)
            begin += len(chunk)
        missing = [key for key in keys if key not in known]
    if missing:
        raise UsageError.at(
            f"exclude of source {source} names a sample {missing[0]!r:.60}, which the index does not have",
            todo="pass keys as in index.keys, or numbers below len(index)",
        )
    return np.unique(np.concatenate(found))


def _numbers(positions: npt.ArrayLike) -> Integers:
    """Return `positions=` as numbers; other values are not rounded to one."""
    numbers = np.asarray(positions)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or not len(numbers):
        raise UsageError.at(
            f"positions= of shape {numbers.shape} and type {numbers.dtype}",
            todo="pass a list of whole numbers, at least one",
        )
    return numbers.astype(np.int64)


def _drawn(run: Run, positions: Integers, places: Sequence[int | None] | None) -> Draws:
    """Return the draws at positions, with the number of the index as source."""
    draws = run.at(positions)
    if places is None:
        return draws
    indexes = np.array([place or 0 for place in places], dtype=np.int64)  # removed sources are not drawn
    return replace(draws, source=indexes[draws.source])


def _left(run: Run, source: int, numbers: Integers) -> npt.NDArray[np.bool_]:
    """Return for numbers of samples of an index whether they are not excluded."""
    kept = np.ones(len(numbers), dtype=np.bool_)
    for index, excluded in run.sources.excluded:
        if index == source:
            kept &= ~np.isin(numbers, excluded)
    return kept


_LEAST_AT_ONCE, _MOST_AT_ONCE = 1 << 10, 1 << 14  # positions that are looked up in the index at a time


@dataclass(eq=False, repr=False)
class PlannedReading:
    """Reader of the batches of some steps of a run, of a rank's slices.

    Attributes:
        options: Transport settings of each index, joined ones included (`PlannedData.joined`).
        places: Which of the indexes each source of the run is; None: in their order.
        into: How many samples of the first batch were returned before.
        only: The positions of the one batch, instead of those of its step.
        over: Whether the iteration has ended.
    """

    run: Run
    rank: int
    steps: Sequence[int]
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
        """Yield the requests in order, with their results."""
        return read_whole(self.reader.read, self._wanted())

    def _wanted(self) -> Iterator[list[Wanted]]:
        """Yield requests of some batches; few at first, for an early first sample."""
        positions: list[Integers] = []
        slots: list[Integers] = []
        count, most = 0, 1
        # The rows of a shard are read once for all samples of it that are looked up together; groups alone.
        shards = 0 if self.data.groups is not None else self.data.shards
        at_once = min(max(_LEAST_AT_ONCE, 8 * shards), _MOST_AT_ONCE)
        for slot, step in enumerate(self.steps):
            positions.append(self._positions(step)[0 if slot else self.into :])
            slots.append(np.full(len(positions[-1]), slot))
            count += len(positions[-1])
            if count >= most or slot + 1 == len(self.steps):
                yield self.data.look_up(
                    self.run, np.concatenate(positions), np.concatenate(slots), self.places
                )
                count, most, positions, slots = 0, min(at_once, 4 * count), [], []

    def _positions(self, step: int) -> Integers:
        return self.run.positions(step, self.rank) if self.only is None else self.only

    def sample_of(self, whole: Whole) -> PlannedSample:
        """Return a result as a sample, or raise its error."""
        wanted, found, _ = whole
        reference = wanted.reference
        if isinstance(found, AISError):
            raise naming_index(found, self.data.mixture.sources[wanted.source], reference)
        url = url_of_shard(reference.shard.name, self.options[wanted.source].endpoint)
        found.shard = reference.number
        sample = planned_sample(found, url, wanted.source, wanted.draw)
        if wanted.partners:
            self.data.joined.add_partners(sample, whole)
        self.data.mixture.sources[wanted.source].relabel(sample, reference)
        return sample

    def size_of(self, slot: int) -> int:
        """Return how many samples are planned for a batch."""
        step = self.steps[slot]
        if self.data.groups is not None or self.run.sources.excluded:
            return self.data.planned_samples(self.run, self._positions(step), self.places)
        if self.only is not None:
            return len(self.only)
        return self.run.size(step, self.rank)

    def lost(self, slot: int) -> EmptyBatchError:
        """Return the error for a batch of which nothing is left."""
        positions = self.run.positions(self.steps[slot], self.rank)[:8]
        wanted = self.data.look_up(self.run, positions, places=self.places)
        return EmptyBatchError.at(
            f"nothing is left of the batch of the positions {positions.tolist()}: the samples "
            f"{[one.reference.key for one in wanted]} were left out",
            todo="filter when the index is chosen (index.select), or give another batch in its place: empty='repeat'",
        )


_MOST_SAMPLES = 1 << 16  # that are looked up; a larger epoch is estimated from those of some workers
_WORKERS = 8  # of these

LookUp = Callable[[Integers], Sequence[Wanted]]


class Traffic(NamedTuple):
    """Requests of the workers of all ranks in an epoch.

    Attributes:
        ranges: Ranges of shards, `bytes` together.
        requests: In so many requests, several ranges in one where the cluster takes that.
        connections: How many of them a worker has under way at the same time, at most.
        exact: Whether all of it was counted, or some workers' part, and the rest estimated from it.
    """

    ranges: int
    requests: int
    bytes: int
    connections: int
    exact: bool


def traffic_of(
    run: Run,
    epoch: Epoch,
    workers: int,
    look_up: LookUp,
    window_bytes: int,
    group_of: Callable[[Request], Hashable | None],
) -> Traffic:
    """Return the expected requests of the workers of all ranks.

    A worker requests `window_bytes` ahead; for `group_of` see `together`.
    """
    instances, planned = run.ranks * workers, run.length(epoch)
    exact = planned <= _MOST_SAMPLES
    chosen = range(instances) if exact else range(0, instances, -(-instances // _WORKERS))
    ranges = requests = size = looked = connections = 0
    for instance in chosen:
        rank, worker = instance // workers, instance % workers
        steps = run.given_steps(epoch.step, epoch.end)[worker::workers]
        most = len(steps) if exact else 1 + _MOST_SAMPLES // _WORKERS * run.ranks * epoch.steps // planned
        looked += sum(len(run.positions(step, rank)) for step in steps[:most])
        ahead: deque[tuple[int, int]] = deque()
        for chunk in chunks_in(with_partners(_looked_up(run, rank, steps[:most], look_up)), window_bytes):
            asked = requests_for(chunk)
            ranges += len(asked)
            size += sum(request.length for request in asked)
            sent = sum(1 for _ in together(asked, group_of))
            requests += sent
            ahead.append((sum(request.length for request in asked), sent))
            while len(ahead) > 1 and sum(held for held, _ in ahead) > window_bytes:
                ahead.popleft()
            connections = max(connections, sum(sent for _, sent in ahead))
    times = 1.0 if exact else (planned + run.repeated(epoch)) / looked
    return Traffic(
        round(ranges * times), round(requests * times), round(size * times), min(connections, THREADS), exact
    )


def _looked_up(run: Run, rank: int, steps: Sequence[int], look_up: LookUp) -> Iterator[Sequence[Wanted]]:
    """Yield the requests of a worker, some steps at a time."""
    for begin in range(0, len(steps), 64):
        yield look_up(np.concatenate([run.positions(step, rank) for step in steps[begin : begin + 64]]))
