"""A watch on a pipe: when no item comes for too long, it says where the pipe stands, and ends the wait."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from torchdata_ais.errors import StallError
from torchdata_ais.meanwhile import meanwhile
from torchdata_ais.stage.at_work import stage_at_work
from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.stage.upstream import upstream

logger = logging.getLogger("torchdata_ais")

_END: Any = object()


@dataclass(eq=False)
class Watchdog:
    """Notices that an item takes too long, or a block of which it is the context manager.

    Attributes:
        seconds: How long that may take; None watches nothing.
        process: How errors name this process.
        worker: Its number.
        fail: Called with the error, in another thread; None where nothing can end the wait: it is only logged.
        pipe: What is iterated: errors say where in it the process stands.
    """

    seconds: float | None
    process: str
    worker: int | None
    fail: Callable[[StallError], None] | None
    pipe: IterDataPipe[Any] | None = None
    _begun: int = field(default=0, init=False)
    _ended: int = field(default=0, init=False)

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the items, with the time watched that each of them takes."""
        return self._each(items) if self.seconds else items

    def _each(self, items: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self:
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def __enter__(self) -> None:
        """Watch the time that the block takes."""
        self._begun += 1

    def __exit__(self, *exc_info: object) -> None:
        self._ended = self._begun

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look after what this thread does within the block."""
        if not self.seconds:
            yield
            return
        look_round = partial(self._look_round, threading.get_ident(), self.seconds)
        with meanwhile(look_round, "stall-watch", 0.0):
            yield

    def _look_round(self, thread: int, seconds: float, over: threading.Event) -> None:
        pause_s = min(1.0, seconds / 4)
        watched, told = 0, 0
        busy_s = 0.0
        # Counted, not read from a clock: while this process was stopped, it was not busy.
        while not over.wait(pause_s):
            begun = self._begun
            if begun != watched or begun == self._ended:
                watched, busy_s = begun, 0.0
                continue
            busy_s += pause_s
            if begun == told or busy_s < seconds:
                continue
            told = begun
            frame = sys._current_frames().get(thread)
            error = self._error(frame)
            del frame
            logger.error("%s\n%s", error, _stacks())
            if self.fail is not None:
                self.fail(error)

    def _error(self, frame: FrameType | None) -> StallError:
        stage, place = where(self.pipe, frame)
        return StallError.at(
            f"{self.process} made no item for {self.seconds:g} s; it stands in {stage}",
            todo="the log of that process has the stacks of its threads; look at that object and that function, or "
            "raise stall_after=",
            worker=self.worker,
            **place,
        )


def where(pipe: IterDataPipe[Any] | None, frame: FrameType | None) -> tuple[str, dict[str, Any]]:
    """Return which stage a thread is in, and which object or sample it is busy with.

    Args:
        pipe: The last stage.
        frame: The innermost frame of the thread.
    """
    stage = None if pipe is None else stage_at_work(pipe, frame)
    if stage is None:
        return "no stage of the pipe", {}
    places = (stage_of(part).busy_with() for part in upstream(stage))
    # What a stage that is not ours has in hand came last out of the nearest of ours.
    return stage_of(stage).describe(), next(filter(None, places), {})


def _stacks() -> str:
    """Return what every thread of this process is doing."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
