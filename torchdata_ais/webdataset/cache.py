"""Shards as files; `WebDataset(cache_dir=)` needs none of them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from torchdata_ais._util.files import open_regular
from torchdata_ais.errors import UsageError
from torchdata_ais.samples import Fields
from torchdata_ais.store import (
    Cluster,
    Kept,
    ObjectCache,
    StoreOptions,
    cluster_options,
    given_options,
    open_blocks,
)
from torchdata_ais.store.objects.cache import delete_oldest
from torchdata_ais.store.objects.files import open_error
from torchdata_ais.urls import Location, ObjectURL, parse_url
from torchdata_ais.webdataset.commands import PREFIX, named_by, with_commands
from torchdata_ais.webdataset.gopen import open_stream
from torchdata_ais.webdataset.handlers import Handler, handled, reraise_exception
from torchdata_ais.webdataset.left_out import explaining

logger = logging.getLogger("torchdata_ais")


@dataclass(frozen=True)
class FileKeeper(ObjectCache):
    """An `ObjectCache` that keeps web files, too, by URL, ``ETag`` and size.

    Without an ``ETag``, ``Last-Modified`` counts. Each time a request checks the server, so a file that changed there
    is fetched again. One without a version is not kept, and neither is the output of a transform; that is logged once.

    Attributes:
        said: What was logged.
        paths: Where web files are kept, by their URLs as samples show them.
    """

    said: set[str] = field(default_factory=set, repr=False, compare=False)
    paths: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, cache: ObjectCache) -> FileKeeper:
        """Return `cache`, or one for the same folder that keeps web files, too."""
        return cache if isinstance(cache, cls) else cls(cache.folder, cache.max_bytes, cache.wait_s)

    def open(self, url: str | Location, options: StoreOptions) -> Kept | None:
        """Return the open file, downloaded if need be; None if it is not kept."""
        place = parse_url(url)
        if place.kind != "http":
            if place.kind == "object" and place.params:
                self._say("what a transform makes of an object is", place)
            return super().open(place, options)
        with open_blocks(place, options) as blocks:
            next(blocks, None)
            known = ObjectURL(place.written, blocks.size, blocks.checksum, blocks.version)
        if known.version is None:
            self._say("a web file of which the server tells neither ETag nor Last-Modified is", place)
            return None
        kept = self._kept(repr((str(place.written), known.version, known.size)), known, options)
        self.paths[place.shown] = str(kept.path)
        return kept

    def _say(self, what: str, place: Location) -> None:
        if what not in self.said:
            self.said.add(what)
            text = "%s not kept in cache_dir=%s, but read anew each time: %s"
            logger.warning(text, what, self.folder, place.shown)


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """Return the end of the path in `url`, with `ndir` folders.

    The cache here uses no such names, which can collide.

    Example:
        >>> url_to_cache_name("http://host/train/s.tar", ndir=1)
        'train/s.tar'
    """
    assert isinstance(url, str)
    parts = urlsplit(url)
    if parts.scheme not in ("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais"):
        return quote(url, safe="_+{}*,-")[-128:]
    return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])


class StreamingOpen:
    """Yield ``{"url", "stream"}`` for each shard, ``"local_path"`` of a file.

    A shard that is not a local file is opened by the first read. `verbose` has no effect.
    """

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        del verbose
        self.handler = handler

    def __call__(self, urls: Iterable[object]) -> Iterator[Fields]:
        """Open one shard after the other."""
        return handled(map(named_by, with_commands(urls)), self._open, self.handler, "url_opener")

    def get_file(self, url: str) -> str | None:
        """Return the file with the shard; None for a shard that is in none."""
        if url.startswith(PREFIX):  # also a `Command`
            return None
        place = parse_url(url)
        return place.name if place.kind == "file" else None

    def _open(self, url: str) -> Fields:
        path = self.get_file(url)
        if path is None:
            return {"url": url, "stream": open_stream(url)}
        try:
            stream = open_regular(path)
        except (OSError, ValueError) as error:
            raise open_error(path, error) from error
        return {"url": url, "stream": stream, "local_path": path}


class FileCache(StreamingOpen):
    """Keep objects of AIStore and web files in a folder; open all others.

    Args:
        cache_dir: The folder; by default ``_cache``.
        url_to_name, verbose: No effect: a file is kept under its name, version and checksum.
        validator: Called with the path of a file that was fetched; False is an error. Size and checksum are checked
            before it.
        handler: Called when a shard cannot be fetched.
        cache_size: Most bytes to keep; -1 for no limit.
        cache_cleanup_interval: No effect: the limit holds after each download.
        cluster: See `torchdata_ais.store.Cluster`.

    Raises:
        TransportError, ChecksumError: An object could not be fetched whole.
        UsageError: The validator refused a file; the handler is not called.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], bool] | None = None,
        handler: Handler = reraise_exception,
        cache_size: int = -1,
        cache_cleanup_interval: float = 30,
        cluster: Cluster = None,
    ) -> None:
        del url_to_name, cache_cleanup_interval
        super().__init__(verbose, handler)
        self.cache_dir = os.fspath(cache_dir or "_cache")
        self.validator = validator
        self.options = given_options(cluster)
        self._cache = FileKeeper(self.cache_dir, 1 << 62 if cache_size < 0 else cache_size)

    def get_file(self, url: str) -> str | None:
        """Return the file with the shard, fetched if need be; None if not kept."""
        path = super().get_file(url)
        if path is None and not url.startswith(PREFIX):
            kept = self._cache.fetch(url, cluster_options(self.options))
            path = None if kept is None else str(kept[0])
            if path is not None and self.validator is not None and not self.validator(path):
                Path(path).unlink(missing_ok=True)
                raise UsageError.at("the validator refused what was fetched", url=url)
        return path


class LRUCleanup:
    """Delete the least recently used files until the rest is small enough.

    They are the files of a folder, with all below it.

    Args:
        cache_dir: The folder.
        cache_size: Most bytes to leave.
        keyfn: Function of a path: the least value goes first. By default the time of the last use or change.
        interval: Seconds between two looks at the folder; None looks each time.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: float = 1e12,
        keyfn: Callable[[str], object] | None = None,
        verbose: bool = False,
        interval: float | None = 30,
    ) -> None:
        del verbose
        self.cache_dir = cache_dir
        self.cache_size = cache_size
        self.keyfn = keyfn or _last_use
        self.interval = interval
        self.last_run = float("-inf")

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Choose the folder."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Delete the excess."""
        now = time.monotonic()
        if self.cache_dir is None or (self.interval is not None and now - self.last_run < self.interval):
            return
        self.last_run = now
        found = []
        for path in Path(self.cache_dir).rglob("*"):
            with suppress(FileNotFoundError):  # other processes clean up, too
                if path.is_file():
                    found.append((self.keyfn(str(path)), path.stat().st_size, path))
        delete_oldest(found, self.cache_size)


def _last_use(path: str) -> float:
    status = os.stat(path)  # noqa: PTH116 - a key function is given text
    return max(status.st_atime, status.st_mtime)


__getattr__ = explaining(__name__)
