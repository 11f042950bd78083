"""Web files on local disk, beside the objects that `ObjectCache` keeps."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from torchdata_ais.store import Kept, ObjectCache, StoreOptions, open_blocks
from torchdata_ais.urls import Location, ObjectURL, parse_url

logger = logging.getLogger("torchdata_ais")


@dataclass(frozen=True)
class FileKeeper(ObjectCache):
    """An `ObjectCache` that keeps web files, too: by URL, ``ETag`` (or ``Last-Modified``) and size.

    The server is asked each time, so a file that changed there is fetched anew. One that it gives no version of is
    not kept, and neither is what a transform makes of an object; that is logged once.

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
        """Return the open file, downloaded if needed, with what is known of the object; None for what is not kept."""
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
