"""The body of one object over HTTP: read in blocks, continued after breaks, verified at its end.

A body that breaks off is continued where the last whole read ended. By ``Range`` if the object can be
recognised (version or checksum, both the same as before). Otherwise (transforms, servers without ranges or
versions) it is read again from its first byte, and what was passed on before must come again, by its hash:
the bytes handed out are then exactly those of the last response.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPException
from typing import TypeVar
from urllib.parse import urlsplit

import xxhash
from urllib3 import exceptions as fault
from urllib3.response import BaseHTTPResponse

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import AISError, ChecksumError, ObjectChangedError, ReadError, StallError
from torchdata_ais.store.attempts import Attempts, Cancelled, Failed
from torchdata_ais.store.cancel import Cancel
from torchdata_ais.store.exchange import UNREADABLE, refuse_page, root
from torchdata_ais.store.facts import Facts, facts_of, is_derived, range_of
from torchdata_ais.store.framing import StrictResponse, let_go, plain_body
from torchdata_ais.store.hashes import Hash, hash_maker
from torchdata_ais.store.journal import journal, told_name
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.pace import pace_of
from torchdata_ais.store.reader import Reader
from torchdata_ais.store.request import refused_read, send
from torchdata_ais.urls import Location, redact

_E = TypeVar("_E", bound=AISError)
_PIN = "; StoreOptions(pin=False) takes what is there at the start"
_NODE = "look at the node that holds the object"


class HTTPReader(Reader):
    """Reads one object or web file, for one thread at a time.

    Attributes:
        facts: What is known about the object, more once the response has begun.
        verified: True after the whole body had the checksum stored; False after a body that was not
            compared; None before the end.
    """

    def __init__(self, location: Location, options: StoreOptions, start: int, known: Facts) -> None:
        self._derived = is_derived(location)
        super().__init__(options, start, Facts() if self._derived else known)
        self._location = location
        self._url = location.url()
        self._pace = pace_of(urlsplit(self._url).netloc, options.node_requests, opening=True)
        self._attempts = Attempts(options.retry, self.cancel, location.uri, redact(self._url))
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
                    told_name(self._location), self._url, self._offset, attempts.total
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
        """Return a response whose body stands at the present offset."""
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
        """Check the headers against what is known; read over what was passed on already."""
        status = response.status
        if status == 416 and self.facts.size is not None and self._offset < self.facts.size:
            raise self._changed(f"it has no byte {self._offset} any more")
        if status not in (200, 206):
            raise refused_read(response, self._location, self._options, self._attempts)
        if self._location.kind == "object" and not self._derived:
            refuse_page(response, self._options.endpoint or self._url)
        Cancel.current().set_timeout(self._attempts.bound(self._options.stall_timeout))
        found = facts_of(response, self._location)
        if status == 206:
            part = range_of(response)
            if not ranged or part is None or part.first != self._offset:
                self._ranges = False
                raise Failed(ReadError, "the server sent a range nobody asked for", _NODE)
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
        self.facts.adopt(found)
        self._begin_hash()
        if status == 200 and self._offset:
            self._skip(response)

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
        """Read what was passed on already; it must be the same again."""
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
        """Read a body whose frames take more than one read of the socket: a server may send it byte by byte."""
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
        if left is None:
            return
        if left <= 0:
            deadline_s = self._options.retry.deadline
            raise self._attempts.too_late(
                f"the deadline of {deadline_s:g} s has passed at byte {self._offset}"
            )
        stall_s = self._options.stall_timeout
        if stall_s is None or left < stall_s:
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
