"""Writer of indexes: shards in their order, parts at a certain size."""

from __future__ import annotations

import contextlib
import secrets
from array import array
from collections.abc import Sequence
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from torchdata_ais.errors import AISError, NotFoundError, SampleIndexError, UsageError
from torchdata_ais.index.format import (
    COUNTS,
    FIELDS,
    PAGE_ROWS,
    SHARDS,
    TABLE,
    UNFINISHED,
    Block,
    Head,
    block_of,
    named_by_content,
    samples_schema,
    stacked,
    table_file,
)
from torchdata_ais.index.location import Folder
from torchdata_ais.index.rows import ShardEntry, ShardSamples, content_of, stored_text, stored_texts
from torchdata_ais.index.stored import StoredIndex

_PART_BYTES = 64 << 20
_PART_SHARDS = 4 * PAGE_ROWS


class IndexWriter:
    """Writer of an index: ``shards.arrow`` last, so readers find all or none.

    Memory: one part of samples (64 MiB) and the table of shards (about 150 bytes a shard).

    Example:
        >>> import tempfile
        >>> from torchdata_ais.index.location import LocalFolder
        >>> with tempfile.TemporaryDirectory() as path:
        ...     writer = IndexWriter(LocalFolder(path))
        ...     writer.add(ShardEntry("a.tar"), ShardSamples(["k"], [0], [1024], [("cls",)], [(1,)], [5]))
        ...     writer.finish().samples
        1
    """

    def __init__(self, folder: Folder, columns: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._schema = samples_schema(columns)
        self._written = secrets.token_hex(4)
        self._folder = folder
        self._fields: dict[tuple[str, ...], int] = {}
        self._digest = xxhash.xxh64()  # over names, sizes, checksums and contents of the shards
        self._counts = array("q")
        self._proven = True
        self._pages: list[pa.RecordBatch] = []  # of the table of shards, whole
        self._rows: list[dict[str, object]] = []  # rows of the next page
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._parts: list[str] = []
        self._unnamed: set[str] = set()  # files that no stored table names
        self._named: set[str] = set()
        self._broken_off = False

    def add(self, shard: ShardEntry, samples: ShardSamples) -> None:
        """Take the next shard."""
        content = content_of(samples)
        numbers = [self._fields.setdefault(names, len(self._fields)) for names in samples.fields]
        starts = np.array(samples.starts, dtype=np.int64)
        batch = pa.record_batch(
            [
                pa.array(stored_texts(samples.keys), type=pa.string()),
                pa.array(starts),
                pa.array(np.array(samples.ends, dtype=np.int64) - starts),
                pa.array(numbers, type=pa.int32()),
                _lists(samples.sizes),
                pa.nulls(len(starts), pa.uint64())
                if samples.xxh64 is None
                else pa.array(samples.xxh64, type=pa.uint64()),
                *(
                    pa.array(samples.columns.get(name) or [None] * len(starts), type=pa.int64())
                    for name in self._columns
                ),
            ],
            schema=self._schema,
        )
        self._digest.update(
            msgspec.msgpack.encode([stored_text(shard.name), shard.size, shard.checksum, content])
        )
        self._counts.append(len(starts))
        self._proven = self._proven and samples.xxh64 is not None
        self._rows.append(
            {
                **msgspec.structs.asdict(shard),
                "name": stored_text(shard.name),
                "count": len(starts),
                "content": content,
                "proven": samples.xxh64 is not None,
                "part": len(self._parts),
            }
        )
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _PART_BYTES or len(self._waiting) >= _PART_SHARDS:
            self._write_part()

    def checkpoint(self) -> None:
        """Store the shards so far, so that a build can resume from them."""
        self._folder.write(UNFINISHED, self._table("", selection=False)[1])
        self._named, self._unnamed = self._named | self._unnamed, set()

    def finish(self, source: str = "", *, selection: bool = False, digest: str | None = None) -> Head:
        """Write the rest, the tables, and the head.

        Remove the files of the index before the previous one. The digest defaults to that of the shards taken.
        """
        if self._broken_off:
            raise UsageError.at("the index was broken off", todo="build it: SampleIndex.build(...)")
        before: Head | None = None
        with contextlib.suppress(NotFoundError, SampleIndexError):
            before = StoredIndex(self._folder).head
        files = before.files if before else []
        try:
            head, table = self._table(source, selection=selection, digest=digest, before=files)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: after an error the caller may try it again
                self._break_off()
            raise
        # The table is the last file: a reader sees the index of before or this one, never a part.
        # Files of the previous index stay for its open readers; those of the one before that are removed.
        self._folder.write(TABLE, table)
        needed = {*head.files, *head.before}
        for name in [UNFINISHED, *(before.before if before else [])]:
            if name not in needed:
                self._folder.remove(name)
        return head

    def _break_off(self) -> None:
        self._broken_off = True
        with contextlib.suppress(AISError, OSError):
            while self._unnamed:
                self._folder.remove(self._unnamed.pop())

    def _table(
        self, source: str, *, selection: bool, digest: str | None = None, before: Sequence[str] = ()
    ) -> tuple[Head, bytes]:
        """Write all but the table of shards, and return that."""
        if self._waiting:
            self._write_part()
        names = [[stored_text(name) for name in combination] for combination in self._fields]
        fields = pa.record_batch([pa.array(names, type=pa.list_(pa.string()))], schema=FIELDS)
        counts = pa.record_batch([pa.array(np.array(self._counts, dtype=np.int64))], schema=COUNTS)
        rest = [pa.RecordBatch.from_pylist(self._rows, schema=SHARDS)] if self._rows else []
        head = Head(
            columns=self._columns,
            samples=sum(self._counts),
            shards=len(self._counts),
            proof="bytes" if self._proven else "headers",
            digest=digest or self._digest.hexdigest(),
            counts=self._write_table("counts", [counts], COUNTS)[0],
            fields=self._write_table("fields", [fields], FIELDS)[0],
            pages=[],
            parts=self._parts,
            source=source,
            selection=selection,
            before=list(before),
        )
        return head, table_file(head, [*self._pages, *rest])

    def _write_part(self) -> None:
        blocks = self._write_table("samples", self._waiting, self._schema)
        self._parts.append(blocks[0].file)
        for row, block in zip(self._rows[-len(blocks) :], blocks, strict=True):
            row.update(start=block.start, length=block.length, xxh64=int(block.xxh64, 16))
        self._waiting, self._waiting_bytes = [], 0
        while len(self._rows) >= PAGE_ROWS:
            self._pages.append(pa.RecordBatch.from_pylist(self._rows[:PAGE_ROWS], schema=SHARDS))
            del self._rows[:PAGE_ROWS]

    def _write_table(self, kind: str, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Block]:
        data, places = stacked(batches, schema)
        name = named_by_content(kind, data, self._written)
        if name not in self._named:
            self._unnamed.add(name)
        self._folder.write(name, data)
        return [block_of(name, start, memoryview(data)[start : start + length]) for start, length in places]


def _lists(rows: Sequence[tuple[int, ...]]) -> pa.Array:
    """Return an Arrow column of rows, three times as fast as from tuples."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat))
