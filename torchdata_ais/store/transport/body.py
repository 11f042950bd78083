"""Bodies of responses, verified and continued after breaks.

A body that breaks off is continued where the last whole read ended. By ``Range`` if the object can be recognised
(version or checksum, both the same as before). Otherwise (transforms, servers without ranges or versions) it is read
again from its first byte, and the hash of the bytes passed on before must match. So all returned bytes are those of
the last response.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from io import BufferedReader, BytesIO, RawIOBase
from math import inf
from traceback import clear_frames
from typing import Any, TypeVar
from urllib.parse import urlsplit

import xxhash
from urllib3 import exceptions as fault
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import AISError, ChecksumError, ObjectChangedError, ReadError, StallError
from torchdata_ais.errors.redaction import with_causes
from torchdata_ais.errors.text import Remedy
from torchdata_ais.store.transport.attempts import Attempts, Cancelled, Failed
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.concurrency_limit import concurrency_limit_of
from torchdata_ais.store.transport.exchange import UNREADABLE, refuse_page, root
from torchdata_ais.store.transport.framing import StrictResponse, let_go, plain_body, strict_body
from torchdata_ais.store.transport.metadata import (
    Hash,
    ObjectMetadata,
    hash_maker,
    is_derived,
    range_of,
    response_metadata,
)
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.read_ahead import Reader
from torchdata_ais.store.transport.request import refused_read, send
from torchdata_ais.store.transport.request_log import display_name, journal
from torchdata_ais.urls import Location, redact

_E = TypeVar("_E", bound=AISError)
_D = TypeVar("_D")
_PIN = "; StoreOptions(pin=False) takes what is there at the start"
_NODE = "look at the node that holds the object"


class HTTPReader(Reader):
    """Reader of one object or web file, for one thread at a time."""

    def __init__(self, location: Location, options: StoreOptions, start: int, known: ObjectMetadata) -> None:
        self._derived = is_derived(location)
        super().__init__(options, start, ObjectMetadata() if self._derived else known)
        self._location = location
        self._url = location.url()
        self._pace = concurrency_limit_of(urlsplit(self._url).netloc, options.node_requests, opening=True)
        self._attempts = Attempts(options.retry, self.cancel, location.uri, self._url)
        self._ranges = not self._derived
        self._begun = False
        # Of the bytes passed on: compared with the checksum at the end, or with a second reading.
        self._new_hash: Callable[[], Hash] | None = None
        self._hash: Hash | None = None
        self._compare = False

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes from `start` on, in blocks of at most ``block_bytes``."""
        attempts = self._attempts
        while True:
            attempts.total += 1
            try:
                with journal().asking(
                    display_name(self._location), self._url, self._offset, attempts.total
                ) as attempts.record:
                    with self.cancel.lent():
                        response = self._open()
                    try:
                        yield from self._read(response)
                    finally:
                        self.cancel.watch(None)
                        let_go(response)
                break
            except Failed as caught:
                failed = caught
            attempts.failed(failed, self._offset)
            self.stats.retries = attempts.retries
        self._check_end()

    def check_overdue(self) -> None:
        """End a step that takes too long."""
        self._attempts.check_overdue()

    def _open(self) -> BaseHTTPResponse:
        """Return a response whose body starts at the present offset."""
        headers = {}
        ranged = self._offset > 0 and self._ranges and (self.facts.identifying or self._offset == self._start)
        if ranged:
            headers["Range"] = f"bytes={self._offset}-"
            if self._location.kind == "http" and (self.facts.version or "").startswith('"'):
                headers["If-Range"] = self.facts.version or ""
        options = self._options
        if ranged and self._begun and options.stall_timeout:
            # The object was there a moment ago: no cold start to wait for, and its node may have died.
            patience = min(options.stall_timeout, options.first_byte_timeout or options.stall_timeout)
            options = replace(options, first_byte_timeout=patience)
        with ExitStack() as turn:
            with self._attempts.waiting():
                # Of a stream only its beginning is bounded: how long its body takes is the reader's affair.
                turn.enter_context(self._pace.turn(self.cancel, self._attempts.left_s()))
            with self._attempts.waiting():
                to_cluster = self._location.kind == "object"
                response = send(
                    "GET", self._url, options, self._attempts, with_token=to_cluster, headers=headers
                )
            if self.stats.first_byte_s is None:
                self.stats.first_byte_s = self._attempts.record.first_byte_s
            try:
                self._accept(response, ranged)
            except BaseException:
                response.close()
                raise
            finally:
                self._attempts.expect()
        return response

    def _accept(self, response: BaseHTTPResponse, ranged: bool) -> None:
        """Compare the headers with the known metadata.

        Read over bytes that were already passed on.
        """
        status = response.status
        if status == 416 and self.facts.size is not None and self._offset < self.facts.size:
            raise self._changed(f"it has no byte {self._offset} any more")
        if status not in (200, 206):
            raise refused_read(response, self._location, self._options, self._attempts)
        if self._location.kind == "object" and not self._derived:
            refuse_page(response, self._options.endpoint or self._url)
        Cancel.current().set_timeout(self._attempts.bound(self._options.stall_timeout))
        found = response_metadata(response, self._location)
        self._check_same(response, found, ranged)
        self.facts.adopt(found)
        self._begin_hash()
        if status == 200 and self._offset:
            self._skip(response)

    def _check_same(self, response: BaseHTTPResponse, found: ObjectMetadata, ranged: bool) -> None:
        """Raise if this is another object, or not the range that was requested."""
        status = response.status
        if status == 206:
            part = range_of(response)
            if not ranged or part is None or part.first != self._offset:
                self._ranges = False
                raise Failed(ReadError, "the server sent another range than was requested", _NODE)
        difference = self.facts.difference(found)
        if status == 206 and difference.startswith("checksum"):
            # It may be the checksum of the range (a setting of the bucket): the whole object's decides.
            self._ranges = False
            raise Failed(
                ReadError, f"in the answer for the rest of the object, {difference}", _NODE, after_s=0.0
            )
        if difference:
            raise self._changed(difference)
        nameless = self._offset > self._start and not found.identifying
        if nameless and status == 206:
            self._ranges = False
            raise Failed(ReadError, "the rest has neither version nor checksum", after_s=0.0)
        if nameless and self._hash is None:
            raise self._changed("it has neither version nor checksum any more")

    def _begin_hash(self) -> None:
        """Choose the hash of this body, before its first byte."""
        if self._begun:
            return
        self._begun = True
        facts = self.facts
        if self._options.verify and self._start == 0 and facts.checksum:
            self._new_hash = hash_maker(facts.checksum, facts.hash_name)
            self._compare = self._new_hash is not None
        self._note_unverified(self._location.uri)
        if self._new_hash is None and not (facts.identifying and self._ranges):
            self._new_hash = xxhash.xxh64
        self._hash = None if self._new_hash is None else self._new_hash()

    def _skip(self, response: BaseHTTPResponse) -> None:
        """Read the bytes already passed on again; they must be the same."""
        again = None if self._new_hash is None or self._offset == self._start else self._new_hash()
        position = 0
        while position < self._offset:
            edge = self._start if position < self._start else self._offset
            data = self._read1(response, min(self._options.block_bytes, edge - position))
            if not data:
                raise self._broken_off(f"{position}", position)
            if again is not None and position >= self._start:
                again.update(data)
            position += len(data)
        if again is not None and self._hash is not None and again.hexdigest() != self._hash.hexdigest():
            raise self._changed(f"its first {position} bytes are not those read before")

    def _read(self, response: BaseHTTPResponse) -> Iterator[bytes]:
        attempts, stats, block_bytes = self._attempts, self.stats, self._options.block_bytes
        record = attempts.record
        update = self._hash.update if self._hash is not None else None
        plain = plain_body(response)
        end = sys.maxsize if self.facts.size is None else self.facts.size
        while data := self._read1(plain or response, block_bytes):
            size = len(data)
            if self._offset + size > end:
                raise Failed(ReadError, f"more bytes than the {end} of the object", again=False)
            if update is not None:
                update(data)
            self._offset += size
            stats.bytes += size
            record.bytes += size
            attempts.progress(size)
            yield data
        if self.facts.size is not None and self._offset < self.facts.size:
            raise self._broken_off(f"{self._offset} of {self.facts.size}")
        if plain is not None:
            plain.close()  # or urllib3, which does not know that it was read, would take it for broken off

    def _broken_off(self, where: str, byte: int | None = None) -> Failed:
        failed = self._attempts.broke_off(
            f"the body broke off at byte {where}", self._offset if byte is None else byte
        )
        failed.says_byte = True
        return failed

    def _read1(self, body: BaseHTTPResponse | StrictResponse, size: int) -> bytes:
        """Return the next bytes, at most `size`; ``b""`` at the end of the body."""
        begin = time.monotonic()
        self._check_deadline()
        try:
            if isinstance(body, StrictResponse):
                return body.read_once(size)
            return self._read_framed(body, size)
        except (fault.ReadTimeoutError, TimeoutError) as error:
            what = f"no byte came for {time.monotonic() - begin:.1f} s at byte {self._offset}"
            todo = Remedy("look at the load of the node", "raise stall_timeout=")
            raise Failed(StallError, what, todo, says_byte=True) from error
        except (fault.HTTPError, HTTPException, OSError, *UNREADABLE) as error:
            if self.cancel.cancelled:
                raise Cancelled from error
            self._attempts.check_interrupted(error)
            size_text = "" if self.facts.size is None else f" of {self.facts.size}"
            raise self._broken_off(f"{self._offset}{size_text} ({root(error)})") from error
        finally:
            took_s = time.monotonic() - begin
            self._attempts.record.read_s += took_s
            self._attempts.waited(took_s)

    def _read_framed(self, response: BaseHTTPResponse, size: int) -> bytes:
        """Read a body whose frames need more than one read of the socket.

        A server may send it byte by byte.
        """
        attempts = self._attempts
        attempts.expect(attempts.bound(self._options.stall_timeout))
        try:
            with self.cancel.lent():
                data = response.read1(size)
            attempts.check_interrupted()
            return data
        finally:
            attempts.expect()

    def _check_deadline(self) -> None:
        left = self._attempts.left_s()
        if left <= 0:
            deadline_s = self._options.retry.deadline
            raise self._attempts.too_late(
                f"the deadline of {deadline_s:g} s has passed at byte {self._offset}"
            )
        if left < (self._options.stall_timeout or inf):
            self.cancel.set_timeout(left)

    def _check_end(self) -> None:
        if not self._compare or self._hash is None:
            self.verified = False
            return
        checksum = self.facts.checksum
        digest = self._hash.hexdigest()
        if digest != checksum:
            what = f"the body has the checksum {digest}, the cluster stored {checksum}"
            todo = (
                "read it again; if it fails again the object is damaged or changed under way: store it anew"
            )
            raise self._error(ChecksumError, what, todo)
        self.verified = True

    def _changed(self, difference: str) -> ObjectChangedError:
        begun = f" after {self._offset} bytes were read" if self._offset > self._start else ""
        todo = Remedy("list again, and write new versions under new names", _PIN)
        return self._error(ObjectChangedError, f"the object changed{begun}: {difference}", todo)

    def _error(self, kind: type[_E], what: str, todo: str) -> _E:
        return kind.at(
            f"{self._location.uri}: {what}",
            todo=todo,
            url=redact(self._url),
            offset=self._offset,
            attempt=self._attempts.total,
        )


# Taken from the socket at once: each read costs system calls, and a turn of the interpreter.
_BUFFER = 256 << 10
_ROOM = 64 << 10  # in a buffer, that is worth receiving into
_MOST_PARTS = 1024  # in buffers, of one request; beyond that they are joined
_MOST_BYTES = 512 << 10
_LINE = 4 << 10  # of a chunk's length with its extensions, or a trailer
_TRAILERS = 100
_FIRST = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\n]*)?\r\n")
_NEXT = re.compile(rb"\r\n" + _FIRST.pattern)  # the end of the previous chunk comes first
_NO_LENGTH = re.compile(rb".{2}[^\n]*\n", re.DOTALL)  # a line, and it was not taken for one


class _Spare(threading.local):
    """The buffer that the last body of this thread used."""

    buffer: bytearray | None = None


_spare = _Spare()


class ChunkedBody:
    """Reader of a chunked body, in place of `http.client`.

    `http.client` reads 8 KiB and the rest of a chunk one after the other, and copies the joined parts once more.

    Memory: 512 KiB, of which the next body of the thread uses one half again; at most 512 KiB more for a request of
    that size.
    """

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._source: Any = response.fp
        # Only while bytes are taken, so that the references form no circle.
        self._receive: Callable[[memoryview], int] | None = None
        self._buffer = _spare.buffer or bytearray(_BUFFER)
        _spare.buffer = None
        self._view = memoryview(self._buffer)
        self._at = self._end = 0  # bounds of the rest of the buffer
        self._parts: list[memoryview] = []  # of the request, in this buffer and in full ones
        self._full: list[bytearray] = []
        self._free: bytearray | None = None
        self._left = 0  # of the chunk
        self._begins = _FIRST
        self._over = False

    def take(self, size: int, receive: Callable[[memoryview], int] | None = None) -> bytes:
        """Return the next `size` bytes; fewer only at the end of the body.

        `receive` is called in place of `received`, which it calls. A broken body or frame is an `HTTPException`.
        """
        at = self._at
        if size <= self._left and size <= self._end - at:  # all is in the buffer, as usual
            self._at = at + size
            self._left -= size
            return bytes(self._view[at : at + size])
        self._receive = receive or self.received
        parts, came, put = self._parts, 0, 0
        whole: BytesIO | None = None
        try:
            while came < size and (self._left or self._next_chunk()):
                at, end, left = self._at, self._end, self._left
                if at == end:
                    self._fill()
                    continue
                count = size - came
                if count > left:
                    count = left
                if count > end - at:
                    count = end - at
                parts.append(self._view[at : at + count])
                self._at = at + count
                self._left = left - count
                came += count
                if came - put >= _MOST_BYTES or len(parts) >= _MOST_PARTS:
                    whole = whole or BytesIO()
                    whole.writelines(parts)
                    put = came
                    self._let_go()
            if whole is None:
                return b"".join(parts)
            whole.writelines(parts)
            return whole.getvalue()  # without a copy
        finally:
            self._receive = None
            self._let_go()

    def _let_go(self) -> None:
        """Forget the parts; keep one of the buffers they lay in."""
        self._parts.clear()
        if self._full:
            self._free = self._full.pop()
            self._full.clear()

    def _next_chunk(self) -> bool:
        """Advance to the next chunk; return False at the end of the body."""
        if self._over:
            return False
        while (found := self._begins.match(self._buffer, self._at, self._end)) is None:
            if self._end - self._at > _LINE or _NO_LENGTH.match(self._buffer, self._at, self._end):
                raise HTTPException("the length of a chunk is no number")
            self._fill()
        self._at = found.end()
        self._begins = _NEXT
        self._left = int(found[1], 16)
        if self._left:
            return True
        for _ in range(_TRAILERS):
            if not self._line():
                break
        else:
            raise HTTPException(f"more than {_TRAILERS} trailers follow the body")
        self._over = True
        _spare.buffer = self._buffer
        self._response.chunk_left = None
        self._response._close_conn()  # type: ignore[attr-defined]
        return False

    def _line(self) -> bytes:
        """Return the next line, without its end."""
        while True:
            stop = self._buffer.find(b"\r\n", self._at, self._end)
            if stop >= 0:
                line = bytes(self._view[self._at : stop])
                self._at = stop + 2
                return line
            if self._end - self._at > _LINE:
                raise HTTPException("a line between chunks does not end")
            self._fill()

    def _fill(self) -> None:
        """Receive more bytes after the rest of the buffer."""
        kept = self._end - self._at
        if not kept and not self._parts:
            self._at = self._end = 0
        elif _BUFFER - self._end < _ROOM:
            rest = bytes(self._view[self._at : self._end])  # a part of a line
            if self._parts:
                self._full.append(self._buffer)
                self._buffer, self._free = self._free or bytearray(_BUFFER), None
                self._view = memoryview(self._buffer)
            self._view[:kept] = rest
            self._at, self._end = 0, kept
        count = self._receive(self._view[self._end :]) if self._receive is not None else 0
        if not count:
            raise RemoteDisconnected("the connection was closed within the body")
        self._end += count

    def received(self, view: memoryview) -> int:
        """Fill `view` with received bytes; return their number, 0 at the end."""
        if self._source is self._response.fp:  # bytes that came with the head
            early: bytes = self._source.read1(len(view))
            self._source = self._source.raw
            view[: len(early)] = early
            if early:
                return len(early)
        count: int = self._source.readinto(view)
        return count


_VIEW = 512 << 10  # the most that is received into a buffer that is used again
_PIECE = 128 << 10  # must come within the stall timeout
_MIB = 1 << 20
_AHEAD = 16 * _MIB  # received without a copy: more than one request for adjacent samples has


def _clear_frames(error: BaseException) -> None:
    """Clear local variables of the frames that an error has ended."""
    for one in with_causes(error):
        clear_frames(one.__traceback__)


class _Receiving(RawIOBase):
    """The next `size` bytes that `receive` puts into a view, as a file."""

    def __init__(self, receive: Callable[[memoryview], int], size: int) -> None:
        self._receive = receive
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, view: memoryview) -> int:  # type: ignore[override]
        count = self._receive(view[: self._left]) if self._left else 0
        self._left -= count
        return count


class WholeBody:
    """Reader of a whole body within the stall timeout and the deadline.

    `size` counts the bytes received so far, of a chunked body with its frames.

    Memory: the bytes taken; for views 512 KiB, or one that is larger.
    """

    def __init__(self, response: BaseHTTPResponse, options: StoreOptions, attempts: Attempts) -> None:
        strict = strict_body(response)
        self._chunked: ChunkedBody | None = None
        self._read_into: Callable[[memoryview], int]
        if strict.chunked and strict.fp is not None:
            self._chunked = ChunkedBody(strict)
            self._read_into = self._chunked.received
        else:
            self._read_into = strict.read_into
        self._attempts = attempts
        self._stall_s = attempts.bound(options.stall_timeout)
        self._deadline_s = options.retry.deadline
        self._due = time.monotonic() + attempts.left_s()
        # Bytes that must come within the stall timeout; 0: it is not set, below: they came.
        self._expected = 0
        self.size = 0
        self._buffer: memoryview | None = None
        Cancel.current().set_timeout(self._stall_s)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer if the body ends regularly."""
        if size < 1:
            return b""
        if self._chunked is not None:
            return self._guarded(self._chunked.take, size, self._received)
        return self._guarded(self._filled, size)

    def view(self, size: int) -> bytes | memoryview:
        """Return what `take` returns, but valid only until the next call."""
        if self._chunked is not None or size > _VIEW:
            return self.take(size)
        if self._buffer is None:
            self._buffer = memoryview(bytearray(_VIEW))
        return self._guarded(self._fill, self._buffer[:size])

    def _fill(self, view: memoryview) -> memoryview:
        """Fill `view` with the next bytes of a body that is not chunked."""
        came = 0
        while came < len(view) and (count := self._received(view[came:])):
            came += count
        return view[:came]

    def _guarded(self, read: Callable[..., _D], *given: object) -> _D:
        """Return `read(*given)`; an error of reading is a `Failed`."""
        attempts = self._attempts
        try:
            data = read(*given)
            if self._expected:
                attempts.check_interrupted()
        except (fault.ReadTimeoutError, TimeoutError) as error:
            what = f"no byte came for too long after {self.size}"
            raise Failed(StallError, what, "look at the load of the node") from error
        except (fault.HTTPError, HTTPException, OSError, *UNREADABLE) as error:
            attempts.check_interrupted(error)
            what = f"the body broke off after {self.size} bytes ({root(error)})"
            raise attempts.broke_off(what, self.size) from error
        finally:
            if self._expected:
                attempts.expect()
                self._expected = 0
        return data

    def _filled(self, size: int) -> bytes:
        """Return the next bytes of a body that is not chunked."""
        step = min(size, _AHEAD)  # memory for promised bytes is allocated in steps
        # It receives into memory that becomes the result: without zeros before, without a copy after.
        source = BufferedReader(_Receiving(self._received, size))
        try:
            data = source.read(step)
            if step == size:
                return data
            whole = BytesIO()
            while data:
                whole.write(data)
                data = source.read(min(size - whole.tell(), _AHEAD))
            return whole.getvalue()
        except BaseException as error:
            _clear_frames(error)  # they hold views of memory that is free now
            raise

    def _received(self, view: memoryview) -> int:
        """Receive into `view`, within the time that there is for each 128 KiB."""
        attempts = self._attempts
        begin = time.monotonic()
        if begin > self._due + self.size / _MIB:
            what = f"the deadline of {self._deadline_s:g} s has passed after {self.size} bytes"
            raise attempts.too_late(what)
        if self._expected <= 0:
            if self._expected:
                attempts.check_interrupted()
            attempts.expect(self._stall_s)
            self._expected = _PIECE
        try:
            count = self._read_into(view)
        finally:
            attempts.record.read_s += time.monotonic() - begin
        self._expected = self._expected - count or -1
        self.size += count
        attempts.record.bytes += count
        return count
