"""Count of the ranks that have a next step, one step ahead, in a thread.

The count needs only the store. A step costs a rank two requests: it adds itself to a number that all share, and
requests the result. The store answers when the last rank has added itself and published it. That rank also deletes the
key of the step before.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from types import TracebackType
from typing import Any

from typing_extensions import Self

from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.group import BLOCKS_S, Ranks, own_connection
from torchdata_ais.ranks.heartbeat import LifeSigns
from torchdata_ais.ranks.start_heartbeat import interval_of

_ENDED = 1 << 40
"""Added once by each rank that has no further step, on top of the one for each question."""

_LOOK_S = 0.2
_EXPLAINED_S = 3.0
_POLL_S, _POLL_GROWTH = 0.001, 1.25
"""First polling interval and its growth, without a second connection."""

_LEFT = "left"


class StepVotes:
    """Requests of this rank, in one epoch, how many ranks have a next step.

    The `number` is that of the epoch among those of this loader that count steps.
    """

    def __init__(self, ranks: Ranks, number: int) -> None:
        self._ranks = ranks
        self.ranks = ranks.world_size
        self._name = f"steps/{number}"
        self._prefix = f"{ranks.prefix}/{self._name}"
        self._signs = LifeSigns(ranks, "steps")
        self._asked = self._heard = 0
        self._has_ended = False
        self._questions: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()
        self._running = contextlib.ExitStack()
        self._has_begun = False

    def __enter__(self) -> Self:
        self._signs.tell(0, 0)
        return self

    def ask(self, answer: bool) -> None:
        """Report whether this rank has a next step: from now on, do not fork."""
        if not self._has_begun:
            self._has_begun = True
            self._running.enter_context(self._signs.beating(lambda: self._asked))
            threading.Thread(target=self._exchange, name="rank-steps", daemon=True).start()
        self._asked += 1
        self._questions.put(1 if answer or self._has_ended else 1 + _ENDED)
        self._has_ended = not answer

    def count(self) -> int:
        """Return how many ranks have the requested step; wait for the last one."""
        begin = time.monotonic()
        pause_s = interval_of(self._ranks.rank, self._ranks.world_size)
        next_look = begin + pause_s
        while True:
            try:
                answer = self._answers.get(timeout=_LOOK_S)
                break
            except queue.Empty:
                self._ranks.raise_heard()
                now = time.monotonic()
                if now >= next_look:
                    next_look = now + pause_s
                    self._ranks.check()
                    self._signs.look_after_next(self._asked, now - begin)
        self._heard += 1
        if isinstance(answer, (RuntimeError, OSError)):
            raise self._ranks.calls.gone(answer) from answer
        if isinstance(answer, Exception):
            raise answer
        told, rank = answer.split()
        if told == _LEFT:
            self._explain(int(rank))
        return int(told)

    def _explain(self, rank: int) -> None:
        """Raise the reason why `rank` takes no more steps: it failed or ended."""
        deadline = time.monotonic() + _EXPLAINED_S
        while time.monotonic() < deadline:
            self._ranks.check()
            time.sleep(0.05)
        raise LoaderError.at(
            f"rank {rank} has left the epoch before step {self._heard - 1}, and the others wait for it",
            todo="every rank must iterate the loader equally often, and leave an epoch at the same step",
            failed_rank=rank,
            rank=self._ranks.rank,
        )

    def _exchange(self) -> None:
        try:
            store, blocks = own_connection(self._ranks.calls.store)
            # Each rank adds 1 a step, so the last one of step n finds world_size * (n + 1), and publishes the answer.
            for number in itertools.count():
                question = self._questions.get()
                if question is None:
                    return
                asked = store.add(self._key("asked"), question)
                if asked % _ENDED == self._ranks.world_size * (number + 1):
                    told = self._tell(store, number, asked // _ENDED)
                else:
                    told = _waited_for(store, self._key(number), blocks)
                self._answers.put(told)
                if told.startswith(_LEFT):
                    return
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            self._answers.put(error)

    def _tell(self, store: Any, number: int, ended: int) -> str:
        """Publish the answer to a question; return it."""
        mine = f"{self._ranks.world_size - ended} {self._ranks.rank}"
        told = bytes(store.compare_set(self._key(number), "", mine)).decode()
        if number:
            store.delete_key(self._key(number - 1))  # all have requested it again, and so have read it
        return told

    def _key(self, name: object) -> str:
        return f"{self._prefix}/{name}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.is_finalizing():  # threads are no more
            return
        self._questions.put(None)
        self._running.close()
        with contextlib.suppress(LoaderError):  # the store is gone
            if kind is not None or self._asked > self._heard:
                told, _ = self._ranks.first_to_tell(f"{self._name}/{self._heard}", _LEFT)
                if told != _LEFT:  # the others have that step; the next one they would wait for for ever
                    self._ranks.first_to_tell(f"{self._name}/{self._heard + 1}", _LEFT)
            self._signs.tell(0, 0)


def _waited_for(store: Any, key: str, blocks: bool) -> str:
    """Return the value of `key`; the wait ends when this rank leaves."""
    pause_s = _POLL_S
    while not blocks and not store.check([key]):
        time.sleep(pause_s)
        pause_s = min(_POLL_GROWTH * pause_s, _LOOK_S)
    # A call may end at the connection's time limit, after BLOCKS_S: then it is repeated. An earlier error is real.
    while True:
        begin = time.monotonic()
        try:
            return bytes(store.get(key)).decode()
        except RuntimeError:
            if not blocks or time.monotonic() - begin < BLOCKS_S:
                raise
