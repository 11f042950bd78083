"""The body of a response in pieces of a known size."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPException
from io import BytesIO

from urllib3 import exceptions as fault
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import ReadError, StallError
from torchdata_ais.store.attempts import Attempts, Failed
from torchdata_ais.store.cancel import Cancel
from torchdata_ais.store.exchange import UNREADABLE, root
from torchdata_ais.store.framing import strict_body
from torchdata_ais.store.options import StoreOptions

__all__ = ["WholeBody"]

_PIECE = 128 << 10  # must come within the stall timeout
_MIB = 1 << 20


class WholeBody:
    """Takes a body piece by piece, within the stall timeout and the deadline.

    Attributes:
        size: Bytes taken so far.
    """

    def __init__(self, response: BaseHTTPResponse, options: StoreOptions, attempts: Attempts) -> None:
        strict = strict_body(response)
        self._read: Callable[[int], bytes] = response.read if strict is None else strict.read_whole
        self._attempts = attempts
        self._stall_s = attempts.bound(options.stall_timeout)
        self._deadline_s = options.retry.deadline
        left = attempts.left_s()
        self._due = float("inf") if left is None else time.monotonic() + left
        self.size = 0
        Cancel.limit(self._stall_s)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer if the body ends before, as the server meant it to.

        Raises:
            Failed: It broke off, or came too slowly.
        """
        if size <= _PIECE:
            return self._piece(size)
        whole = BytesIO()  # it hands over what it holds, without a copy
        while size > 0 and (piece := self._piece(min(size, _PIECE))):
            size -= whole.write(piece)
        return whole.getvalue()

    def _piece(self, size: int) -> bytes:
        attempts = self._attempts
        if time.monotonic() > self._due + self.size / _MIB:
            what = f"the deadline of {self._deadline_s:g} s has passed after {self.size} bytes"
            todo = "raise Retry(deadline=) or look for what slows the network"
            raise Failed(StallError, what, todo, again=False)
        attempts.expect(self._stall_s)
        try:
            data = self._read(size)
            attempts.check_interrupted()
        except (fault.ReadTimeoutError, TimeoutError) as error:
            what = f"no byte came for too long after {self.size}"
            raise Failed(StallError, what, "look at the load of the node") from error
        except (fault.HTTPError, HTTPException, OSError, *UNREADABLE) as error:
            attempts.check_interrupted(error)
            what = f"the body broke off after {self.size} bytes ({root(error)})"
            raise Failed(ReadError, what, "look at that node") from error
        finally:
            attempts.expect()
        self.size += len(data)
        return data
