"""Listing of buckets and objects, page by page.

A listing is read page after page under one deadline; each page has something new, every entry is checked. It does not
use the SDK, whose import takes half a second: commands and trainings start with a listing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import xxhash

from torchdata_ais.errors import ReadError
from torchdata_ais.store.objects.sdk import ask
from torchdata_ais.store.transport.attempts import Attempts, retried, series
from torchdata_ais.store.transport.exchange import UNREADABLE, not_aistore, quoted
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.urls import Location, object_fault, redact

_T = TypeVar("_T")
_log = logging.getLogger("torchdata_ais")
_MSGPACK = "application/msgpack"
_PAGE_NAMES = 0  # as many as the cluster gives
_SMALL_PAGE = 1000  # no kind of bucket refuses it
_IN_SMALL_PAGES = 10_000  # a longer listing takes pages as large as the cluster gives
_PROPS = "name,size,checksum,version,flags"
_PROXY = "look at the log of the proxy, or name the objects with a template: then nothing is listed"
_NAMED = (
    "list by a narrower prefix, or name the objects with a template; if the bucket has such an object, remove it "
    "with the AIStore SDK, else look at the log of the proxy"
)
_NAME_BYTES, _TOKEN_BYTES = 4096, 16384
_OBJECT_BYTES = 1 << 50
_BARREN_PAGES = 100  # a cluster may skip deleted entries, or repeat an entry while it moves objects
_MOST = 10_000_000
_IS_DIRECTORY = 1 << 8
_IS_CHUNKED = 1 << 13


class _Object(msgspec.Struct):
    """An object on a page: name, checksum, version, size, flags."""

    n: str
    cs: str = ""
    v: str = ""
    s: int = 0
    f: int = 0


class _Page(msgspec.Struct, rename="pascal"):
    """A page of a listing."""

    uuid: str = msgspec.field(name="UUID")
    continuation_token: str
    flags: int
    entries: list[_Object] | None = None


class _Namespace(msgspec.Struct):
    uuid: str = ""
    name: str = ""


class _Bucket(msgspec.Struct):
    name: str
    provider: str = ""
    namespace: _Namespace = msgspec.field(default_factory=_Namespace)


class Entry(NamedTuple):
    """Metadata of one object in a listing; `chunked` if it is stored in parts."""

    name: str
    size: int
    checksum: str | None
    version: str | None
    chunked: bool = False


class _Listing:
    """Entries listed so far; refuses invalid ones."""

    def __init__(self, name: str, prefix: str, *, whole: bool = False) -> None:
        self.name = name
        self._whole = whole
        self._prefix = prefix
        self._found: dict[str, Entry] = {}
        self._tokens: set[int] = set()
        self._barren = 0
        self._directories = 0
        self._moving = False

    def __len__(self) -> int:
        return len(self._found)

    def add(self, page: _Page) -> None:
        """Take the entries of a page; one that is on two pages counts once."""
        before = len(self._found)
        for entry in page.entries or ():
            if entry.f & _IS_DIRECTORY or (entry.n.endswith("/") and entry.s == 0):
                self._directories += 1  # a folder entry; AIStore stores no object under such a name
                continue
            self._check(entry.n, entry.s)
            chunked = bool(entry.f & _IS_CHUNKED)
            found = Entry(entry.n, entry.s, entry.cs or None, entry.v or None, chunked)
            if self._found.setdefault(entry.n, found).chunked < chunked:
                self._found[entry.n] = found  # listed twice: a node that stores parts decides
        if len(self._found) > _MOST:
            raise ReadError.at(f"{self.name}: more than {_MOST:,} objects", todo="list by narrower prefixes")
        self._barren = self._barren + 1 if len(self._found) == before else 0
        if page.flags and self._whole:
            raise ReadError.at(
                f"{self.name} may be incomplete: the cluster is moving objects between its nodes (rebalance)",
                todo="wait until that has ended",
            )
        if page.flags and not self._moving:
            self._moving = True
            _log.warning(
                "%s may be incomplete: the cluster is moving objects between its nodes (rebalance). "
                "Wait until that has ended, or name the shards with a template",
                self.name,
            )

    def check_going_on(self, uuid: str, token: str) -> None:
        """Check that the next page differs from all before it."""
        if len(token) > _TOKEN_BYTES or len(uuid) > _NAME_BYTES:
            raise ReadError.at(f"{self.name}: a continuation token of {len(token)} letters", todo=_PROXY)
        digest = xxhash.xxh3_64_intdigest(token.encode())
        if digest in self._tokens:
            raise ReadError.at(f"{self.name}: the same continuation token came twice", todo=_PROXY)
        if self._barren >= _BARREN_PAGES:
            raise ReadError.at(f"{self.name}: {self._barren} pages in a row brought nothing new", todo=_PROXY)
        self._tokens.add(digest)

    def _check(self, name: str, size: int) -> None:
        """Refuse an entry that is not one of the requested objects."""
        todo = _PROXY
        if not name:
            why = "it has no name"
        elif not name.startswith(self._prefix):
            why = f"that does not begin with {self._prefix!r}"
        elif why := object_fault(name):
            todo = _NAMED
        elif not 0 <= size < _OBJECT_BYTES:
            why = f"it has {size} bytes"
        else:
            return
        shown = repr(name if len(name) <= 200 else name[:200] + "...")
        raise ReadError.at(f"{self.name}: the entry {shown} cannot be right: {why}", todo=todo)

    def entries(self) -> list[Entry]:
        """Return the objects by name."""
        if self._directories:
            _log.info("%s: %d entries are directories, not objects", self.name, self._directories)
        return [self._found[name] for name in sorted(self._found)]


def list_bucket(
    place: Location, prefix: str, options: StoreOptions, *, first_page: bool = False, whole: bool = False
) -> list[Entry]:
    """Return the objects of a bucket whose names begin with `prefix`, by name.

    The deadline of `options` is that of the whole listing. With `whole`, one that may be incomplete is a `ReadError`;
    else that is logged.

    Raises:
        ConnectError, AuthError, NotFoundError, StallError: The cluster does not answer, or not within the deadline.
        ReadError: Another server answers; or a listed entry is invalid: the message names it.
    """
    return _list(place, prefix, options, most=0 if first_page else None, whole=whole)[0].entries()


def list_at_most(place: Location, prefix: str, most: int, options: StoreOptions) -> list[Entry] | None:
    """Return the objects as `list_bucket` does, or None if there are more.

    Pages are small, and those after `most` objects are not read.
    """
    listing, is_whole = _list(place, prefix, options, most=most)
    return listing.entries() if is_whole else None


def _list(
    place: Location, prefix: str, options: StoreOptions, *, most: int | None = None, whole: bool = False
) -> tuple[_Listing, bool]:
    """Read pages until there are `most` objects, and report if that is all."""
    uri = replace(place, name=prefix).uri
    options = replace(options, endpoint=place.endpoint)
    url = f"{place.endpoint}/v1/buckets/{quote(place.bucket, safe='')}?{urlencode(place.query)}"
    size = min(most, _SMALL_PAGE) if most and most <= _IN_SMALL_PAGES else _PAGE_NAMES
    wanted = {"prefix": prefix, "pagesize": size, "props": _PROPS, "flags": "0", "target": ""}
    wanted |= {"uuid": "", "continuation_token": ""}
    listing = _Listing(f"listing {uri}", prefix, whole=whole)

    def page(attempts: Attempts) -> _Page:
        answer = ask(url, _message(wanted), options, attempts, accept=_MSGPACK)
        if answer.kind != _MSGPACK:
            got = f"{answer.kind or 'no type'}, {quoted(answer.body)}" if answer.body else "nothing"
            why = f"a listing is {_MSGPACK}, and it answered {answer.status} with {got}"
            raise not_aistore(options.endpoint, why)
        return _decoded(_page, answer.body, options)

    with series(options.retry, listing.name, uri, host=redact(options.endpoint)) as attempts:
        while True:
            found = attempts.run(page)
            listing.add(found)
            if not found.continuation_token:
                return listing, True
            if most is not None and len(listing) >= most:
                return listing, False
            listing.check_going_on(found.uuid, found.continuation_token)
            wanted |= {"uuid": found.uuid, "continuation_token": found.continuation_token}


def list_buckets(options: StoreOptions, provider: str = "") -> list[Location]:
    """Return the buckets of a cluster in its order.

    Args:
        options: Endpoint, retry policy and timeouts.
        provider: AIStore's name of the only one wanted.

    Raises:
        ConnectError, AuthError, StallError: The cluster does not answer.
        ReadError: Another server answers.
    """
    url = f"{options.endpoint}/v1/buckets?{urlencode({'provider': provider})}"

    def buckets(attempts: Attempts) -> list[_Bucket]:
        answer = ask(url, _message(None), options, attempts, accept="application/json")
        return _decoded(_buckets, answer.body, options)

    found = retried(buckets, options.retry, "list of buckets", options.endpoint)
    places = []
    for one in found:
        space = one.namespace
        path = f"@{space.uuid}#{space.name}" if space.uuid or space.name else ""
        places.append(Location("object", "", one.name, one.provider or "ais", path))
    return [place for place in places if not provider or place.provider == provider]


def _message(value: object) -> object:
    return {"action": "list", "name": "", "value": value}


_page = msgspec.msgpack.Decoder(_Page)
_buckets = msgspec.json.Decoder(list[_Bucket])


def _decoded(
    decoder: msgspec.msgpack.Decoder[_T] | msgspec.json.Decoder[_T], data: bytes, options: StoreOptions
) -> _T:
    """Return the decoded answer; `Failed` if it is not of this type."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:  # msgspec's own are ValueError
        why = f"its answer cannot be decoded ({type(error).__name__}: {error})"
        raise not_aistore(options.endpoint, why) from error
