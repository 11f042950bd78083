"""Read-ahead within the byte budget of the process."""

from __future__ import annotations

import functools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from torchdata_ais.errors import AISError, ReadError, UsageError
from torchdata_ais.errors.redaction import sealed
from torchdata_ais.store.transport.attempts import Cancelled
from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.metadata import ObjectMetadata, report_unverified, unverifiable
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.urls import Location


class _Budget:
    """Bytes that all shares hold together.

    The lock is re-entrant: the garbage collector may close a share.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.used = 0
        self.peak = 0
        self.shares = 0


_budget = _Budget()


def _renew() -> None:
    """Reset a forked process to nothing used.

    The threads of its parent do not exist there.
    """
    global _budget  # noqa: PLW0603 - one budget per process is the point
    _budget = _Budget()


os.register_at_fork(after_in_child=_renew)


class Share:
    """The part of the budget that one open object holds.

    An object that holds nothing may always take a block, so no object waits for ever. Beyond that it may take while
    all together stay within the limit and itself within ``limit / open objects``. So an object opened ahead of its
    turn cannot starve the one being read.
    """

    def __init__(self, limit: int) -> None:
        budget = self._budget = _budget
        self._limit = limit
        self._held = 0
        self._closed = False
        with budget.changed:
            budget.shares += 1

    def take(self, size: int) -> bool:
        """Wait until `size` more bytes may be held; False once it is closed."""
        budget = self._budget
        with budget.changed:
            while not self._closed:
                fair = budget.used + size <= self._limit and self._held + size <= self._limit // budget.shares
                # An empty share always gets a block: otherwise objects that hold blocks could wait for each other.
                if self._held == 0 or fair:
                    self._held += size
                    budget.used += size
                    budget.peak = max(budget.peak, budget.used)
                    return True
                budget.changed.wait(1.0)
        return False

    def give(self, size: int) -> None:
        """Return `size` bytes."""
        budget = self._budget
        if size <= 0:
            return
        with budget.changed:
            if not self._closed:
                self._held -= size
                budget.used -= size
                budget.changed.notify_all()

    def close(self) -> None:
        """Return everything; a waiting `take` ends."""
        budget = self._budget
        with budget.changed:
            if not self._closed:
                self._closed = True
                budget.used -= self._held
                self._held = 0
                budget.shares -= 1
                budget.changed.notify_all()


def held_now() -> tuple[int, int]:
    """Return the bytes this process holds fetched ahead, and their maximum."""
    return _budget.used, _budget.peak


@dataclass
class Stats:
    """Measurements of one open object.

    Attributes:
        retries: Requests made again after a failure.
        bytes: Bytes fetched.
        first_byte_s: Seconds until the response began; None before.
        wait_s: Seconds the consumer waited for blocks.
        unverified: The kind of the object's checksum, if it cannot be computed here.
    """

    retries: int = 0
    bytes: int = 0
    first_byte_s: float | None = None
    wait_s: float = 0.0
    unverified: str = ""


class Reader(ABC):
    """Iterator over the blocks of one object that collects its metadata.

    The thread that reads ahead and the consumer may take turns in `blocks`; never both at once.

    Attributes:
        facts: The metadata of the object, more once it is open.
        verified: Whether the whole body was compared with a checksum; None before its end.
        cancel: Ends the reading.
        stats: Measurements so far.
    """

    def __init__(self, options: StoreOptions, start: int, known: ObjectMetadata) -> None:
        self._options = options
        self._start = self._offset = start
        # The middle of an object continues a known version of it, whatever pin says.
        self.facts = known if options.pin or start > 0 else ObjectMetadata()
        self.verified: bool | None = None
        self.cancel = Cancel()
        self.stats = Stats()

    def _note_unverified(self, name: str) -> None:
        """Note and log a checksum that should be verified and cannot be."""
        kind = unverifiable(self.facts.checksum, self.facts.hash_name)
        if kind and self._options.verify and self._start == 0:
            self.stats.unverified = kind
            report_unverified(kind, name)

    @abstractmethod
    def blocks(self) -> Iterator[bytes]:
        """Yield blocks, never an empty one."""

    def close(self) -> None:  # noqa: B027 - most hold nothing before their first block
        """Release held resources even if `blocks` never started."""

    def check_overdue(self) -> None:  # noqa: B027 - local reads have no time limit
        """End a step of `blocks` that takes too long; the waiting thread calls it."""


_JOIN_S = 0.3  # close() waits this long for the thread; one that is connecting ends by its timeout
_LIVENESS_S = 1.0
_INTERRUPTED = "reading was interrupted"
_CALL_S, _COPY_BYTES_S = 1e-4, 1e9  # a block that comes in no more time than its copy takes was there already
_PATIENCE_S = 5e-3  # most time a consumer that reads for itself may lose by waiting, plus a fifth of its time
_SMALL = 128 << 10  # blocks below this are joined while they wait: servers may send in crumbs


class Channel:
    """State shared by the reading thread and the consumer.

    Either of them reads the stream, one at a time. The thread starts, ahead of the consumer. A consumer that is
    faster reads for itself from then on, as long as the bytes are there when it needs them. Bytes in the kernel's
    buffer need no thread, and passing blocks between threads costs a third of the speed. Once it had to wait for
    bytes, the thread reads ahead again.
    """

    def __init__(self, place: Location, options: StoreOptions, reader: Reader, before_its_turn: bool) -> None:
        self._place = place
        self.pid = os.getpid()
        self.reader = reader
        self._stats = reader.stats
        self._block_bytes = options.block_bytes
        self._stream = reader.blocks()
        self._share = Share(options.prefetch_bytes)
        # Guards the turn and the blocks. Re-entrant: the garbage collector may call `cancel` in a thread that has it.
        self._lock = threading.RLock()
        self._ready = threading.Condition(self._lock)
        self._blocks: deque[bytes] = deque()
        self._done = False  # no block follows those
        self._closed = False
        self._error: Exception | None = None  # raised in place of a block then; None: the object ended
        self._reading = False  # True while a thread reads the stream: at most one does
        self._ahead = True  # whether the thread reads, or the consumer
        self._one_block = before_its_turn  # the thread reads no more until the consumer comes
        self._alone_since = 0.0  # when the consumer began to read for itself; 0: never
        self._lost_s = 0.0  # seconds it has waited for bytes since
        self._thread = threading.Thread(target=self._fetch, name="torchdata_ais.fetch", daemon=True)

    def start(self) -> None:
        """Begin to read ahead."""
        self._thread.start()

    def _fetch(self) -> None:
        with self.reader.cancel:
            while self._has_turn():
                self._read_ahead()
        self._stream.close()  # type: ignore[attr-defined]  # a generator
        self.reader.close()

    def _has_turn(self) -> bool:
        """Wait until the thread may read and hold a block; False at the end."""
        while True:
            with self._lock:
                while not self._may_read():
                    if self._done and not self._reading:
                        return False
                    self._ready.wait(_LIVENESS_S)
                    self.reader.check_overdue()  # if it is the consumer who is stuck
            # Without the lock: `take` may wait for other objects. The turn is checked again afterwards.
            if not self._share.take(self._block_bytes):
                continue
            with self._lock:
                if self._may_read():
                    self._reading = True
                    return True
            self._share.give(self._block_bytes)  # the consumer was faster

    def _may_read(self) -> bool:
        """Return whether it is the thread's turn. Called with the lock held."""
        if self._reading or self._done or not self._ahead:
            return False
        return not (self._one_block and self._blocks)

    def _read_ahead(self) -> None:
        """Read the next block and keep it for the consumer.

        `_has_turn` has set `_reading`.
        """
        block = self._next_block()
        self._share.give(self._block_bytes - len(block or b""))
        with self._lock:
            self._reading = False
            if block is not None and not self._done:  # else it was closed
                self._keep(block)
            self._ready.notify_all()

    def _next_block(self) -> bytes | None:
        """Take a block from the stream, or note its end and return None."""
        error: Exception | None = None
        try:
            block = next(self._stream, None)
            if block is not None:
                return block
        except Cancelled:
            pass
        except Exception as caught:  # noqa: BLE001 - raised again in the consumer's thread
            error = sealed(caught)
            if not isinstance(caught, AISError | MemoryError):
                error = ReadError.at(f"{type(caught).__name__}: {caught}", url=self._place.shown)
                error.__cause__ = caught
        self._end(error)
        return None

    def _end(self, error: Exception | None) -> None:
        """Note the end of the stream, and the error after its blocks."""
        with self._lock:
            self._reading = False
            if not self._done:
                self._done, self._error = True, error
            self._ready.notify_all()

    def _keep(self, block: bytes) -> None:
        """Put a block where the consumer takes it. Called with the lock held."""
        if self._blocks and len(self._blocks[-1]) + len(block) <= min(_SMALL, self._block_bytes):
            self._blocks[-1] += block
        else:
            self._blocks.append(block)

    def take(self) -> bytes:
        """Return the next block: a finished one, else wait for it or read it."""
        begin = time.monotonic()
        mine = False  # whether a block is read here
        try:
            while True:
                with self._lock:
                    if self._one_block or self._blocks or self._done:
                        block = self._there()
                        if block is not None:
                            break
                    if self._reading or self._ahead:
                        self._await_thread()
                        continue
                    self._reading = mine = True
                block = self._next_block()
                if block is not None:
                    self._reading = False
                    self._weigh(begin, len(block))
                    return block
                mine = False
        except BaseException:
            if mine:  # Ctrl-C at any point: a block may be lost, so that none must follow it
                self._end(ReadError.at(_INTERRUPTED, todo="open it again", url=self._place.shown))
            raise
        self._stats.wait_s += time.monotonic() - begin
        self._share.give(len(block))
        return block

    def _there(self) -> bytes | None:
        """Return a block that is there; None to wait. Called with the lock held."""
        if self._one_block:
            self._one_block = self._ahead = False
        if self._blocks:
            return self._blocks.popleft()
        if self._done:
            self._share.close()
            if self._closed or self.reader.cancel.cancelled:
                raise UsageError.at("the source was closed", todo="open it again", url=self._place.shown)
            if self._error is None:
                raise StopIteration
            raise self._error
        return None

    def _await_thread(self) -> None:
        """Wait for the block of the thread. Called with the lock held."""
        if not self._thread.is_alive():
            raise ReadError.at(
                "the fetching thread is gone", todo="open the object again", url=self._place.shown
            )
        if self._reading and not self._alone_since:
            self._ahead = False  # the consumer was faster
        self.reader.check_overdue()
        self._ready.wait(_LIVENESS_S)

    def _weigh(self, begin: float, size: int) -> None:
        """Decide whether the consumer should read for itself.

        It requested a block of `size` bytes at `begin`.
        """
        now = time.monotonic()
        took_s = now - begin
        self._stats.wait_s += took_s
        self._alone_since = self._alone_since or begin
        lost_s = took_s - _CALL_S - size / _COPY_BYTES_S
        if lost_s > 0.0:
            self._lost_s += lost_s
            if not self._ahead and self._lost_s > _PATIENCE_S + (now - self._alone_since) / 5:
                with self._lock:
                    self._ahead = True
                    self._ready.notify_all()

    @property
    def over(self) -> bool:
        """Return whether all reading has ended."""
        return self._done and not self._blocks

    def cancel(self) -> None:
        """Wake all waiting threads at once, also from the garbage collector."""
        if self.pid != os.getpid():
            return  # the thread, its socket and its locks are the parent's
        with self._lock:
            # Both under one lock: a consumer must not take this end for that of the object.
            self._done = self._closed = True
            self._blocks.clear()
            self._ready.notify_all()
        self.reader.cancel.cancel()
        self._share.close()

    def join(self) -> None:
        """Wait a moment for the thread."""
        if self.pid == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)


_KEPT_BYTES = 16 << 20


@functools.cache
def keep_memory() -> None:
    """Make glibc keep freed memory.

    Requesting it from the kernel again costs a tenth of the time. It gives back free memory above twice the size of
    the largest block freed so far. The memory is never touched.
    """
    bytes(_KEPT_BYTES)
