"""Web files on local disk, beside the objects that `ObjectCache` keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchdata_ais.errors import NEVER_SKIPPED, AISError
from torchdata_ais.store import Kept, ObjectCache, StoreOptions, open_blocks
from torchdata_ais.urls import ObjectURL, parse_url
from torchdata_ais.webdataset.handlers import Handler

__all__ = ["FileKeeper", "kept_web_files"]


@dataclass(frozen=True)
class FileKeeper(ObjectCache):
    """An `ObjectCache` that keeps web files, too: by URL, ``ETag`` (or ``Last-Modified``) and size.

    The server is asked each time, so a file that changed there is fetched anew. One that it gives no version of is
    not kept.
    """

    def open(self, url: ObjectURL, options: StoreOptions) -> Kept | None:
        """Return the open file, downloaded if needed, with what is known of the object; None for what is not kept."""
        if parse_url(url).kind != "http":
            return super().open(url, options)
        with open_blocks(url, options) as blocks:
            next(blocks, None)
            known = ObjectURL(url, blocks.size, blocks.checksum, blocks.version)
        if known.version is None:
            return None
        return self._kept(repr((str(url), known.version, known.size)), known, options)


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
        if parse_url(shard).kind == "http":
            try:
                kept = keeper.fetch(ObjectURL(shard), options)
            except NEVER_SKIPPED:
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
