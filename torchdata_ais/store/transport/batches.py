"""GetBatch requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import AuthError, UsageError
from torchdata_ais.store.transport.attempts import Attempts, Cancelled, Failed, retried
from torchdata_ais.store.transport.body import WholeBody
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.concurrency_limit import ConcurrencyLimit
from torchdata_ais.store.transport.exchange import refuse_page, refused
from torchdata_ais.store.transport.framing import let_go
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.request import send_message
from torchdata_ais.store.transport.request_log import journal
from torchdata_ais.tar.header import NUL, pax_records, read_header
from torchdata_ais.urls import Location, bucket_of, parse_url

_BLOCK = 512
_FILES = (0, ord("0"))
_PAX = ord("x")
_PAX_BYTES = 64 << 10
_EXTENSION_BYTES = 1 << 20  # of all extension headers before one entry: `deadline` counts silence only
_PLACEHOLDER = "__404__/"
_REST = 64 << 10  # zeros that may follow the end; once read, the connection can be used again


class NotAsAskedError(Exception):
    """A successful answer contains something else than requested."""


class Asked(NamedTuple):
    """A requested range; `name` must be that of its entry."""

    number: int
    name: str
    start: int
    length: int


def entries_of(body: WholeBody, asked: Iterable[Asked]) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and bytes of each requested entry; None for a missing one.

    An entry is read only if its header has the requested name and size. It is a `NotAsAskedError` if the archive has
    other entries, ends early, or has more.

    Memory: one entry.
    """
    archive = _Archive(body)
    for one in asked:
        found = archive.header()
        if found is None:
            raise NotAsAskedError(f"the archive ended where {_shown(one)} was to come")
        if found == (_PLACEHOLDER + one.name, 0):
            yield one.number, None
            continue
        name, size = found
        if name != one.name:
            raise NotAsAskedError(f"{name[:200]!r} came in the place of {_shown(one)}")
        if size != one.length:
            raise NotAsAskedError(f"an entry of {size} bytes came in the place of {_shown(one)}")
        yield one.number, archive.data(one)
    more = archive.header()
    if more is not None or archive.take(_REST).strip(NUL):
        raise NotAsAskedError("the archive goes on after the last entry that was asked for")


def _shown(one: Asked) -> str:
    return f"the {one.length} bytes from {one.start} of {one.name}"


class _Archive:
    def __init__(self, body: WholeBody) -> None:
        self.take = body.take
        self._padding = 0  # after the entry before

    def header(self) -> tuple[str, int] | None:
        """Return name and size of the next entry; None where the archive ends."""
        said: dict[str, str] = {}
        extension = 0
        while True:
            before, self._padding = self._padding, 0
            block = self.take(before + _BLOCK)[before:]
            if len(block) < _BLOCK:
                raise NotAsAskedError("the answer ended before its archive did")
            if not (block[0] or block.strip(NUL)):
                return None
            try:
                kind, size, name = read_header(block)
                if kind == _PAX and size <= _PAX_BYTES:
                    extension += _BLOCK + size
                    if extension > _EXTENSION_BYTES:
                        raise NotAsAskedError(
                            f"more than {_EXTENSION_BYTES} bytes of extension headers came before one entry"
                        )
                    said = pax_records(self.take(size))
                    self._padding = -size % _BLOCK
                    continue
                size = int(said.get("size", size))
            except ValueError as error:
                raise NotAsAskedError(f"what came is no tar header: {error}") from None
            if kind not in _FILES:
                raise NotAsAskedError(f"a tar header of the kind {chr(kind)!r} came")
            return said.get("path", name), size

    def data(self, one: Asked) -> bytes:
        """Return the bytes of the entry."""
        data = self.take(one.length)
        if len(data) < one.length:
            raise NotAsAskedError(f"the answer ended within {_shown(one)}")
        self._padding = -one.length % _BLOCK
        return data


WantedRange = tuple["str | Location", int, int]
"""An object, the first byte, and how many bytes."""

_PLACES = 4096  # URLs taken apart that are kept
_UNKNOWN = (400, 404, 405, 501)  # statuses of servers that do not know the request


class _Entry(msgspec.Struct, omit_defaults=True):
    objname: str
    start: int
    length: int
    bucket: str = ""
    provider: str = ""


class _Request(msgspec.Struct):
    entries: list[_Entry] = msgspec.field(name="in")
    mime: str = ".tar"
    # With coer, a missing object is a special entry; without, it ends the archive.
    coer: bool = True
    # Names with their buckets.
    onob: bool = False
    strm: bool = True


@dataclass(frozen=True)
class BatchAnswer:
    """Outcome of a request for several ranges.

    Attributes:
        missing: The numbers of the ranges that did not come, in order.
        absent: Those of them whose objects the cluster lacks: deleted, or not fetched from the cloud yet.
        answered_as_asked: False if a successful answer contained entries that were not requested, or too few:
            clusters do that. The entries before were right.
        supported: False if the server does not know this kind of request.
        reason: Why not all came, for a message; ``""`` if only what is `absent` is missing.
    """

    missing: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    answered_as_asked: bool = True
    supported: bool = True
    reason: str = ""


def batch_group(url: str | Location, options: StoreOptions) -> tuple[str, ...]:
    """Return the key of objects that one request can contain.

    Raises `UsageError` for what is no object of AIStore, or made by a transform.

    Example:
        >>> options = StoreOptions("http://h:51080")
        >>> batch_group("ais://a/1.tar", options) == batch_group("ais://b/2.tar", options)
        True
        >>> batch_group("ais://a/1.tar", options) == batch_group("s3://a/1.tar", options)
        False
    """
    return _group(bucket_of(_place_of(url, options.endpoint)))


def read_batch(
    wanted: Sequence[WantedRange],
    options: StoreOptions,
    arrived: Callable[[int, bytes], object],
    *,
    cancel: Cancel | None = None,
    pace: ConcurrencyLimit | None = None,
) -> BatchAnswer:
    """Request ranges of many objects at once; pass on each complete one.

    The body is read as fast as it comes: clusters disconnect slow readers. A request that fails is repeated as the
    retry policy says, for what is missing then; an entry that came resets the count of attempts.

    Args:
        wanted: The ranges, all of one `batch_group`. Empty ranges are not requested.
        options: Endpoint, token, retries.
        arrived: Called with the number of a range in `wanted` and its bytes, at once and in order; it must not wait.
        cancel: Ends the call, from any thread. One serves one call at a time.
        pace: Bounds the requests in flight.

    Returns:
        The missing ranges, and why. Request them in another way: by `read_range`, one by one.

    Memory: one range, plus the memory of `arrived`.

    Raises:
        UsageError: The ranges do not fit into one request.
        NotFoundError: No such bucket.
        Cancelled: `cancel` was called.
        ConnectError, AuthError, StallError, ReadError: The rest could not be read.
    """
    places = [_place_of(url, options.endpoint) for url, _, _ in wanted]
    if not places:
        return BatchAnswer()
    first = places[0]
    if len({_group(bucket) for bucket in set(map(bucket_of, places))}) > 1:
        raise UsageError.at(
            "the ranges lie in places that one request cannot name", todo="group them by batch_group first"
        )
    missing = {
        number: Asked(number, f"{place.bucket}/{place.name}", start, length)
        for number, (place, (_, start, length)) in enumerate(zip(places, wanted, strict=True))
    }
    for number in [number for number, one in missing.items() if one.length < 1]:
        del missing[number]
        arrived(number, b"")
    absent: list[int] = []
    bucket = replace(first, name="")
    url = f"{first.endpoint}/v1/ml/moss/{first.bucket}?{urlencode(bucket.query)}"

    def ask(attempts: Attempts) -> BatchAnswer:
        if cancel is not None and cancel.cancelled:
            raise Cancelled
        asked = [one for one in missing.values() if one.number not in absent]
        if not asked:
            return BatchAnswer()
        body = _encoded(asked, places, first.bucket)
        with ExitStack() as turn:
            if pace is not None:
                turn.enter_context(pace.turn(cancel, attempts.left_s()))
            attempts.record = turn.enter_context(journal().asking(name, url, attempt=attempts.total))
            response = send_message(url, body, options, attempts)
            try:
                if response.status != 200:
                    return _refusal(response, url, options, attempts)
                refuse_page(response, url)
                last = asked[-1].number
                for number, data in entries_of(WholeBody(response, options, attempts), asked):
                    if data is None:
                        absent.append(number)
                    else:
                        del missing[number]
                        attempts.progress(len(data))
                        arrived(number, data)
                        del data  # or it would stay until the next one is whole
                    if number == last:
                        turn.close()  # targets take 100 ms to end an answer that has nothing more in it
            except NotAsAskedError as error:
                return BatchAnswer(answered_as_asked=False, reason=str(error))
            except Failed:
                if len(missing) > len(absent):
                    raise
            finally:
                let_go(response)
        return BatchAnswer()

    name = f"{bucket.uri} ({len(wanted)} ranges in one request)"
    answer = retried(ask, options.retry, name, bucket.uri, cancel)
    return replace(answer, missing=tuple(missing), absent=tuple(absent))


@lru_cache(_PLACES)
def _place_of(url: str | Location, endpoint: str) -> Location:
    place = parse_url(url).at(endpoint)
    place.require_endpoint()
    if place.kind != "object" or not place.name or place.params:
        raise UsageError.at(
            f"{place.uri} is no object as it is stored", todo="read it by itself", url=place.shown
        )
    return place


def _group(bucket: tuple[str, ...]) -> tuple[str, ...]:
    """Return the common bucket of a request, which it names once.

    An entry with its own bucket cannot name a namespace.
    """
    _, _, namespace, _ = bucket
    return bucket if namespace else bucket[:2]


def _encoded(asked: Sequence[Asked], places: Sequence[Location], bucket: str) -> bytes:
    entries = []
    for number, _, start, length in asked:
        place = places[number]
        if place.bucket == bucket:
            entries.append(_Entry(place.name, start, length))
        else:
            entries.append(_Entry(place.name, start, length, place.bucket, place.provider))
    return msgspec.json.encode(_Request(entries))


def _refusal(response: BaseHTTPResponse, url: str, options: StoreOptions, attempts: Attempts) -> BatchAnswer:
    """Return the meaning of an error status for a batch, or raise the error."""
    redirected = urlsplit(response.geturl() or url).path != urlsplit(url).path
    failed = refused(response, options, attempts)
    no_bucket = response.status == 404 and "bucket" in failed.what
    if failed.again or failed.kind is AuthError or no_bucket or response.status not in _UNKNOWN:
        raise failed
    # A target to which a proxy sent us does know the request, and finds something in it wrong.
    return BatchAnswer(answered_as_asked=False, supported=redirected, reason=failed.what)
