"""The listing of a bucket: page after page under one deadline, each with something new, every entry looked at."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any, NamedTuple

import xxhash

from torchdata_ais.errors import ReadError
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.sdk import asking, sdk_bucket, sdk_client
from torchdata_ais.urls import Location

_log = logging.getLogger("torchdata_ais")
_PROPS = "name,size,checksum,version"
_PROXY = "look at the log of the proxy, or name the objects with a template: then nothing is listed"
_NAME_BYTES, _TOKEN_BYTES = 4096, 16384
_OBJECT_BYTES = 1 << 50
_BARREN_PAGES = (
    100  # a cluster may pass over what has been deleted, or say an entry twice while it moves objects
)
_MOST = 10_000_000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_IS_DIRECTORY = 1 << 8


class Entry(NamedTuple):
    """What the listing says about one object."""

    name: str
    size: int
    checksum: str | None
    version: str | None


class _Listing:
    """What has been listed so far; refuses what no cluster lists."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self._prefix = prefix
        self._found: dict[str, Entry] = {}
        self._tokens: set[int] = set()
        self._barren = 0
        self._directories = 0
        self._moving = False

    def add(self, page: Any) -> None:
        """Take the entries of a page; one that is on two pages counts once."""
        before = len(self._found)
        for entry in page.entries:
            if entry.f & _IS_DIRECTORY or (entry.n.endswith("/") and entry.s == 0):
                self._directories += (
                    1  # stands for what is below it; AIStore stores no object under such a name
                )
                continue
            self._check(entry.n, entry.s)
            self._found.setdefault(entry.n, Entry(entry.n, entry.s, entry.cs or None, entry.v or None))
        if len(self._found) > _MOST:
            raise ReadError.at(f"{self.name}: more than {_MOST:,} objects", todo="list by narrower prefixes")
        self._barren = self._barren + 1 if len(self._found) == before else 0
        if page.flags and not self._moving:
            self._moving = True
            _log.warning(
                "%s may be incomplete: the cluster is moving objects between its nodes (rebalance). "
                "Wait until that has ended, or name the shards with a template",
                self.name,
            )

    def check_going_on(self, uuid: str, token: str) -> None:
        """See that the page to ask for next is another one than all before it."""
        if len(token) > _TOKEN_BYTES or len(uuid) > _NAME_BYTES:
            raise ReadError.at(f"{self.name}: a continuation token of {len(token)} letters", todo=_PROXY)
        digest = xxhash.xxh3_64_intdigest(token.encode())
        if digest in self._tokens:
            raise ReadError.at(f"{self.name}: the same continuation token came twice", todo=_PROXY)
        if self._barren >= _BARREN_PAGES:
            raise ReadError.at(f"{self.name}: {self._barren} pages in a row brought nothing new", todo=_PROXY)
        self._tokens.add(digest)

    def _check(self, name: str, size: int) -> None:
        """Refuse an entry that is none of the objects asked for."""
        if not name:
            why = "it has no name"
        elif not name.startswith(self._prefix):
            why = f"that does not begin with {self._prefix!r}"
        elif _UNPRINTABLE.search(name) or len(name) > _NAME_BYTES:
            why = "no object has such a name"
        elif not {".", ".."}.isdisjoint(name.split("/")):
            why = "in a URL that is the name of another object"
        elif not 0 <= size < _OBJECT_BYTES:
            why = f"it has {size} bytes"
        else:
            return
        shown = repr(name if len(name) <= 200 else name[:200] + "...")
        raise ReadError.at(f"{self.name}: the entry {shown} cannot be right: {why}", todo=_PROXY)

    def entries(self) -> list[Entry]:
        """Return the objects by name."""
        if self._directories:
            _log.info("%s: %d entries are directories, not objects", self.name, self._directories)
        return [self._found[name] for name in sorted(self._found)]


def list_bucket(
    place: Location, prefix: str, options: StoreOptions, *, first_page: bool = False
) -> list[Entry]:
    """Return the objects of a bucket whose names begin with `prefix`, by name.

    Args:
        place: The bucket, with its endpoint.
        prefix: The beginning of the names wanted.
        options: Retry policy and timeouts. Its deadline is that of the whole listing.
        first_page: Ask for no further page.

    Raises:
        ConnectError, AuthError, NotFoundError, StallError: The cluster cannot be asked, or not within the deadline.
        ReadError: Somebody else answers; or what is listed cannot be: the message names the entry.
    """
    uri = replace(place, name=prefix).uri
    options = replace(options, endpoint=place.endpoint)
    listing = _Listing(f"listing {uri}", prefix)
    with sdk_client(options) as client, asking(options, listing.name, uri) as ask:
        bucket = sdk_bucket(client, place)
        uuid = token = ""
        while True:
            page = ask(
                lambda uuid=uuid, token=token: bucket.list_objects(  # type: ignore[misc]
                    prefix=prefix, props=_PROPS, uuid=uuid, continuation_token=token
                )
            )
            listing.add(page)
            uuid, token = page.uuid, page.continuation_token
            if not token or first_page:
                return listing.entries()
            listing.check_going_on(uuid, token)
