"""A watch on a pipe: when no item comes for too long, it says where the pipe stands, and ends the wait."""

from __future__ import annotations

import faulthandler
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType
from typing import Any

from torch.utils.data.datapipes.datapipe import IterDataPipe

from torchdata_ais.errors import StallError
from torchdata_ais.pipes._pipe import Pipe

__all__ = ["Watchdog", "where"]

logger = logging.getLogger("torchdata_ais")


class Watchdog:
    """Notices that an item takes too long.

    Args:
        seconds: How long an item may take.
        process: How errors name this process.
        worker: Its number.
        fail: Called with the error, in another thread; None where nothing can end the wait: it is only logged.
    """

    def __init__(
        self, seconds: float, process: str, worker: int | None, fail: Callable[[StallError], None] | None
    ) -> None:
        self._seconds = seconds
        self._process = process
        self._worker = worker
        self._fail = fail
        self._since: float | None = None

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items, and watch the time each of them takes."""
        over = threading.Event()
        names = (threading.get_ident(), over)
        threading.Thread(target=self._look_round, args=names, name="stall-watch", daemon=True).start()
        try:
            while True:
                self._since = monotonic()
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    self._since = None
                yield item
        finally:
            over.set()

    def _look_round(self, thread: int, over: threading.Event) -> None:
        told: float | None = None
        while not over.wait(min(1.0, self._seconds / 4)):
            since = self._since
            if since is None or since == told or monotonic() - since < self._seconds:
                continue
            told = since
            frame = sys._current_frames().get(thread)
            error = self._error(frame)
            del frame
            logger.error("%s\n%s", error, _stacks())
            if self._fail is not None:
                self._fail(error)

    def _error(self, frame: FrameType | None) -> StallError:
        stage, place = where(frame)
        return StallError.at(
            f"{self._process} made no item for {self._seconds:g} s; it stands in {stage}",
            todo="the log of that process has the stacks of its threads; look at that object and that function, or "
            "raise stall_after=",
            worker=self._worker,
            **place,
        )


def where(frame: FrameType | None) -> tuple[str, dict[str, Any]]:
    """Return which stage a thread is in, and which object or sample it is busy with.

    Args:
        frame: The innermost frame of the thread.
    """
    stage: Any = None
    place: dict[str, Any] = {}
    while frame is not None and stage is None:
        values = frame.f_locals
        for value in list(values.values()):
            if isinstance(value, dict) and isinstance(value.get("__key__"), str):
                place = {"url": value.get("__url__"), "key": value["__key__"]}
        owner = values.get("self")
        if isinstance(owner, IterDataPipe):
            stage = owner
        frame = frame.f_back
    if stage is None:
        return "no stage of the pipe", place
    queue = getattr(getattr(stage, "_live", None), "queue", None)
    if not place and queue:
        place = {"url": str(queue[0].url)}
    return repr(stage) if isinstance(stage, Pipe) else type(stage).__name__, place


def _stacks() -> str:
    """Return what every thread of this process is doing."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
