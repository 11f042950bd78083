"""Range reads, put, head and delete of single objects."""

from __future__ import annotations

import io
import itertools
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urljoin, urlsplit

import xxhash
from urllib3.response import BaseHTTPResponse

from torchdata_ais._util.files import naming
from torchdata_ais.errors import AISError, NotFoundError, ObjectChangedError, ReadError, UsageError
from torchdata_ais.store.objects.files import OpenFiles, file_facts, open_error, reading_failed
from torchdata_ais.store.objects.pages import list_bucket
from torchdata_ais.store.transport import tokens
from torchdata_ais.store.transport.attempts import Attempts, Failed, retried
from torchdata_ais.store.transport.body import WholeBody
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.concurrency_limit import ConcurrencyLimit
from torchdata_ais.store.transport.exchange import (
    drain,
    is_marked,
    is_page,
    not_aistore,
    refuse_page,
    refused,
)
from torchdata_ais.store.transport.framing import let_go
from torchdata_ais.store.transport.metadata import ObjectMetadata, length_of, range_of, response_metadata
from torchdata_ais.store.transport.options import ONE_TRY, StoreOptions
from torchdata_ais.store.transport.read_ahead import Stats
from torchdata_ais.store.transport.request import refused_read, send
from torchdata_ais.store.transport.request_log import display_name, journal
from torchdata_ais.urls import Location, ObjectURL, check_object, parse_url, redact

_CHUNK = 256 << 10
_IN_MEMORY = 8 << 20  # a stream longer than this is kept in a temporary file while it is sent

_Body = Callable[[], Iterator[bytes]]


def put_object(
    url: str | Location,
    data: bytes | BinaryIO | Iterable[bytes],
    options: StoreOptions,
    *,
    size: int | None = None,
    checksum: str = "",
) -> ObjectURL:
    """Store an object with the checksum of the intended bytes.

    Args:
        url: ``ais://bucket/name`` or an object URL.
        data: The bytes; a binary file, from its current position; or blocks of bytes. Blocks are first written to a
            temporary file, so that they can be sent again.
        options: Endpoint, token, retries.
        size: How many bytes `data` must have, if that is known.
        checksum: XXH64 of `data`, if that is a file of a known size and its writer has computed it. Then it is not
            read for that, and the cluster refuses a file that has changed.

    Returns:
        The object's URL with its size and checksum.

    Memory: at most 8 MiB in addition to `data`.

    Raises:
        NotFoundError: No such bucket.
        ConnectError, AuthError, StallError, ReadError: It could not be stored.
        UsageError: No object's name, one that no object can have, no endpoint, or another `size`.
    """
    url = parse_url(url)
    check_object(url)
    place, target = _place(url, options)
    with ExitStack() as stack:
        length, checksum, body = _replayable(data, stack, size, checksum)
        if size is not None and size != length:
            raise UsageError.at(
                f"{place.uri}: {length} bytes to store, not {size}", todo="correct size=", url=redact(target)
            )
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(length),
            # The answer may come before the whole body was sent: nothing else may follow on this connection.
            "Connection": "close",
            "Ais-Checksum-Type": "xxhash2",
            "Ais-Checksum-Value": checksum,
        }

        def put(attempts: Attempts) -> BaseHTTPResponse:
            response = _answered("PUT", target, options, attempts, headers, body)
            if not is_marked(response):
                _check_stored(place, target, options, attempts, checksum)
            return response

        response = retried(put, options.retry, place.uri, target)
    return ObjectURL(target, length, checksum, response.headers.get("Ais-Version"))


def head_object(url: str | Location, options: StoreOptions) -> ObjectURL:
    """Return the object's URL with its size, checksum and version.

    Raises:
        NotFoundError: No such bucket or object.
        ConnectError, AuthError, StallError, ReadError: The cluster does not answer.
    """
    place, target = _place(url, options)
    response = retried(partial(_answered, "HEAD", target, options), options.retry, place.uri, target)
    facts = response_metadata(response, place)
    size = length_of(response)
    if size is None and facts.checksum == xxhash.xxh64_hexdigest(b""):
        size = 0  # a node does not say so in the answer to HEAD
    return ObjectURL(target, size, facts.checksum, facts.version)


def target_of(url: str | Location, options: StoreOptions) -> str:
    """Return the endpoint of the target that has an object now.

    The cluster names it for one request: call this again for the next. `NotFoundError` if it names none.
    """
    place, target = _place(url, options)

    def ask(attempts: Attempts) -> str:
        response = send("HEAD", target, options, attempts, follow=False)
        if response.status >= 400:
            raise refused(response, options, attempts)
        location = urlsplit(urljoin(target, response.headers.get("Location", "")))
        drain(response)
        if response.status < 300 or location.scheme not in ("http", "https") or not location.netloc:
            raise Failed(NotFoundError, "the cluster named no target", "read the object itself", again=False)
        return f"{location.scheme}://{location.netloc}"

    return retried(ask, options.retry, place.uri, target)


def object_exists(url: str, options: StoreOptions) -> bool:
    """Return whether an object exists; a missing bucket has none."""
    try:
        head_object(url, options)
    except NotFoundError:
        return False
    return True


def delete_object(url: str, options: StoreOptions, *, missing_ok: bool = False) -> None:
    """Delete an object.

    Args:
        url: ``ais://bucket/name`` or an object URL.
        options: Endpoint, token, retries.
        missing_ok: Whether it is fine that there is none (also if an earlier try deleted it).

    Raises:
        NotFoundError: No such bucket or object.
        ConnectError, AuthError, StallError, ReadError: It could not be deleted.
    """
    place, target = _place(url, options)
    with suppress(NotFoundError) if missing_ok else nullcontext():
        retried(partial(_answered, "DELETE", target, options), options.retry, place.uri, target)


def _place(url: str | Location, options: StoreOptions) -> tuple[Location, str]:
    place = parse_url(url).at(options.endpoint)
    if place.kind != "object" or not place.name:
        raise UsageError.at(f"{place.uri} names no object", todo="write ais://bucket/name", url=place.shown)
    place.require_endpoint()
    return place, place.url()


def _answered(
    method: str,
    target: str,
    options: StoreOptions,
    attempts: Attempts,
    headers: dict[str, str] | None = None,
    body: _Body | None = None,
) -> BaseHTTPResponse:
    """Return the response with its body read; an error status is `Failed`."""
    response = send(method, target, options, attempts, headers=headers, body=body)
    if not 200 <= response.status < 300:
        raise refused(response, options, attempts)
    drain(response)
    # Responses to DELETE, and to PUT of bytes that are stored already, have no header of AIStore's. Nor have those to
    # PUT in a bucket that splits large objects.
    page = is_page(response.headers.get("Content-Type", ""))
    if not is_marked(response) and (page or method not in ("DELETE", "PUT")):
        raise _unmarked(method, target, options, response.status)
    return response


def _unmarked(method: str, target: str, options: StoreOptions, status: int) -> Failed:
    return not_aistore(
        options.endpoint or target, f"its answer {status} to {method} has no header of AIStore's"
    )


def _check_stored(
    place: Location, target: str, options: StoreOptions, attempts: Attempts, checksum: str
) -> None:
    """Raise `Failed` unless a cluster has the object of a PUT.

    Its answer had no header of AIStore's. AIStore answers like that to a PUT of bytes that it has already, also to
    the second try after a successful first one. A node of the cluster map that a proxy has named is trusted. With
    another host the object is checked.
    """
    answered_by = attempts.answered_by
    moved = tokens.origin(answered_by) != tokens.origin(target)
    if moved and tokens.is_node(answered_by, options):
        return
    response = send("HEAD", target, options, attempts)
    drain(response)
    if response.status >= 400 or not is_marked(response):
        raise _unmarked("PUT", target, options, 200)
    there = response_metadata(response, place).checksum
    comparable = there is not None and len(there) == len(checksum)  # a bucket may have another kind
    if comparable and there != checksum:
        raise Failed(
            ReadError, f"it was stored, and has the checksum {there} now, not {checksum}", again=False
        )


def _replayable(
    data: bytes | BinaryIO | Iterable[bytes], stack: ExitStack, size: int | None, checksum: str
) -> tuple[int, str, _Body]:
    """Return length, XXH64 and a function that yields the blocks again."""
    if isinstance(data, bytes | bytearray | memoryview):
        data = io.BytesIO(data)  # without a copy of bytes
    file, begin = _seekable(data, stack)
    length = size or 0
    if not (checksum and size):
        digest = xxhash.xxh64()
        length = 0
        while block := file.read(_CHUNK):
            digest.update(block)
            length += len(block)
        checksum = digest.hexdigest()

    def reread() -> Iterator[bytes]:
        file.seek(begin)
        left = length
        while left:
            block = file.read(min(_CHUNK, left))
            if not block:
                raise ReadError.at(
                    "the file to store became shorter while it was sent", todo="leave it alone"
                )
            left -= len(block)
            yield block

    return length, checksum, lambda: _until_answered(reread())


def _seekable(data: BinaryIO | Iterable[bytes], stack: ExitStack) -> tuple[BinaryIO, int]:
    """Return a file that can be read again, and where it begins."""
    seekable = getattr(data, "seekable", None)
    if hasattr(data, "read") and seekable is not None and seekable():
        file = cast("BinaryIO", data)
        return file, file.tell()
    spool = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 - it is one
    read = getattr(data, "read", None)
    blocks: Iterable[bytes] = iter(lambda: read(_CHUNK), b"") if read else data
    for block in blocks:
        with naming(tempfile.gettempdir()):
            spool.write(block)
    with naming(tempfile.gettempdir()):
        spool.seek(0)
    return cast("BinaryIO", spool), 0


def _until_answered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces until the server answers: proxies redirect at once."""
    for piece in pieces:
        if Cancel.current().answered():
            return
        yield piece


_NUMBER = re.compile(r"(?<!\d)\d+(?!\d)(?=\D*\Z)")
_PATTERN = re.compile(r"%\d*d(?!\w)|\{\w+(?::\w+)?\}")


def with_neighbours(error: NotFoundError, url: str, options: StoreOptions, named: int = 0) -> NotFoundError:
    """Return the error for the missing object `url` with a listing hint.

    It takes one request for one page of the listing. Without a number in the name it returns `error`. `named` is how
    many objects templates named.
    """
    place = parse_url(url)
    if place.kind in ("http", "stdin"):
        return error
    stem, found, _ = place.name.rpartition("/")
    if pattern := _PATTERN.search(place.name):
        what = "as of a writer" if pattern[0].startswith("%") else "as of an f-string without its f"
        return _renamed(
            error,
            f"{place.uri} does not exist: {pattern[0]!r} in it is a placeholder, {what}",
            "name shards by a template of two numbers, such as train-{000000..000009}.tar",
        )
    number = _NUMBER.search(place.name, len(stem) + len(found))
    if number is None:
        return error
    prefix = place.name[: number.start()]
    try:
        if place.kind == "file":
            folder = Path(place.name).parent
            names = sorted(str(folder / one.name) for one in folder.iterdir())
            names = [name for name in names if name.startswith(prefix)]
            where, uri = "the folder", place.name
        else:
            entries = list_bucket(place, prefix, replace(options, retry=ONE_TRY), first_page=True)
            names = [entry.name for entry in entries]
            where, uri = "the bucket", place.uri
    except (AISError, OSError):
        return error
    if place.name in names:
        return error  # the cluster lists it and does not give it: that is another matter
    beginning = prefix.rpartition("/")[2]
    there = f"{len(names)} that begin with {beginning!r}" if names else f"none that begins with {beginning!r}"
    wanted = f"{named} objects are named by templates, and " if named else ""
    todo = "check the spelling of bucket and name"
    if names:
        every = f"{place.name[: number.start()]}*{place.name[number.end() :]}"
        every = every if place.kind == "file" else replace(place, name=prefix).uri
        todo = _remedy_of_gap(place.name, number.span(), names, every)
    return _renamed(error, f"{uri} does not exist: {wanted}{where} has {there}", todo)


def _renamed(error: NotFoundError, what: str, todo: str) -> NotFoundError:
    """Return the error with other sentences."""
    told = NotFoundError.at(what, todo=todo, **error.place)
    told.status = error.status
    told.__cause__, told.__suppress_context__ = error.__cause__, True
    return told


_SHOWN = 3
_PAGE = 1000  # a cluster may put as few on a page: of more names some may not be known


def _remedy_of_gap(name: str, digits: tuple[int, int], names: list[str], every: str) -> str:
    """Return the remedy for a missing name, given names with its beginning.

    `digits` is where its number is; `every` names all of them.

    Example:
        >>> _remedy_of_gap("t-3.tar", (2, 3), ["t-1.tar", "t-4.tar", "t-10.tar"], "ais://b/t-")
        '7 numbers are missing between 1 and 10: t-2.tar, t-3.tar, t-5.tar and more. Name all that are there by ais://b/t-'
    """
    begin, end = name[: digits[0]], name[digits[1] :]
    texts = [one[len(begin) : len(one) - len(end)] for one in names if one.endswith(end)]
    known = {int(text): text for text in texts if text.isascii() and text.isdigit()}
    if not known or len(names) >= _PAGE:
        return f"name only what is there, such as {names[0]}; all of it is named by {every}"
    first, last = min(known), max(known)
    if not first < int(name[slice(*digits)]) < last:
        return f"name only what is there, {begin}{known[first]}{end} to {begin}{known[last]}{end}"
    missing = (number for number in range(first, last) if number not in known)
    is_padded = any(len(text) > 1 and text[0] == "0" for text in known.values())
    width = digits[1] - digits[0] if is_padded else 1
    shown = [f"{begin}{number:0{width}d}{end}" for number in itertools.islice(missing, _SHOWN)]
    count = last - first + 1 - len(known)
    more = " and more" if count > _SHOWN else ""
    what = "1 number is" if count == 1 else f"{count} numbers are"
    return f"{what} missing between {first} and {last}: {', '.join(shown)}{more}. Name all that are there by {every}"


_PIECE = 1 << 20


def read_range(
    url: str | Location,
    start: int,
    length: int,
    options: StoreOptions,
    *,
    known: ObjectMetadata | None = None,
    stats: Stats | None = None,
    cancel: Cancel | None = None,
    pace: ConcurrencyLimit | None = None,
    files: OpenFiles | None = None,
    parts: Sequence[int] = (),
    arrived: Callable[[bytes | memoryview], object] | None = None,
) -> bytes:
    """Return at most `length` bytes of an object from byte `start` on.

    They are fewer if it ends before, none past its end.

    Args:
        url: ``ais://bucket/name``, an object URL, a web URL, or a file.
        start: The first byte.
        length: How many bytes; 0 sends no request.
        options: Endpoint, token, retries.
        known: The expected metadata. With it a server that sends the whole object instead of a range is an error,
            too: many ranges of one object are needed then.
        stats: Counts bytes and retries.
        cancel: Ends the call, from any thread. One serves one call at a time.
        pace: Bounds the requests in flight.
        files: Keeps a file open for the next read of it.
        parts: Sizes of the parts for `arrived`, together `length`.
        arrived: Called with each part that a server sends, valid until it returns; nothing is returned then. The last
            is shorter if the object ends before. A range that breaks off is continued with the first missing part.
            Ignored for a file.

    Memory: the returned bytes, or the larger of 512 KiB and a part.

    Raises:
        NotFoundError: No such bucket or object.
        ObjectChangedError: It is not the one that is known.
        UsageError: The server does not support ranges, and `known` is given.
        Cancelled: `cancel` was called.
        ConnectError, AuthError, StallError, ReadError: It could not be read.
    """
    place = parse_url(url).at(options.endpoint)
    place.require_endpoint()
    if length < 1:
        return b""
    if place.kind == "file":
        with nullcontext(files) if files is not None else closing(OpenFiles()) as opened:
            return _of_file(place, start, length, known, opened)
    target = place.url()
    stats = stats or Stats()
    end, left = start + length, deque(parts)

    def get(attempts: Attempts) -> bytes:
        begin = start if arrived is None else end - sum(left)
        with (
            nullcontext() if pace is None else pace.turn(cancel, attempts.left_s()),
            journal().asking(display_name(place), target, begin, attempts.total) as attempts.record,
        ):
            return get_now(attempts, begin)

    def get_now(attempts: Attempts, begin: int) -> bytes:
        rest = end - begin
        wanted = {"Range": f"bytes={begin}-{end - 1}"}
        to_cluster = place.kind == "object"
        response = send("GET", target, options, attempts, with_token=to_cluster, headers=wanted)
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
            is_whole = response.status == 200  # from a server that knows no ranges
            expected = rest if is_whole else _extent(response, begin, rest)
            body = _body_from(response, begin if is_whole else 0, attempts, options)
            if arrived is not None:
                came = 0
                while came < expected:  # less than all if the object ends before
                    size = min(left[0], expected - came)
                    part = body.view(size)
                    came += len(part)
                    if len(part) < size:
                        if not is_whole:
                            raise attempts.broke_off(f"{came} bytes came of {expected}", came)
                        expected = came
                    left.popleft()
                    attempts.progress(len(part))
                    stats.bytes += len(part)
                    arrived(part)
                return b""
            data = body.take(expected)
            if not is_whole and len(data) != expected:
                raise attempts.broke_off(f"{len(data)} bytes came of {expected}", len(data))
            return data
        finally:
            let_go(response)

    data = retried(get, options.retry, place.uri, target, cancel)
    stats.bytes += len(data)
    return data


def _of_file(
    place: Location, start: int, length: int, known: ObjectMetadata | None, files: OpenFiles
) -> bytes:
    try:
        file = files.open(place.name)
    except (OSError, ValueError) as error:
        raise open_error(place.name, error) from error
    found = file_facts(file.fileno())
    difference = known.difference(found) if known is not None else ""
    if difference:
        raise _changed(place, difference)
    try:
        # A forged length is not requested: its memory would be allocated first.
        return os.pread(file.fileno(), max(0, min(length, (found.size or 0) - start)), start)
    except OSError as error:
        files.close(place.name)  # a network file system may find it again
        raise reading_failed(place.name, start, error) from error


def _check(response: BaseHTTPResponse, place: Location, known: ObjectMetadata) -> None:
    """Raise if the headers are of another object, or of all of it."""
    difference = known.difference(response_metadata(response, place))
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
    """Return the size of the answer to a range, from its headers."""
    found = range_of(response)
    if found is None or found.first != start:
        raise Failed(ReadError, "the server sent another range than was requested", "look at that node")
    last = start + length - 1
    if found.total is not None:
        last = min(last, found.total - 1)
    if found.last != last:
        what = f"the server sent bytes {found.first} to {found.last}, not to {last}"
        raise Failed(ReadError, what, "look at that node")
    return last - start + 1


def _body_from(response: BaseHTTPResponse, skip: int, attempts: Attempts, options: StoreOptions) -> WholeBody:
    """Return the body after its first `skip` bytes."""
    body = WholeBody(response, options, attempts)
    while skip and (dropped := body.take(min(skip, _PIECE))):
        skip -= len(dropped)
    return body
