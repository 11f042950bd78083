"""Concatenation of stored indexes with a selection of samples."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.ma  # np.unique needs it: 9 ms that the first batch of each worker would wait for
import pyarrow as pa
import xxhash

from torchdata_ais.index.rows import IndexedShard, SampleReference, entry_of, references
from torchdata_ais.index.stored import ShardRow, StoredIndex
from torchdata_ais.plan.permutation import Integers

Table = tuple[StoredIndex, int, Integers | None, pa.RecordBatch]
"""A shard of an index by its number, selected rows or None for all, and all rows of its samples."""


class Parts:
    """Stored indexes, numbered consecutively, and their selected samples.

    Attributes:
        stored: The indexes.
        samples: How many samples the indexes have together.
        positions: Which of them are selected, ascending; None for all.
    """

    def __init__(self, stored: Sequence[StoredIndex], positions: Integers | None = None) -> None:
        self.stored = list(stored)
        self._ends = np.cumsum([part.head.samples for part in self.stored], dtype=np.int64)
        self.samples = int(self._ends[-1]) if len(self._ends) else 0
        everything = positions is not None and len(positions) == self.samples  # each comes once
        self.positions = None if everything else positions

    @classmethod
    def concat(cls, several: Sequence[Parts]) -> Parts:
        """Return the concatenated selections of several."""
        positions = None
        if any(parts.positions is not None for parts in several):
            begins = np.cumsum([0, *(parts.samples for parts in several)])
            positions = np.concatenate(
                [parts.all_positions() + begin for parts, begin in zip(several, begins, strict=False)]
            )
        return cls([part for parts in several for part in parts.stored], positions)

    def __len__(self) -> int:
        return self.samples if self.positions is None else len(self.positions)

    def all_positions(self) -> Integers:
        """Return the position of each chosen sample among all."""
        return np.arange(self.samples, dtype=np.int64) if self.positions is None else self.positions

    def at(self, numbers: Integers) -> Integers:
        """Return the positions of samples with these numbers in the selection."""
        return numbers if self.positions is None else self.positions[numbers]

    def chosen(self, numbers: Integers) -> Parts:
        """Return some of the chosen samples, by their numbers among those."""
        return Parts(self.stored, self.at(numbers))

    @property
    def digest(self) -> str:
        """Digest of the contents of the indexes, and of the selection."""
        digests = [part.head.digest for part in self.stored]
        if len(digests) == 1 and self.positions is None:
            return digests[0]
        chosen = "" if self.positions is None else xxhash.xxh64_hexdigest(self.positions.tobytes())
        return xxhash.xxh64_hexdigest(msgspec.msgpack.encode([digests, chosen]))

    def shards(self) -> Iterator[ShardRow]:
        """Return the rows of all shards, in their order."""
        return itertools.chain.from_iterable(part.shards() for part in self.stored)

    def of_shard(self, number: int) -> tuple[int, int, int]:
        """Return a shard's index by number, its number there, and first sample."""
        left, begin = number, 0
        for place, part in enumerate(self.stored):
            if left < part.head.shards:
                return place, left, begin + (int(part.ends[left - 1]) if left else 0)
            left, begin = left - part.head.shards, begin + part.head.samples
        raise IndexError(f"shard {number}")

    def of_shards(self, names: Iterable[str]) -> tuple[Parts, list[str]]:
        """Return the samples of some shards of a whole index, and missing names."""
        missing = {_absolute(name): name for name in names}
        wanted = set(missing)
        chosen, end = [], 0
        for row in self.shards():
            begin, end = end, end + row.samples
            name = _absolute(row.name)
            if name in wanted:
                missing.pop(name, None)
                chosen.append(np.arange(begin, end, dtype=np.int64))
        positions = np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)
        return Parts(self.stored, positions), list(missing.values())

    def take(self, numbers: Integers) -> list[SampleReference]:
        """Return some selected samples; the table of each shard is read once."""
        positions = self.at(numbers)
        found: list[SampleReference | None] = [None] * len(positions)
        for stored, first, part_places, part_positions in self._by_part(positions):
            shards, rows = stored.locate(part_positions)
            order = np.argsort(shards, kind="stable")
            numbers, begins = np.unique(shards[order], return_index=True)
            batches = stored.samples_of(numbers.tolist())
            split = np.split(order, begins[1:])
            for shard, here, batch in zip(numbers.tolist(), split, batches, strict=True):
                found_here = references(stored, shard, batch, rows[here], first + shard)
                for place, reference in zip(part_places[here].tolist(), found_here, strict=True):
                    found[place] = reference
        return [reference for reference in found if reference is not None]

    def _by_part(self, positions: Integers) -> Iterator[tuple[StoredIndex, int, Integers, Integers]]:
        """Yield each part with its first shard, and places and positions in it."""
        parts = np.searchsorted(self._ends, positions, side="right")
        for number in np.unique(parts).tolist():
            places = np.flatnonzero(parts == number)
            begin = int(self._ends[number]) - self.stored[number].head.samples
            first = sum(part.head.shards for part in self.stored[:number])
            yield self.stored[number], first, places, positions[places] - begin

    def selected(self) -> Iterator[tuple[StoredIndex, int, Integers | None]]:
        """Yield the shards with selected samples, and their rows; None for all."""
        positions, end = self.positions, 0
        for part in self.stored:
            begin, end = end, end + part.head.samples
            if positions is None:
                for number in np.flatnonzero(np.diff(part.ends, prepend=0)).tolist():
                    yield part, number, None
                continue
            low, high = np.searchsorted(positions, [begin, end])
            shards, rows = part.locate(positions[low:high] - begin)
            numbers, firsts = np.unique(shards, return_index=True)
            for number, chosen in zip(numbers.tolist(), np.split(rows, firsts[1:]), strict=False):
                yield part, number, chosen

    def tables(self) -> Iterator[Table]:
        """Yield `selected`, with the rows of all samples of each shard."""
        return _with_rows(self.selected())

    def entries(self) -> Iterator[IndexedShard]:
        """Yield each shard as it was built; of a selection those with samples."""
        if self.positions is not None:
            return itertools.starmap(entry_of, self.tables())
        every = ((part, number, None) for part in self.stored for number in range(part.head.shards))
        return itertools.starmap(entry_of, _with_rows(every))


def _with_rows(shards: Iterable[tuple[StoredIndex, int, Integers | None]]) -> Iterator[Table]:
    for stored, group in itertools.groupby(shards, key=operator.itemgetter(0)):
        these, ahead = itertools.tee(group)
        batches = stored.samples_of(number for _, number, _ in ahead)
        for (_, number, rows), batch in zip(these, batches, strict=True):
            yield stored, number, rows, batch


def shared_samples(several: Sequence[Parts]) -> tuple[int, int, int] | None:
    """Return two parts with common samples and their number, or None.

    For stored indexes with different digests that is unknown: they may have been made of the same shards.
    """
    seen: dict[str, list[tuple[int, Integers | None, int]]] = {}
    for number, parts in enumerate(several):
        end = 0
        for part in parts.stored:
            begin, end = end, end + part.head.samples
            chosen = None
            if parts.positions is not None:
                low, high = np.searchsorted(parts.positions, [begin, end])
                chosen = parts.positions[low:high] - begin
            for other, theirs, count in seen.setdefault(part.head.digest, []):
                if common := _common(chosen, theirs, count):
                    return other, number, common
            seen[part.head.digest].append((number, chosen, part.head.samples))
    return None


def _common(ones: Integers | None, others: Integers | None, count: int) -> int:
    if ones is None or others is None:
        both = others if ones is None else ones
        return count if both is None else len(both)
    return len(np.intersect1d(ones, others, assume_unique=True))


def _absolute(name: str) -> str:
    return name if "://" in name else os.path.abspath(name)  # noqa: PTH100 - links stay as they are
