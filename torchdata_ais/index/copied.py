"""A copy of a stored index on this node's disk, made once and shared by all of its workers and ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from torchdata_ais.errors import AISError, StallError, UsageError
from torchdata_ais.index.folder import Readable
from torchdata_ais.index.form import TABLE, Head, damaged, digest_in, whole_of
from torchdata_ais.store.cached_file import open_kept, open_part, private_folder, remove, write_all

_PIECE = 8 << 20
_STILL_S = 60.0  # that a file which another process copies may stay as it is
_TABLES = 2  # copies of tables of shards that stay: the present one's, and the one's before
_TRIES = 5  # others remove a copy that they find damaged
_LATER_S = 3600.0  # a file of no index that is known is removed after this


class CopiedFolder:
    """The files of an index, each copied to a folder of this node when something of it is asked for first.

    One process copies a file, under a lock that dies with it; others wait. What a killed process had copied is gone on
    with. A file appears under its name when its XXH64 is the one that the index's head says; its blocks are compared
    when they are read, too, and a copy that is damaged by then is given up and made anew.

    Args:
        source: Where the index lies.
        path: The folder of this node, for any number of indexes; each has one of its own in it. On the disk are at
            most the files of the index and of the one that stood in its place before.
        head: Of the index. An index that takes its place is another one: it is copied when it is opened.

    Attributes:
        source: As given.

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
                        left = os.fstat(file.fileno()).st_size - start
                        if left <= 0:
                            return b""
                        file.seek(start)
                        return file.read(left if length is None else min(length, left))
            self._copy(name, kept)
        raise UsageError.at(
            f"the copy of {name} in {self._path} is removed again and again",
            todo="name another folder by index_dir=",
            url=self.where,
        )

    def mistrust(self, name: str) -> bool:
        """Give up the copy of a file; return whether there was one: what is read next comes from the source."""
        kept = self._named(name)
        if kept is None or not os.path.lexists(self._path / kept):
            return False
        with self._explained():
            remove(self._path / kept)
        return True

    def _named(self, name: str) -> str | None:
        """Return what the copy of a file is called; None for what is no part of the index."""
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
                remove(self._path / kept)  # what is no file
                with open_part(part) as file:
                    at = file.seek(0, os.SEEK_END)
                    while piece := self.source.read(name, at, _PIECE):
                        write_all(file, piece)
                        at += len(piece)
                    os.fsync(file.fileno())
                    file.seek(0)
                    whole = self._is_whole(name, file)
                if whole:
                    part.replace(self._path / kept)
                    return
                part.unlink()  # begun by a killed process on a disk that lost some of it, or the source is damaged
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
        """Hold the lock on a file; wait as long as the process that has it goes on copying."""
        part, lock = self._path / f"{kept}.part", FileLock(self._path / f"{kept}.lock", mode=0o600)
        before = -1
        while True:
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
        """Remove the files of indexes that stood in this place earlier than the one before."""
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
