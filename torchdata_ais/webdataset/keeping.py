"""Web files on local disk, beside the objects that `ObjectCache` keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from torchdata_ais.errors import AISError, UsageError
from torchdata_ais.store import ObjectCache, StoreOptions, open_blocks
from torchdata_ais.urls import ObjectURL, parse_url, redact
from torchdata_ais.webdataset.handlers import Handler

__all__ = ["FileKeeper", "kept_web_files"]

logger = logging.getLogger("torchdata_ais")


@dataclass(frozen=True)
class FileKeeper(ObjectCache):
    """An `ObjectCache` that keeps web files, too: by URL, ``ETag`` (or ``Last-Modified``) and size.

    The server is asked each time, so a file that changed there is fetched anew. One that it gives no version of is
    not kept, and neither is what a transform makes of an object; that is logged once.
    """

    said: set[str] = field(default_factory=set, repr=False, compare=False)

    def fetch(self, url: ObjectURL, options: StoreOptions) -> tuple[Path, ObjectURL] | None:
        """Return the local file, downloaded if needed, and what is known of the object; None for what is not kept."""
        place = parse_url(url)
        if place.kind != "http":
            if place.kind == "object" and place.params:
                self._say("what a transform makes of an object is", url)
            return super().fetch(url, options)
        with open_blocks(url, options) as blocks:
            next(blocks, None)
            known = ObjectURL(url, blocks.size, blocks.checksum, blocks.version)
        if known.version is None:
            self._say("a web file of which the server tells neither ETag nor Last-Modified is", url)
            return None
        name = xxhash.xxh128_hexdigest(repr((str(url), known.version, known.size)).encode())
        path = Path(self.folder) / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._touch(path):
            with self._locked(path, known):
                if not self._touch(path):
                    self._download(known, path, options)
                    self._evict(keep=path)
        return path, known

    def _say(self, what: str, url: str) -> None:
        if what not in self.said:
            self.said.add(what)
            text = "%s not kept in cache_dir=%s, but read anew each time: %s"
            logger.warning(text, what, self.folder, redact(url))


def kept_web_files(
    shards: Iterator[str], keeper: FileKeeper, options: StoreOptions, names: dict[str, str], handler: Handler
) -> Iterator[str]:
    """Yield the shards, with the local file in place of a web file.

    Args:
        shards: URLs.
        keeper: Where to keep files.
        options: Transport settings.
        names: Where a local file is entered, with its URL.
        handler: Called when a file cannot be fetched.
    """
    for shard in shards:
        kept = None
        place = parse_url(shard)
        if place.kind == "http" or place.params:
            try:
                kept = keeper.fetch(ObjectURL(shard), options)
            except UsageError:
                raise
            except AISError as error:
                if not handler(error):
                    return
                continue
        if kept is None:
            yield shard
        else:
            names[str(kept[0])] = shard
            yield str(kept[0])
