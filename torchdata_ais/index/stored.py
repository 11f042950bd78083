"""Reading of a stored index."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from filelock import FileLock, Timeout

from torchdata_ais._util.files import sync_folder
from torchdata_ais.errors import AISError, NotFoundError, SampleIndexError, StallError, UsageError
from torchdata_ais.index.format import (
    COUNTS,
    FIELDS,
    MOST,
    MOST_BLOCK,
    PAGE_ROWS,
    SHARDS,
    TABLE,
    Block,
    Head,
    as_numpy,
    checked,
    damaged,
    digest_in,
    foreign_shard,
    head_in,
    read_batch,
    samples_schema,
    whole_of,
)
from torchdata_ais.index.location import Readable, RemoteFolder, part_of
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.store.objects.cache import open_kept, open_part, private_folder, remove, write_all
from torchdata_ais.urls import ShardPlaces

_log = logging.getLogger("torchdata_ais")
_PIECE = 8 << 20
_STILL_S = 60.0  # that a file which another process copies may stay as it is
_TABLES = 2  # copies of tables of shards that stay: the present one's, and the one's before
_TRIES = 5  # others remove a copy that they find damaged
_LATER_S = 3600.0  # a file of no index that is known is removed after this


def _pieces(source: Readable, name: str, at: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a file from `at` on, at most 8 MiB at a time."""
    while piece := source.read(name, at, _PIECE):
        yield piece
        at += len(piece)


class CopiedFolder:
    """The files of an index, each copied to a folder of this node on use.

    One process copies a file, under a lock that dies with it; others wait. The unfinished copy of a killed process is
    resumed. A file appears under its name when its XXH64 matches the index's head. Its blocks are compared when they
    are read, too. A damaged copy is replaced. Each index has a subfolder of `path`, with its files and those of the
    previous index in its place. An index that replaces it is copied when it is opened.

    Memory: 8 MiB, while a file is copied; the table of shards, while that is.
    """

    def __init__(self, source: Readable, path: str | os.PathLike[str], head: Head) -> None:
        self.source = source
        self.where = source.where
        self._path = Path(path).absolute() / xxhash.xxh64_hexdigest(source.where.encode())
        self._head = head
        with self._explained():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            private_folder(self._path)
            self._remove_others()

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file, out of its copy."""
        kept = self._named(name)
        if kept is None:
            return self.source.read(name, start, length)
        for _ in range(_TRIES):
            with self._explained():
                file = open_kept(self._path / kept)
                if file is not None:
                    with file:
                        return part_of(file, start, length)
            self._copy(name, kept)
        raise UsageError.at(
            f"the copy of {name} in {self._path} is removed again and again",
            todo="name another folder by index_dir=",
            url=self.where,
        )

    def mistrust(self, name: str) -> bool:
        """Discard the copy of a file; return whether there was one."""
        kept = self._named(name)
        if kept is None or not os.path.lexists(self._path / kept):
            return False
        with self._explained():
            remove(self._path / kept)
        return True

    def _named(self, name: str) -> str | None:
        """Return the name of the copy of a file; None if it is not of the index."""
        if name == TABLE:
            return f"table-{self._head.whole}.arrow"
        return name if name in self._head.files else None

    def _copy(self, name: str, kept: str) -> None:
        """Copy a file, unless another process does or did meanwhile."""
        with self._explained(), self._locked(kept):
            part = self._path / f"{kept}.part"
            for again in (True, False):
                there = open_kept(self._path / kept)
                if there is not None:
                    there.close()
                    return
                remove(self._path / kept)  # not a file
                with open_part(part) as file:
                    for piece in _pieces(self.source, name, file.seek(0, os.SEEK_END)):
                        write_all(file, piece)
                    os.fsync(file.fileno())
                    file.seek(0)
                    whole = self._is_whole(name, file)
                if whole:
                    # Only a complete file gets this name, so readers need no lock.
                    part.replace(self._path / kept)
                    sync_folder(self._path)
                    return
                part.unlink()  # started by a killed process on a disk that lost some of it, or the source is damaged
                if not again:
                    raise damaged(f"{name} has other bytes than its head says", self.where)

    def _is_whole(self, name: str, part: FileIO) -> bool:
        if name == TABLE:
            return whole_of(part.readall(), self._head.whole) == self._head.whole
        digest = xxhash.xxh64()
        while piece := part.read(_PIECE):
            digest.update(piece)
        return digest.hexdigest() == digest_in(name)

    @contextmanager
    def _locked(self, kept: str) -> Iterator[None]:
        """Hold the lock on a file; wait while its owner continues to copy."""
        part, lock = self._path / f"{kept}.part", FileLock(self._path / f"{kept}.lock", mode=0o600)
        before = -1
        while True:
            # The wait has no bound while the unfinished file grows: a copy of any size may take its time.
            try:
                lock.acquire(timeout=_STILL_S)
                break
            except Timeout:
                size = part.lstat().st_size if os.path.lexists(part) else 0
                if size == before:
                    raise StallError.at(
                        f"another process copies {kept} to {self._path}, and has got no byte for {_STILL_S:g} s",
                        todo="look for a hanging process with that index_dir=, or use another folder",
                        url=self.where,
                    ) from None
                before = size
        try:
            yield
        finally:
            lock.release()

    def _remove_others(self) -> None:
        """Remove the files of indexes before the previous one in this place."""
        stay = {*self._head.files, *self._head.before, self._named(TABLE)}
        tables = []
        for file in self._path.iterdir():
            name = file.name.removesuffix(".part").removesuffix(".lock")
            with suppress(FileNotFoundError):  # another process removes, too
                changed = file.lstat().st_mtime
                if name.startswith("table-") and file.name == name:
                    tables.append((changed, file))
                elif name not in stay and time.time() - changed > _LATER_S:
                    remove(file)
        for _, file in sorted(tables)[:-_TABLES]:
            if file.name not in stay:
                remove(file)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AISError:
            raise
        except OSError as error:
            raise UsageError.at(
                f"the index cannot be copied to {self._path}: {error.strerror or error}",
                todo="make room, correct the rights of that folder, or name another one by index_dir=",
                url=self.where,
            ) from error


_COPIED_AFTER = 72 << 20  # a file of samples has about 64 MiB
_MOST_COPIED = 1 << 30


class TemporaryCopies:
    """Copies of files of an index in temporary files without names.

    A file of which 72 MiB were read by ranges is copied, until there is 1 GiB of copies. They end with this object, or
    with the process however that ends. What is not copied is read by ranges, which is logged once.

    Memory: 8 MiB, while a file is copied.
    """

    def __init__(self) -> None:
        self._files: dict[str, _TemporaryFile | None] = {}
        self._read_bytes: Counter[str] = Counter()
        self._left = _MOST_COPIED
        self._logged = False

    def __contains__(self, name: str) -> bool:
        return self._files.get(name) is not None

    def read(self, source: Readable, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file of `source`, or of its copy."""
        if name not in self._files:
            self._read_bytes[name] += length
            if self._read_bytes[name] > _COPIED_AFTER:
                self._copy(source, name)
        file = self._files.get(name)
        if file is not None:
            try:
                return file.read(start, length)
            except OSError:  # of its disk
                self.mistrust(name)
        return source.read(name, start, length)

    def mistrust(self, name: str) -> bool:
        """Discard the copy of a file; return whether there is or was one."""
        if name not in self._files:
            return False
        self._files[name] = None
        return True

    def _copy(self, source: Readable, name: str) -> None:
        """Copy a file, if there is space left."""
        size, why = 0, f"more than {_MOST_COPIED >> 20} MiB"
        try:
            file = _TemporaryFile()
            for piece in _pieces(source, name):
                size += len(piece)
                if size > self._left:
                    self._left = 0  # of the next file one piece is read, to see that
                    break
                file.write(piece)
            else:
                self._left -= size
                self._files.setdefault(name, file)  # another thread may have copied it, too
                return
        except AISError:
            raise
        except OSError as error:
            why = f"no temporary file: {error.strerror or error}"
        self._files.setdefault(name, None)
        if not self._logged:
            self._logged = True
            _log.warning(
                "%s: rows of its samples are requested again and again (%s). Copy the index to this node by index_dir=",
                source.where,
                why,
            )


class _TemporaryFile:
    """A file without a name, closed with its last reference."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - see __del__

    def write(self, data: bytes) -> None:
        write_all(self._file, data)

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, start)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was not made
            self._file.close()


_KEPT_BYTES = 16 << 20
_GAP = 256 << 10  # bytes between two blocks that take no longer than a request
_MOST_NEAR = 4 << 20
_SMALL_TABLE = 1 << 20
_HEAD_BYTES = 64 << 10  # read at once, of a head whose length is not known yet


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


def _are_near(first: Block, last: Block, block: Block, gap: int) -> bool:
    """Return whether `block` is to be read with those from `first` to `last`."""
    between = block.start - (last.start + last.length)
    return (
        block.file == first.file
        and 0 <= between <= gap
        and block.start + block.length - first.start <= _MOST_NEAR
    )


def _read_head(folder: Readable, table: str) -> tuple[Head, int]:
    data = folder.read(table, 0, _HEAD_BYTES)
    head, begin = head_in(data, folder.where)
    if head is None:
        data += folder.read(table, len(data), begin - len(data))
        head, begin = head_in(data, folder.where)
    if head is None:
        raise damaged(f"{table} ends within its schema", folder.where)
    return head, begin


class StoredIndex:
    """Samples of an index's shards, by number, from a folder.

    Args:
        folder: Its location.
        table: Its table of shards: that of an index that is whole, or of a part of one.
        places: Places whose shards it may name; None for an index that this process made. All names of a page are
            compared when something of the page is read.

    In a folder that is not on this node, blocks close to each other are read at once; see `TemporaryCopies`, too.

    Memory: 9 bytes a shard, at most 16 MiB of recently used pages and batches, 4 MiB of blocks, and 4,096 rows; 8 MiB
    while a file is copied.

    Raises:
        SampleIndexError: It is damaged or incomplete; for blocks that are read later, when they are read.
    """

    def __init__(self, folder: Readable, table: str = TABLE, *, places: ShardPlaces | None = None) -> None:
        self.folder = folder
        self.table = table
        self._places = places
        self.head, begin = _read_head(folder, table)
        self._schema = samples_schema(self.head.columns)
        length = sum(length for length, _ in self.head.pages)
        # A small table is read at once, so that open indexes stay usable when another takes its place.
        self._pages = folder.read(table, begin, length) if length <= _SMALL_TABLE else None
        self._page_starts = begin + np.cumsum([0, *(length for length, _ in self.head.pages)])
        self.ends: Integers
        """Number of samples in the shards up to each, itself included."""
        self._kept: OrderedDict[tuple[str, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._kept_bytes = 0
        self._rows: dict[int, ShardRow] = {}  # used last
        self._copies = TemporaryCopies()
        self._check_head()
        # Shards whose samples were checked once. No array: Ray's pickle makes those read-only.
        self._valid = bytearray(self.head.shards)
        if self._pages is not None and places is not None:  # those of a large table when they are read
            for number in range(len(self.head.pages)):
                self.page(number)

    def __getstate__(self) -> dict[str, Any]:
        empty = {"_kept": OrderedDict(), "_kept_bytes": 0, "_rows": {}, "_copies": TemporaryCopies()}
        return self.__dict__ | empty

    def kept_in(self, path: str | os.PathLike[str]) -> StoredIndex:
        """Return the same index, its files copied to a folder of this node on use."""
        kept = copy.copy(self)
        source = self.folder.source if isinstance(self.folder, CopiedFolder) else self.folder
        kept.folder = CopiedFolder(source, path, self.head)
        return kept

    def _check_head(self) -> None:
        where = self.folder.where
        counts = as_numpy(self._once(self.head.counts, COUNTS).column(0))
        if len(counts) != self.head.shards:
            raise damaged(f"it has {len(counts)} counts for {self.head.shards} shards", where)
        most = MOST // max(1, len(counts))
        if ((counts < 0) | (counts > most)).any() or int(counts.sum()) != self.head.samples:
            raise damaged("its counts do not make up its samples", where)
        self.ends = np.cumsum(counts)

    @cached_property
    def fields(self) -> list[tuple[str, ...]]:
        """The combinations of fields that samples have."""
        rows = self._once(self.head.fields, FIELDS).column(0).to_pylist()
        if any(name is None for names in rows for name in names):
            raise damaged("a field has no name", self.folder.where)
        return [tuple(names) for names in rows]

    def page(self, number: int) -> pa.RecordBatch:
        """Return 4,096 rows of the table of shards."""
        length, xxh64 = self.head.pages[number]
        begin, data = int(self._page_starts[number]), None
        if self._pages is not None:
            first = begin - int(self._page_starts[0])
            data = self._pages[first : first + length]
        block = Block(self.table, begin, length, xxh64)
        return self._block(block, SHARDS, data, check=lambda page: self._check_page(number, page))

    def _check_page(self, number: int, page: pa.RecordBatch) -> None:
        """Compare the rows of a page with the head, and names with the places."""
        counts = np.diff(self.ends, prepend=0)[number * PAGE_ROWS : (number + 1) * PAGE_ROWS]
        values = {name: as_numpy(page.column(name)) for name in ("count", "part", "start")}
        lengths = as_numpy(page.column("length"))
        sizes = as_numpy(page.column("size").drop_null())
        if len(page) != len(counts) or (values["count"] != counts).any():
            raise damaged(f"page {number} of {self.table} has other counts of samples", self.folder.where)
        if ((values["part"] < 0) | (values["part"] >= len(self.head.parts))).any():
            raise damaged(f"page {number} of {self.table} names a part which is not there", self.folder.where)
        if (
            ((values["start"] < 0) | (values["start"] > MOST) | (lengths < 0) | (lengths > MOST_BLOCK)).any()
            or ((sizes < 0) | (sizes > MOST)).any()
            or (self.head.proof == "bytes" and page.column("proven").false_count)
        ):
            raise damaged(f"page {number} of {self.table} has sizes that cannot be", self.folder.where)
        if self._places is None:
            return
        for name in page.column("name").to_pylist():
            if why := self._places.fault(name):
                raise foreign_shard(name, why, self.folder.where)

    def shard(self, number: int) -> ShardRow:
        """Return the row of a shard."""
        row = self._rows.get(number)
        if row is None:
            if len(self._rows) >= PAGE_ROWS:
                self._rows.clear()
            page = self.page(number // PAGE_ROWS)
            row = ShardRow(*(column[number % PAGE_ROWS].as_py() for column in page.columns))
            self._rows[number] = row
        return row

    def shards(self) -> Iterator[ShardRow]:
        """Yield the rows of all shards, in their order."""
        for number in range(len(self.head.pages)):
            for row in zip(*(column.to_pylist() for column in self.page(number).columns), strict=True):
                yield ShardRow(*row)

    def samples(self, number: int) -> pa.RecordBatch:
        """Return the rows of a shard's samples."""
        return next(self.samples_of([number]))

    def samples_of(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the samples of several shards, in this order."""
        remote = isinstance(self.folder, RemoteFolder)
        near: list[tuple[int, Block]] = []
        for number in numbers:
            row = self.shard(number)
            if not 0 <= row.part < len(self.head.parts):
                raise damaged(
                    f"shard {row.name} is in part {row.part}, which does not exist", self.folder.where
                )
            block = Block(self.head.parts[row.part], row.start, row.length, f"{row.xxh64:016x}")
            gap = _GAP if remote and block.file not in self._copies else 0
            if near and not _are_near(near[0][1], near[-1][1], block, gap):
                yield from self._samples_near(near)
                near = []
            near.append((number, block))
        yield from self._samples_near(near)

    def _samples_near(self, near: Sequence[tuple[int, Block]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of shards whose blocks are close to each other."""
        missing = [block for _, block in near if (block.file, block.start) not in self._kept]
        data, begin = b"", 0
        if len(missing) > 1:
            begin, last = missing[0].start, missing[-1]
            data = self._read(last.file, begin, last.start + last.length - begin)
        for number, block in near:
            place = block.start - begin
            piece = data[place : place + block.length] if place >= 0 else b""
            batch = self._block(block, self._schema, piece or None)  # a kept one may not be kept any more
            if not self._valid[number]:
                self._check_samples(number, batch)
                self._valid[number] = 1
            yield batch

    def _check_samples(self, number: int, batch: pa.RecordBatch) -> None:
        """Compare the rows of a shard's samples with the shard and each other."""
        row = self.shard(number)
        if len(batch) != row.samples:
            raise damaged(
                f"shard {row.name} has {len(batch)} rows for {row.samples} samples", self.folder.where
            )
        starts, sizes, fields = (as_numpy(batch.column(name)) for name in ("start", "size", "fields"))
        end = MOST if row.size is None else row.size
        lists = batch.column("sizes")
        flat = lists.flatten()
        widths = np.array([len(names) for names in self.fields], dtype=np.int64)
        wrong = {
            "a place outside of the shard": (
                (starts < 0) | (sizes < 1) | (starts > end) | (sizes > end - starts)
            ).any(),
            "samples that do not follow each other": (starts[1:] <= starts[:-1]).any(),
            "fields that are not in the index": ((fields < 0) | (fields >= len(widths))).any(),
            "samples without a checksum": row.proven and batch.column("xxh64").null_count,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise damaged(f"shard {row.name} has {what}", self.folder.where)
        counted = as_numpy(lists.value_lengths())
        if flat.null_count or (counted != widths[fields]).any():
            raise damaged(f"shard {row.name} has samples without the size of a field", self.folder.where)
        values = as_numpy(flat)
        if ((values < 0) | (values > np.repeat(sizes, counted))).any():
            raise damaged(f"shard {row.name} has fields that are larger than their sample", self.folder.where)

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the shard of each position, and its number within the shard."""
        shards = np.searchsorted(self.ends, positions, side="right")
        begins = np.where(shards > 0, self.ends[shards - 1], 0)
        return shards, positions - begins

    def damages(self) -> Iterator[SampleIndexError]:
        """Read every byte of the index, and yield the damages."""
        data = self.folder.read(self.table)
        if whole_of(data, self.head.whole) != self.head.whole:
            yield damaged(f"the bytes of {self.table} changed", self.folder.where)
        for name in self.head.files:
            try:
                changed = xxhash.xxh64_hexdigest(self.folder.read(name)) != digest_in(name)
            except NotFoundError:
                yield damaged(f"{name} is missing", self.folder.where)
                continue
            if changed:
                yield damaged(f"the bytes of {name} changed", self.folder.where)

    def _once(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        return read_batch(self._checked(block), schema, self.folder.where)

    def _block(
        self,
        block: Block,
        schema: pa.Schema,
        data: bytes | None = None,
        check: Callable[[pa.RecordBatch], None] | None = None,
    ) -> pa.RecordBatch:
        """Return a batch, checked, or from the cache; `data` may be its bytes."""
        place = (block.file, block.start)
        if place in self._kept:
            self._kept.move_to_end(place)
            return self._kept[place][0]
        batch = read_batch(self._checked(block, data), schema, self.folder.where)
        if check is not None:
            check(batch)
        self._kept[place] = (batch, block.length)
        self._kept_bytes += block.length
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, (_, length) = self._kept.popitem(last=False)
            self._kept_bytes -= length
        return batch

    def _checked(self, block: Block, data: bytes | None = None) -> bytes:
        """Return the bytes of a block, read again if those of a copy are wrong."""
        where = self.folder.where
        if data is not None:
            with suppress(SampleIndexError):  # a copy may have been discarded since `data` were read from it
                return checked(data, block, where)
        try:
            return checked(self._read(block.file, block.start, block.length), block, where)
        except SampleIndexError:
            copies = self.folder if isinstance(self.folder, CopiedFolder) else self._copies
            if not copies.mistrust(block.file):
                raise
        return checked(self._read(block.file, block.start, block.length), block, where)

    def _read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file, or of the temporary copy of it."""
        try:
            if isinstance(self.folder, RemoteFolder) and name in self.head.parts:
                return self._copies.read(self.folder, name, start, length)
            return self.folder.read(name, start, length)
        except NotFoundError as error:
            raise SampleIndexError.at(
                f"{self.folder.where}: the index is incomplete: {name} is missing",
                todo="copy the whole folder, or build it again: torchdata-ais index",
                url=self.folder.where,
            ) from error
