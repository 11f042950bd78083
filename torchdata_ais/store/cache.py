"""A cache of whole objects on local disk, for clusters that are far away.

AIStore itself is the cache in front of cloud buckets; this one is for readers on a slow or costly line to AIStore.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from torchdata_ais.errors import StallError, UsageError
from torchdata_ais.store.objects import head_object
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.source import open_blocks
from torchdata_ais.urls import ObjectURL, parse_url

__all__ = ["ObjectCache"]

_STALE_S = 3600.0  # an unfinished download older than this has lost its process


@dataclass(frozen=True)
class ObjectCache:
    """Objects kept in a folder, shared by all processes that name it.

    An object is found by its name, version and checksum: a new version is another entry, objects of the same name
    in different buckets never meet. It is downloaded under a temporary name, checked against size and checksum, and
    only then appears under its own. Processes that want the same object wait for the one that downloads it; the
    lock dies with its process.

    Attributes:
        folder: Where to keep them; made if it does not exist.
        max_bytes: When more is kept, the objects used longest ago are deleted. An object being read stays
            readable until it is closed. The disk may for a moment hold one object more for each process.
        wait_s: How long to wait for another process that downloads the same object.

    Example:
        >>> cache = ObjectCache("/tmp/shards", max_bytes=10 << 30)
        >>> cache.fetch(ObjectURL("/data/local.tar"), StoreOptions()) is None
        True
    """

    folder: str
    max_bytes: int
    wait_s: float = 1800.0

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise UsageError.at(f"cache_bytes={self.max_bytes}", todo="give the cache some bytes")

    def fetch(self, url: ObjectURL, options: StoreOptions) -> tuple[Path, ObjectURL] | None:
        """Return the local file with the object, downloaded if needed, and what is known of the object.

        Args:
            url: The object. What is no plain object of AIStore (files, web files, transformed objects) is not cached.
            options: Transport settings.

        Returns:
            None for what is not cached.

        Raises:
            TransportError, ChecksumError: It could not be downloaded whole.
            StallError: Another process has been downloading it for longer than `wait_s`.
        """
        place = parse_url(url)
        if place.kind != "object" or place.params:
            return None
        if url.checksum is None or url.version is None:
            url = head_object(url, options)
        name = xxhash.xxh128_hexdigest(repr((place.uri, url.version, url.checksum, url.size)).encode())
        path = Path(self.folder) / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._touch(path):
            with self._locked(path, url):
                if not self._touch(path):
                    self._download(url, path, options)
                    self._evict(keep=path)
        return path, url

    @staticmethod
    def _touch(path: Path) -> bool:
        """Mark the file as used now; return whether it is there."""
        try:
            # The time of change stays: a reader of the file would take the file for changed.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _locked(self, path: Path, url: ObjectURL) -> Iterator[None]:
        lock = FileLock(path.with_suffix(".lock"))
        try:
            lock.acquire(timeout=self.wait_s)
        except Timeout:
            raise StallError.at(
                f"another process has been downloading the object into {self.folder} for {self.wait_s:g} s",
                todo="look for a hanging process with that cache folder, or use another folder",
                url=str(url),
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _download(self, url: ObjectURL, path: Path, options: StoreOptions) -> None:
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        part = Path(name)
        try:
            with (
                os.fdopen(handle, "wb") as file,
                open_blocks(
                    url, options, version=url.version, checksum=url.checksum, size=url.size
                ) as blocks,
            ):
                file.writelines(blocks)  # to the end: only then size and checksum are checked
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _evict(self, keep: Path) -> None:
        """Delete what was used longest ago until the rest fits, and what crashed downloads left."""
        found: list[tuple[float, int, Path]] = []
        for file in Path(self.folder).glob("??/*"):
            with suppress(FileNotFoundError):  # another process evicts, too
                status = file.stat()
                if file.suffix == ".part":
                    if time.time() - status.st_mtime > _STALE_S:
                        file.unlink()
                elif file.suffix != ".lock":
                    found.append((status.st_atime, status.st_size, file))
        total = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if total <= self.max_bytes:
                return
            if file != keep:
                with suppress(FileNotFoundError):
                    file.unlink()
                total -= size
