"""Heartbeat between the creation of a loader and its first step.

Ranks meet when they start to iterate. Before that one may be killed, end with an error of its program, or have a state
refused. The others would wait for it as long as for a slow one. So a thread sends heartbeats from the creation of a
loader to its start, and waiting ranks check them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.util import Finalize

from torchdata_ais._util.world import World
from torchdata_ais.errors import LoaderError
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.ranks.intervals import usual_interval

_JITTER = 0.2


def interval_of(rank: int, ranks: int) -> float:
    """Return the seconds between two requests: 1 to 10, a fifth more or less.

    Example:
        >>> 0.8 <= interval_of(0, 8) <= 1.2, 8 <= interval_of(17, 10000) <= 12
        (True, True)
    """
    share = mix_seed(rank, "request to the store") % 1000 / 999
    return usual_interval(ranks) * (1 + _JITTER * (2 * share - 1))


SILENT_S = 10.0
"""Silence after which a started rank counts as dead."""
UNHEARD_S = 30.0
"""Silence after which a rank with a loader not yet started counts as dead.

It is long: a function of the program that holds Python's lock, such as unpickling, delays heartbeats.
"""
GRACE_S = 5.0
"""Time the others wait after a rank reports an error: its program may catch the error and continue."""
_NAMED_S = 30.0
"""Waiting times after which the log names the missing ranks."""
_SAID_S = 1.0
_TEXT_LIMIT = 16 << 10

logger = logging.getLogger("torchdata_ais")


def _here(rank: int) -> str:
    """Return the key of a rank's heartbeats before it starts; empty after it."""
    return f"torchdata_ais/here/{rank}"


def _trouble(rank: int) -> str:
    """Return the key of why a rank may not start; empty where it continues."""
    return f"torchdata_ais/trouble/{rank}"


def take_back(rank: int, has: Callable[..., bool], tell: Callable[[str, str], object]) -> None:
    """Withdraw an error that `rank` reported before: it starts a loader."""
    if has(_trouble(rank)):
        tell(_trouble(rank), "")


class Presence:
    """Heartbeats of this rank, from the creation of a loader to its start.

    They also end when the loader is closed or forgotten; it is not kept alive.
    """

    def __init__(self, loader: object, world: World) -> None:
        self._loader = weakref.ref(loader)
        self._store, (self._rank, self._ranks) = world.store, world.members
        self._words: queue.SimpleQueue[tuple[str | None, threading.Event]] = queue.SimpleQueue()
        self._troubled = False
        self._thread = threading.Thread(target=self._run, name="rank-here", daemon=True)
        self._thread.start()
        # Runs when the loader is collected, and at the end of a process, one of multiprocessing's, too.
        self._at_end = Finalize(loader, self._over, exitpriority=10)

    def failed(self, error: BaseException) -> None:
        """Report an error from before the start; the program may still continue."""
        self._troubled = True
        self._say(json.dumps({"text": text_of(error), "over": False}))

    def goes_on(self) -> None:
        """Withdraw the report of `failed`."""
        if self._troubled:
            self._troubled = False
            self._say("")

    def end(self) -> None:
        """Stop the heartbeats: the loader starts, or is closed."""
        self._at_end.cancel()
        self._say(None)

    def _over(self) -> None:
        if self._loader() is None:  # it was collected: in any thread, which must not wait
            self._words.put((None, threading.Event()))
            return
        error = sys.exc_info()[1] or vars(sys).get("last_value")
        self._say(json.dumps({"text": "" if error is None else text_of(error), "over": True}))
        self._say(None)

    def _say(self, word: str | None) -> None:
        """Make the thread send a message or end; wait a moment for it."""
        said = threading.Event()
        if self._thread.is_alive():
            self._words.put((word, said))
            said.wait(_SAID_S)

    def _run(self) -> None:
        token, place, count = uuid.uuid4().hex[:8], f"pid {os.getpid()} on {socket.gethostname()}", 0
        here, trouble = _here(self._rank), _trouble(self._rank)
        every = interval_of(self._rank, self._ranks)
        # A store that is gone is reported by the loader, which gets the same error.
        with contextlib.suppress(RuntimeError, OSError):
            if self._store.check([trouble]):
                self._store.set(trouble, "")
            while True:
                self._store.set(here, f"{count} {token} {place}")
                count += 1
                with contextlib.suppress(queue.Empty):
                    word, said = self._words.get(timeout=every)
                    self._store.set(*((here, "") if word is None else (trouble, word)))
                    said.set()
                    if word is None:
                        return


class WaitedFor:
    """Ranks that are waited for, and their heartbeats."""

    def __init__(
        self, rank: int, prefix: str, known: Callable[[Mapping[int, str]], dict[int, bytes]]
    ) -> None:
        self._rank, self._prefix, self._known = rank, prefix, known
        self._signs: dict[int, tuple[str, float]] = {}
        self._begun_at = time.monotonic()
        self._named = False

    def look_after(self, ranks: Sequence[int]) -> None:
        """Check the heartbeats of `ranks`; raise if one of them does not come."""
        begun = self._known({rank: f"{self._prefix}/alive/{rank}" for rank in ranks})
        for rank, told in begun.items():
            sign = told.decode(errors="replace")
            if (silent_s := self._since(rank, sign)) > SILENT_S:
                raise self._dead(rank, sign.partition(" ")[2], silent_s, "the ranks began")
        absent = [rank for rank in ranks if rank not in begun]
        troubles = self._known({rank: _trouble(rank) for rank in absent})
        for rank, trouble in troubles.items():
            if trouble:
                self._look_at_trouble(rank, trouble.decode())
        quiet = {rank: _here(rank) for rank in absent if not troubles.get(rank)}
        for rank, told in self._known(quiet).items():
            if told:
                self._look_at_sign(rank, told.decode(errors="replace"))
        if absent and not self._named and time.monotonic() - self._begun_at > _NAMED_S:
            self._named = True
            logger.warning("rank %d waits for %s to begin this loader", self._rank, named(absent))

    def _look_at_trouble(self, rank: int, trouble: str) -> None:
        """Raise if a rank that has reported an error will not start."""
        said = json.loads(trouble)
        if said["over"]:
            raise self._error(rank, f"rank {rank} ended before it began this loader", said["text"])
        if self._since(rank, trouble) > GRACE_S:
            raise self._error(rank, f"rank {rank} failed before it began this loader", said["text"])

    def _look_at_sign(self, rank: int, sign: str) -> None:
        """Raise if a rank that has made its loader has been silent for too long."""
        silent_s = self._since(rank, sign)
        if silent_s > UNHEARD_S:
            when = "it had made its loader and not started it"
            raise self._dead(rank, sign.split(" ", 2)[2], silent_s, when)

    def _since(self, rank: int, sign: str) -> float:
        """Return for how many seconds a rank has given this sign and no other."""
        last, since = self._signs.get(rank, ("", 0.0))
        if sign != last:
            since = time.monotonic()
            self._signs[rank] = sign, since
        return time.monotonic() - since

    def _dead(self, rank: int, place: str, silent_s: float, when: str) -> LoaderError:
        return LoaderError.at(
            f"rank {rank} ({place}) has given no sign of life for {silent_s:.0f} s while {when}: "
            "it was killed, or is stopped",
            todo="look at the output of that rank, and for the kernel's OOM killer",
            failed_rank=rank,
            rank=self._rank,
        )

    def _error(self, rank: int, what: str, text: str) -> LoaderError:
        return LoaderError.at(
            f"{what}. Its error:\n{text}" if text else what,
            todo="" if text else "look at the output of that rank",
            failed_rank=rank,
            rank=self._rank,
        )


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    Example:
        >>> named([3]), named([1, 2])
        ('rank 3', 'ranks 1, 2')
    """
    text = ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def text_of(error: BaseException) -> str:
    """Return class and text of an error; the end of a long one."""
    return f"{type(error).__name__}: {error}"[-_TEXT_LIMIT:]
