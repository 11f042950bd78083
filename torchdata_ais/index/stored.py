"""A stored index being read: what is asked for is fetched, checked and kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from torchdata_ais.errors import NotFoundError, SampleIndexError
from torchdata_ais.index.folder import Folder
from torchdata_ais.index.form import (
    COUNTS,
    FIELDS,
    HEAD,
    PAGE_ROWS,
    SAMPLES,
    SHARDS,
    Block,
    Head,
    checked,
    damaged,
    read_batch,
)
from torchdata_ais.plan.hashing import Integers

__all__ = ["ShardRow", "StoredIndex"]

_KEPT_BYTES = 32 << 20


class ShardRow(NamedTuple):
    """One row of the table of shards."""

    name: str
    size: int | None
    checksum: str | None
    version: str | None
    samples: int
    content: int
    proven: bool
    part: int
    start: int
    length: int
    xxh64: int


class StoredIndex:
    """The samples of an index's shards, by number, out of a folder.

    Args:
        folder: Where it lies.

    Memory: 8 bytes a shard, and at most 32 MiB of pages and batches that were asked for last.

    Raises:
        NotFoundError: There is no index.
        SampleIndexError: It is damaged or incomplete; for blocks that are read later, when they are read.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.head = Head.from_json(folder.read(HEAD), folder.where)
        self._kept: OrderedDict[tuple[str, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._kept_bytes = 0
        self._check_head()

    def _check_head(self) -> None:
        pages = -(-self.head.shards // PAGE_ROWS)
        if len(self.head.pages) != pages or len(self.counts) != self.head.shards:
            raise damaged(
                f"it has {len(self.counts)} counts for {self.head.shards} shards", self.folder.where
            )
        if int(self.counts.sum()) != self.head.samples or (self.counts < 0).any():
            raise damaged("its counts do not make up its samples", self.folder.where)

    @cached_property
    def counts(self) -> Integers:
        """How many samples each shard has."""
        counts: Integers = self._once(self.head.counts, COUNTS).column(0).to_numpy()
        return counts

    @cached_property
    def ends(self) -> Integers:
        """How many samples stand in the shards up to each, itself included."""
        return np.cumsum(self.counts)

    @cached_property
    def fields(self) -> list[tuple[str, ...]]:
        """The combinations of fields that samples have."""
        return [tuple(names) for names in self._once(self.head.fields, FIELDS).column(0).to_pylist()]

    def page(self, number: int) -> pa.RecordBatch:
        """Return 4,096 rows of the table of shards."""
        return self._block(self.head.pages[number], SHARDS)

    def shard(self, number: int) -> ShardRow:
        """Return the row of a shard."""
        page = self.page(number // PAGE_ROWS)
        return ShardRow(*(column[number % PAGE_ROWS].as_py() for column in page.columns))

    def samples(self, number: int) -> pa.RecordBatch:
        """Return the rows of a shard's samples."""
        row = self.shard(number)
        if not 0 <= row.part < len(self.head.parts):
            raise damaged(
                f"shard {row.name} stands in part {row.part}, which is not there", self.folder.where
            )
        block = Block(self.head.parts[row.part], row.start, row.length, f"{row.xxh64:016x}")
        batch = self._block(block, SAMPLES)
        if len(batch) != row.samples:
            raise damaged(
                f"shard {row.name} has {len(batch)} rows for {row.samples} samples", self.folder.where
            )
        return batch

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the shard of each position, and its number within the shard."""
        shards = np.searchsorted(self.ends, positions, side="right")
        return shards, positions - (self.ends[shards] - self.counts[shards])

    def _once(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        return read_batch(self._checked(block), schema)

    def _block(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch, read and checked unless it was asked for a moment ago."""
        place = (block.file, block.start)
        if place in self._kept:
            self._kept.move_to_end(place)
            return self._kept[place][0]
        batch = self._once(block, schema)
        self._kept[place] = (batch, block.length)
        self._kept_bytes += block.length
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, (_, length) = self._kept.popitem(last=False)
            self._kept_bytes -= length
        return batch

    def _checked(self, block: Block) -> bytes:
        try:
            data = self.folder.read(block.file, block.start, block.length)
        except NotFoundError as error:
            raise SampleIndexError.at(
                f"{self.folder.where}: the index is incomplete: {block.file} is missing",
                todo="copy the whole folder, or build it again: torchdata-ais index",
                url=self.folder.where,
            ) from error
        return checked(data, block, self.folder.where)
