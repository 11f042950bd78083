"""Log of the requests of this process.

Always kept, for it costs less than a thousandth of a request. A trace, a report of ranks and a record of a stalled
run read it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec

from torchdata_ais.urls import Location

KEPT = 1024  # ended requests


class RequestRecord(msgspec.Struct, array_like=True):
    """One request for bytes, and its outcome.

    Attributes:
        name: The object, without secrets.
        host: The node that sends the bytes, once a redirect has named it; ``file`` for a disk.
        begun: Its start, in seconds since 1970 by this machine's clock.
        start: The first requested byte.
        first_byte_s: Seconds until the answer began; None before.
        read_s: Seconds spent waiting for bytes of its body.
        took_s: Seconds from the request to the end, those without a waiting consumer included; None before.
        bytes: The number of received bytes.
        attempt: Which attempt for these bytes it was, from 1.
        error: The failure that ended it; empty for a success.
    """

    name: str
    host: str
    begun: float
    start: int = 0
    first_byte_s: float | None = None
    read_s: float = 0.0
    took_s: float | None = None
    bytes: int = 0
    attempt: int = 1
    error: str = ""


class Journal:
    """The requests of one process; `ended` counts those that have ended."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start an empty log with a new lock, in a forked process.

        The old entries, and the thread that held the lock, are the parent's.
        """
        self._lock = threading.Lock()
        self._under_way: dict[int, tuple[RequestRecord, float]] = {}
        self._last: deque[RequestRecord] = deque(maxlen=KEPT)
        self.ended = 0

    @contextmanager
    def asking(self, name: str, url: str, start: int = 0, attempt: int = 1) -> Iterator[RequestRecord]:
        """Note a request that is sent in the context, and how it ends.

        `url` is that of the first request, ``file`` for a disk.
        """
        host = urlsplit(url).netloc.rpartition("@")[2] or url
        # As text that can be written everywhere: a file's name may hold bytes that are not UTF-8.
        told = str(name) if name.isascii() else name.encode(errors="backslashreplace").decode()
        record = RequestRecord(told, host, time.time(), start, attempt=attempt)
        with self._lock:
            self._under_way[id(record)] = record, time.monotonic()
        try:
            yield record
        except Exception as error:
            record.error = type(error).__name__
            raise
        finally:
            with self._lock:
                _, begun = self._under_way.pop(id(record), (None, None))
                if begun is not None:  # else the process was forked meanwhile, and it is the parent's
                    record.took_s = time.monotonic() - begun
                    self._last.append(record)
                    self.ended += 1

    def under_way(self) -> list[RequestRecord]:
        """Return requests under way, oldest first; `took_s` is the time so far."""
        with self._lock:
            found = list(self._under_way.values())
        now = time.monotonic()
        return [msgspec.structs.replace(record, took_s=now - begun) for record, begun in found]

    def since(self, ended: int) -> tuple[list[RequestRecord], int]:
        """Return kept requests that ended after the first `ended`, and the count."""
        with self._lock:
            new = min(self.ended - ended, len(self._last))
            return list(self._last)[len(self._last) - new :], self.ended


def display_name(place: Location) -> str:
    """Return the name of an object in lists of shards, without secrets."""
    return place.uri if place.kind == "object" else place.shown


_journal = Journal()


def journal() -> Journal:
    """Return that of this process."""
    return _journal


os.register_at_fork(after_in_child=_journal.renew)
