""".prefetch and .pin_memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from torchdata_ais._util.process_end import close_at_exit
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe, all_pipes

_LOOK_ROUND_S = 1.0
"""Interval at which a waiting reader checks that the thread lives."""

_EXIT_S = 2.0
"""Seconds to wait for the item under way when the interpreter exits."""


class LookAhead:
    """A thread that takes items ahead of its reader, `size` of them at most.

    It refers to the items, and never to the pipe that reads. With `keeps_full` it fills its queue before it pauses or
    ends.
    """

    def __init__(
        self, items: Iterable[object], size: int, keeps_full: bool = False, name: str = "prefetch"
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
            Exception: The error of making it.
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
        """Stop taking items; return whether the current one came in time."""
        with self._change:
            self._paused = True
            return self._wait_for(lambda: not self._busy, timeout)

    def resume(self) -> None:
        """Resume."""
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
        """End the thread at the interpreter's exit; leave an item that takes long."""
        self.close()
        self.join(_EXIT_S)

    def _wait_for(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        waited_s = 0.0
        # In slices, since a thread that has died (as in a forked child) notifies no waiting reader.
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
        except BaseException as raised:  # noqa: BLE001 - raised again when the item is requested
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
        """Resume."""
        if self._ahead is not None:
            self._ahead.resume()

    def __getstate__(self) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name not in self._stays}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)


class NotAvailable(Exception):  # noqa: N818 - torchdata's names
    """The next item is not ready: request it again."""


class InvalidStateResetRequired(Exception):  # noqa: N818
    """No item comes until the source has restarted."""


class TerminateRequired(Exception):  # noqa: N818
    """There will be no item any more. `Prefetcher` ends its iteration."""


class Prefetcher(LookingAhead):
    """Makes items ahead in a thread: ``pipe.prefetch(10)``.

    Takes and yields any items, in their order.

    Memory:
        `buffer_size` items, and one under way.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> list(Prefetcher(IterableWrapper(range(3)), 2))
        [0, 1, 2]
    """

    def __init__(self, source_datapipe: Any, buffer_size: int = 10) -> None:
        super().__init__()
        if buffer_size <= 0:
            raise UsageError.at(f"buffer_size={buffer_size}", todo="use 1 or more")
        self.source_datapipe = source_datapipe
        self.buffer_size = buffer_size

    def _taken(self) -> Iterable[object]:
        """Yield items for the thread, without `self`: a pipe may be forgotten."""
        source: Iterable[object] = self.source_datapipe
        return source

    def __iter__(self) -> Iterator[Any]:
        self._ahead = ahead = LookAhead(self._taken(), self.buffer_size)
        try:
            while True:
                try:
                    item = ahead.get()
                except (StopIteration, TerminateRequired):
                    return
                yield item
                del item
        finally:
            ahead.close()
            ahead.join()

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def shutdown(self) -> None:
        """End the thread, after the item under way."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
            ahead.join()

    reset = __del__ = shutdown


def pin_memory_fn(data: object, device: object = None) -> Any:
    """Return `data` with all that has ``pin_memory`` in page-locked memory."""
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return made_like(data, {name: pin_memory_fn(value, device) for name, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(pin_memory_fn(value, device) for value in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return made_like(data, [pin_memory_fn(value, device) for value in data])
    return data


def made_like(data: Any, values: object) -> Any:
    """Return `values` in the type of `data`, or as they are if that fails."""
    try:
        return type(data)(values)
    except TypeError:
        return values


class PinMemory(Prefetcher):
    """Puts tensors of items into page-locked memory: ``pipe.pin_memory()``.

    Works two items ahead, in the main process. Takes and yields any items, in their order.

    Memory:
        Two items, and one under way.

    Args:
        source_datapipe: The pipe.
        device: The GPU that the thread works for; None is the present one.
        pin_memory_fn: ``pin_memory_fn(item, device)`` returns the item, pinned.
    """

    def __init__(
        self,
        source_datapipe: object,
        device: object = None,
        pin_memory_fn: Callable[[Any, Any], object] = pin_memory_fn,
    ) -> None:
        if not torch.cuda.is_available():
            raise UsageError.at("pin_memory needs a GPU, and torch sees none", todo="leave .pin_memory() out")
        super().__init__(source_datapipe, buffer_size=2)
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def is_replicable(self) -> bool:
        """Return False: no worker process is to start CUDA."""
        return False

    def _taken(self) -> Iterable[object]:
        return _Pinned(self.source_datapipe, self.pin_memory_fn, self.device)


class _Pinned:
    def __init__(self, items: Any, pin: Callable[[Any, Any], Any], device: Any) -> None:
        self._items, self._pin, self._device = items, pin, device

    def __iter__(self) -> Iterator[object]:
        torch.cuda.set_device(self._device)  # of this thread
        for item in self._items:
            yield self._pin(item, self._device)


def pause(pipe: object, unless: Callable[[Any], bool] = lambda _: False) -> None:
    """Pause the pipes that can pause, those nearest to the end first."""
    for part in all_pipes(pipe) if pipe is not None else ():
        if hasattr(part, "pause") and not unless(part):
            part.pause()


def resume(pipe: object) -> None:
    """Resume them, the sources first."""
    for part in reversed(all_pipes(pipe) if pipe is not None else []):
        if hasattr(part, "resume"):
            part.resume()
