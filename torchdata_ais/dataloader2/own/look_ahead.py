"""A thread that makes items ahead, and what a pipe is that has one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torchdata_ais.lifetime import close_at_exit
from torchdata_ais.stage.datapipes import IterDataPipe

_LOOK_ROUND_S = 1.0
"""How often who waits looks whether the thread lives."""

_EXIT_S = 2.0
"""Seconds to wait for the item under way when the interpreter exits."""


class LookAhead:
    """A thread that takes items ahead of whoever reads them. It knows the items, and never the pipe that reads.

    Args:
        items: What to take.
        size: How many items may wait.
        keeps_full: Whether the thread fills its room whatever comes, before it pauses or ends.
        name: Of the thread.
    """

    def __init__(
        self, items: Iterable[Any], size: int, keeps_full: bool = False, name: str = "prefetch"
    ) -> None:
        self._items = items
        self._size = size
        self._keeps_full = keeps_full
        self._ready: deque[Any] = deque()
        self._error: BaseException | None = None
        self._busy = self._paused = self._closed = self._ended = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        close_at_exit(self, "end")

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item.

        Raises:
            StopIteration: There is none.
            TimeoutError: None has come for `timeout` seconds.
            Exception: What making it raised.
        """
        with self._change:
            if not self._wait_for(lambda: bool(self._ready) or self._ended, timeout):
                raise TimeoutError
            if self._ready:
                self._change.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        raise StopIteration if error is None else error

    def pause(self, timeout: float | None = None) -> bool:
        """Take nothing more; return whether the item under way came within `timeout` seconds."""
        with self._change:
            self._paused = True
            return self._wait_for(lambda: not self._busy, timeout)

    def resume(self) -> None:
        """Go on."""
        with self._change:
            self._paused = False
            self._change.notify_all()

    def close(self) -> None:
        """End the thread, after the item under way."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread; return whether it has ended."""
        # The first test needs no name of this module, which may be empty when a generator ends at exit.
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the thread when the interpreter exits; an item that takes longer is left."""
        self.close()
        self.join(_EXIT_S)

    def _wait_for(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        waited_s = 0.0
        while not done():
            if (timeout is not None and waited_s >= timeout) or not self._thread.is_alive():
                return done()
            slice_s = _LOOK_ROUND_S if timeout is None else min(_LOOK_ROUND_S, timeout - waited_s)
            if not self._change.wait_for(done, slice_s):
                waited_s += slice_s
        return True

    def _wants_more(self) -> bool:
        """Wait until an item is wanted; return False when none will be."""
        with self._change:
            self._busy = False
            self._change.notify_all()
            while True:
                full = len(self._ready) >= self._size
                if self._closed and (full or not self._keeps_full):
                    return False
                if not full and (self._keeps_full or not self._paused):
                    self._busy = True
                    return True
                self._change.wait()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            items = iter(self._items)
            while self._wants_more():
                item = next(items)
                with self._change:
                    self._ready.append(item)
                    self._change.notify_all()
                del item
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 - raised again where the item is asked for
            error = raised
        with self._change:
            self._error, self._ended, self._busy = error, True, False
            self._change.notify_all()


class LookingAhead(IterDataPipe[Any]):
    """A pipe whose items a thread makes. Its copies begin without one."""

    _ahead: LookAhead | None = None
    _stays: ClassVar[tuple[str, ...]] = ("_ahead",)  # in this process

    def pause(self) -> None:
        """Make nothing more; returns when the item under way is there."""
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Go on."""
        if self._ahead is not None:
            self._ahead.resume()

    def __getstate__(self) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name not in self._stays}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)
