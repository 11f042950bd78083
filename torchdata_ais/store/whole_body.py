"""The body of a response in pieces of a known size."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPException
from io import BytesIO

from urllib3 import exceptions as fault
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import StallError
from torchdata_ais.store.attempts import Attempts, Failed
from torchdata_ais.store.cancel import Cancel
from torchdata_ais.store.chunked import ChunkedBody
from torchdata_ais.store.exchange import UNREADABLE, root
from torchdata_ais.store.framing import strict_body
from torchdata_ais.store.options import StoreOptions

_PIECE = 128 << 10  # must come within the stall timeout
_MIB = 1 << 20
_AHEAD = 4 * _MIB


class WholeBody:
    """Takes a body piece by piece, within the stall timeout and the deadline.

    Attributes:
        size: Bytes received so far, of a body in chunks with what frames them.
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
        left = attempts.left_s()
        self._due = float("inf") if left is None else time.monotonic() + left
        # Bytes that must come within the stall timeout; 0: it is not set, below: they came.
        self._expected = 0
        self.size = 0
        Cancel.current().set_timeout(self._stall_s)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer if the body ends before, as the server meant it to.

        Raises:
            Failed: It broke off, or came too slowly.
        """
        if size < 1:
            return b""
        attempts, chunked = self._attempts, self._chunked
        try:
            data = self._filled(size) if chunked is None else chunked.take(size, self._received)
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
        whole = BytesIO()  # it hands over what it holds without a copy
        came = there = 0
        while came == there < size:
            there = min(size, there + _AHEAD)  # memory for what the server only promises is taken bit by bit
            whole.seek(there - 1)
            whole.write(b"\0")
            with whole.getbuffer() as view:
                while came < there and (count := self._received(view[came : min(there, came + _PIECE)])):
                    came += count
        whole.truncate(came)
        return whole.getvalue()

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
