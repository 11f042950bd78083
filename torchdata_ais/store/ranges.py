"""A range of bytes of one object or web file: asked for whole, read to its end, checked to be what was asked for."""

from __future__ import annotations

import os
from contextlib import nullcontext

from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import ObjectChangedError, ReadError, UsageError
from torchdata_ais.store.attempts import Attempts, Failed, retried
from torchdata_ais.store.cancel import Cancel
from torchdata_ais.store.exchange import drain, refuse_page
from torchdata_ais.store.facts import Facts, facts_of, range_of
from torchdata_ais.store.files import file_facts, open_error, reading_failed
from torchdata_ais.store.framing import let_go
from torchdata_ais.store.journal import journal, told_name
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.pace import Pace
from torchdata_ais.store.reader import Stats
from torchdata_ais.store.request import refused_read, send
from torchdata_ais.store.whole_body import WholeBody
from torchdata_ais.urls import Location, parse_url, redact
from torchdata_ais.whole_file import open_regular

_PIECE = 1 << 20


def read_range(
    url: str | Location,
    start: int,
    length: int,
    options: StoreOptions,
    *,
    known: Facts | None = None,
    stats: Stats | None = None,
    cancel: Cancel | None = None,
    pace: Pace | None = None,
) -> bytes:
    """Return at most `length` bytes of an object from byte `start` on; fewer if it ends before, none past its end.

    Args:
        url: ``ais://bucket/name``, an object URL, a web URL, or a file.
        start: The first byte.
        length: How many bytes; 0 asks for none.
        options: Endpoint, token, retries.
        known: What the object must be. With it a server that sends all of it, instead of a range, is an error, too:
            many ranges of one object are wanted then.
        stats: Counts bytes and retries.
        cancel: Ends the call, from any thread. One serves one call at a time.
        pace: Bounds the requests in flight.

    Memory: what is returned.

    Raises:
        NotFoundError: No such bucket or object.
        ObjectChangedError: It is not the one that is known.
        UsageError: The server knows no ranges, and `known` is given.
        Cancelled: `cancel` was called.
        ConnectError, AuthError, StallError, ReadError: It could not be read.
    """
    place = parse_url(url).at(options.endpoint)
    place.require_endpoint()
    if length < 1:
        return b""
    if place.kind == "file":
        return _of_file(place, start, length, known)
    target = place.url()

    def get(attempts: Attempts) -> bytes:
        with (
            nullcontext() if pace is None else pace.turn(cancel, attempts.left_s()),
            journal().asking(told_name(place), target, start, attempts.total) as attempts.record,
        ):
            return get_now(attempts)

    def get_now(attempts: Attempts) -> bytes:
        wanted = {"Range": f"bytes={start}-{start + length - 1}"}
        to_cluster = place.kind == "object"
        response = send("GET", target, options, attempts, with_token=to_cluster, headers=wanted)
        if stats is not None:
            stats.retries += attempts.total > 1
        try:
            if response.status == 416:
                drain(response)
                return b""
            if response.status not in (200, 206):
                raise refused_read(response, place, options, attempts)
            if to_cluster:
                refuse_page(response, options.endpoint or target)
            if known is not None:
                _check(response, place, known)
            if response.status == 200:  # a server that knows no ranges sends all of it
                return _body(response, start, length, attempts, options)
            expected = _extent(response, start, length)
            data = _body(response, 0, expected, attempts, options)
            if len(data) != expected:
                raise attempts.broke_off(f"{len(data)} bytes came of {expected}", len(data))
            return data
        finally:
            let_go(response)

    data = retried(get, options.retry, place.uri, redact(target), cancel)
    if stats is not None:
        stats.bytes += len(data)
    return data


def _of_file(place: Location, start: int, length: int, known: Facts | None) -> bytes:
    try:
        file = open_regular(place.name)
    except (OSError, ValueError) as error:
        raise open_error(place.name, error) from error
    with file:
        found = file_facts(file.fileno())
        difference = known.difference(found) if known is not None else ""
        if difference:
            raise _changed(place, difference)
        try:
            # A length that is forged is not asked for: its memory would be taken first.
            return os.pread(file.fileno(), max(0, min(length, (found.size or 0) - start)), start)
        except OSError as error:
            raise reading_failed(place.name, start, error) from error


def _check(response: BaseHTTPResponse, place: Location, known: Facts) -> None:
    """Raise if the headers say that the object is not the one known, or that all of it comes."""
    difference = known.difference(facts_of(response, place))
    if difference:
        raise _changed(place, difference)
    if response.status == 200:
        raise UsageError.at(
            f"{place.uri}: the server sends all of it where a range is asked for",
            todo="read it as a stream (load_tar), or put the shards on a server that knows ranges", url=place.shown,
        )  # fmt: skip


def _changed(place: Location, difference: str) -> ObjectChangedError:
    return ObjectChangedError.at(
        f"{place.uri} is another one than was indexed: {difference}",
        todo="index it again (torchdata-ais index), or restore the object", url=place.shown,
    )  # fmt: skip


def _extent(response: BaseHTTPResponse, start: int, length: int) -> int:
    """Return how many bytes the answer to a range has, as its headers say."""
    found = range_of(response)
    if found is None or found.first != start:
        raise Failed(ReadError, "the server sent a range nobody asked for", "look at that node")
    last = start + length - 1
    if found.total is not None:
        last = min(last, found.total - 1)
    if found.last != last:
        what = f"the server sent bytes {found.first} to {found.last}, not to {last}"
        raise Failed(ReadError, what, "look at that node")
    return last - start + 1


def _body(
    response: BaseHTTPResponse, skip: int, length: int, attempts: Attempts, options: StoreOptions
) -> bytes:
    """Return `length` bytes of the body after the first `skip`, or as many as there are."""
    body = WholeBody(response, options, attempts)
    while skip and (dropped := body.take(min(skip, _PIECE))):
        skip -= len(dropped)
    return body.take(length)
