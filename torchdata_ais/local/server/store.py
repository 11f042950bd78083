"""Buckets and objects on disk: immutable data files, and a journal.

A PUT writes a new numbered file and then puts it into the index. So a reader that has the old file open continues with
the old version, and a write that breaks off leaves nothing. Every change of the index is one line of the journal; a
cluster that is started on a folder again reads it back.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from .files import FileSlice, append_blocks, write_all
from .names import SHARD_INDEXES, index_name
from .problem import ReplyError, bucket_exists, parts_lost

FILES_PER_FOLDER = 1000


class Object(msgspec.Struct):
    """Metadata of one version of one object.

    Attributes:
        parts: Bytes of each part of an object that was uploaded in parts; else none.
        left: Bytes that a job has left of it, which lost its other parts; else -1.
        reloaded: Whether its node has noticed that since.
    """

    name: str
    file: int
    size: int
    checksum: str
    version: int
    atime_ns: int
    custom: dict[str, str] = {}
    kind: str = "xxhash2"
    parts: list[int] = []
    left: int = -1
    reloaded: bool = False


@dataclass(eq=False)
class Bucket:
    """One bucket: its objects by name, and their names in order."""

    name: str
    bid: int
    created_ns: int
    checksum: str = "xxhash2"
    ec: bool = False
    objects: dict[str, Object] = field(default_factory=dict)
    _sorted: list[str] | None = None

    def names(self) -> list[str]:
        """All names, sorted by their UTF-8 bytes, that is by code points."""
        names = self._sorted
        if names is None:
            names = self._sorted = sorted(self.objects)
        return names

    def with_prefix(self, prefix: str, after: str = "") -> Iterator[Object]:
        """Yield by name the objects with a prefix that follow `after`."""
        names = self.names()
        start = bisect_left(names, prefix) if prefix > after else bisect_right(names, after)
        for name in itertools.islice(names, start, None):
            if not name.startswith(prefix):
                return
            entry = self.objects.get(name)
            if entry is not None:
                yield entry

    def put(self, entry: Object) -> None:
        """Take a version of an object in, in the place of an older one."""
        if entry.name not in self.objects:
            self._sorted = None
        self.objects[entry.name] = entry

    def pop(self, name: str) -> Object | None:
        """Take an object out and return it, if there is one."""
        self._sorted = None
        return self.objects.pop(name, None)


class Store:
    """All buckets and objects of one cluster below one folder."""

    def __init__(self, root: Path) -> None:
        self._data = root / "data"
        self._data.mkdir(parents=True, exist_ok=True)
        self._path = root / "journal.jsonl"
        self._lock = threading.RLock()
        self.buckets: dict[str, Bucket] = {}
        self._recover()
        self._compact()

    # -- buckets

    def bucket(self, name: str) -> Bucket:
        """Return the bucket or raise the 404 of AIStore."""
        found = self.buckets.get(name)
        if found is None:
            raise ReplyError(404, f'bucket "ais://{name}" does not exist', "ErrBckNotFound")
        return found

    def create_bucket(self, name: str, checksum: str = "xxhash2", ec: bool = False) -> None:
        """Make an empty bucket."""
        with self._lock:
            if name in self.buckets:
                raise bucket_exists(name)
            self._do("bucket", name, next(self._bids), time.time_ns(), checksum, ec)

    def drop_bucket(self, name: str) -> None:
        """Remove a bucket with all its objects."""
        with self._lock:
            bucket = self.bucket(name)
            for entry in list(bucket.objects.values()):
                bucket.pop(entry.name)
                self.path(entry).unlink(missing_ok=True)  # first, to have space for the journal line
            self._do("drop", name)

    def rename_bucket(self, name: str, to: str) -> None:
        """Give a bucket another name."""
        with self._lock:
            self.bucket(name)
            if to in self.buckets:
                raise bucket_exists(to)
            self._do("rename", name, to)

    # -- objects

    def path(self, entry: Object) -> Path:
        """The data file of an object."""
        return self._file(entry.file)

    def open(self, entry: Object) -> FileSlice:
        """Open an object; `FileNotFoundError` if it was replaced in between."""
        if entry.left >= 0:
            entry.reloaded = True
            raise parts_lost(entry.size, entry.left)
        return self.open_as_known(entry)

    def open_as_known(self, entry: Object) -> FileSlice:
        """Open an object, even with fewer bytes than its metadata have."""
        return FileSlice(os.open(self.path(entry), os.O_RDONLY | os.O_CLOEXEC), 0, entry.size)

    def put(self, bucket: str, name: str, blocks: Iterable[bytes | memoryview]) -> Object:
        """Store the blocks as a new version of an object."""
        with self.new_file() as (number, path):
            kind = self.bucket(bucket).checksum
            size, checksum = append_blocks(path, blocks, kind)
            return self.commit(bucket, name, number, size, checksum, kind=kind)

    @contextmanager
    def new_file(self) -> Iterator[tuple[int, Path]]:
        """Give an unused number and its path; an error in the block removes it."""
        number = next(self._numbers)
        path = self._file(number)
        path.parent.mkdir(exist_ok=True)
        try:
            yield number, path
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def commit(
        self,
        bucket: str,
        name: str,
        number: int,
        size: int,
        checksum: str,
        custom: dict[str, str] | None = None,
        *,
        kind: str = "xxhash2",
        parts: list[int] | None = None,
    ) -> Object:
        """Make the written file `number` the newest version of an object."""
        with self._lock:
            old = self.bucket(bucket).objects.get(name)
            version = old.version + 1 if old else 1
            entry = Object(
                name, number, size, checksum, version, time.time_ns(), custom or {}, kind, parts or []
            )
            self._log("put", bucket, entry)
            self.buckets[bucket].put(entry)
        if old is not None:
            self.path(old).unlink(missing_ok=True)
        return entry

    def copy(self, source: Object, bucket: str, name: str) -> Object:
        """Copy an object; the files share their blocks where the disk can."""
        if source.left >= 0:
            raise parts_lost(source.size, source.left)
        with self.new_file() as (number, path):
            try:
                os.link(self.path(source), path)
            except OSError:
                shutil.copyfile(self.path(source), path)
            return self.commit(
                bucket, name, number, source.size, source.checksum, dict(source.custom), kind=source.kind
            )

    def store_as_one_piece(self, bucket: str, entry: Object) -> None:
        """Store the metadata of an object as one piece: other parts are lost then."""
        if not entry.parts:
            return
        with self._lock:
            entry.left, entry.parts = entry.parts[0], []
            os.truncate(self.path(entry), entry.left)
            self._log("put", bucket, entry)

    def delete(self, bucket: str, name: str) -> bool:
        """Remove an object; `False` if there is none."""
        with self._lock:
            found = self.bucket(bucket).pop(name)
            if found is None:
                return False
            self.path(found).unlink(missing_ok=True)
            with suppress(OSError):  # on a full disk: the missing file shows it, too
                self._log("delete", bucket, name)
            if bucket != SHARD_INDEXES and SHARD_INDEXES in self.buckets:
                self.delete(SHARD_INDEXES, index_name(bucket, name))  # the shard's index goes with it
        return True

    def set_custom(self, bucket: str, entry: Object, custom: dict[str, str]) -> None:
        """Replace the custom properties of an object."""
        with self._lock:
            self._log("put", bucket, msgspec.structs.replace(entry, custom=custom))
            entry.custom = custom

    def clear(self) -> None:
        """Remove everything."""
        for name in list(self.buckets):
            self.drop_bucket(name)

    # -- the journal

    def _file(self, number: int) -> Path:
        return self._data / str(number // FILES_PER_FOLDER) / str(number)

    def _do(self, *event: Any) -> None:
        """Write a change of a bucket to the journal, and apply it."""
        self._log(*event)
        self._apply(*event)

    def _log(self, *event: object) -> None:
        """Write one line, whole or (on a full disk) not at all."""
        end = self._journal.tell()
        try:
            write_all(self._journal.fileno(), msgspec.json.encode(event) + b"\n")
        except OSError:
            self._journal.seek(end)
            self._journal.truncate()
            raise

    def _recover(self) -> None:
        for line in self._path.read_bytes().split(b"\n") if self._path.exists() else ():
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # the last line of a process that was killed while it wrote
            self._apply(*event)
        known = {entry.file for bucket in self.buckets.values() for entry in bucket.objects.values()}
        self._bids = itertools.count(1 + max((bucket.bid for bucket in self.buckets.values()), default=0))
        self._numbers = itertools.count(1 + max(known, default=0))
        for path in self._data.glob("*/*"):
            if not path.name.isdigit() or int(path.name) not in known:
                path.unlink()

    def _apply(self, kind: str, name: str, *rest: Any) -> None:
        if kind == "bucket":
            self.buckets[name] = Bucket(name, *rest)
        elif kind == "drop":
            self.buckets.pop(name, None)
        elif kind == "rename":
            bucket = self.buckets[rest[0]] = self.buckets.pop(name)
            bucket.name = rest[0]
        elif kind == "put":
            entry = msgspec.convert(rest[0], Object)
            if self.path(entry).exists():
                self.buckets[name].put(entry)
        elif kind == "delete":
            self.buckets[name].pop(rest[0])

    def _compact(self) -> None:
        """Rewrite the journal as short as possible, and leave it open."""
        fresh = self._path.with_suffix(".new")
        self._journal = fresh.open("wb", buffering=0)
        for bucket in self.buckets.values():
            self._log("bucket", bucket.name, bucket.bid, bucket.created_ns, bucket.checksum, bucket.ec)
            for entry in bucket.objects.values():
                self._log("put", bucket.name, entry)
        fresh.replace(self._path)
