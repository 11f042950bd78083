"""What the ranks of a distributed job must agree on, and tell each other when one fails.

Over the store of torch.distributed, not over collectives: nothing to leak per epoch, nobody has to arrive at the same
time, and a rank that waits can see why the others do not come.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchdata_ais.errors import LoaderError
from torchdata_ais.world import World

__all__ = ["Ranks", "join_ranks"]

_CHECK_EVERY_S = 1.0
_BEAT_S = 1.0
_SILENT_S = 10.0
"""A rank that has begun and gives no sign of life for so long is held to be dead."""
_ANSWER_S = 30.0
"""How long one call of the store may take."""
_TEXT_LIMIT = 16 << 10


def join_ranks(world: World, timeout_s: float) -> Ranks | None:
    """Return this process's place among the ranks; None if there is one, or no store to reach the others by."""
    return None if world.members[1] == 1 or world.store is None else Ranks(world, timeout_s)


class Ranks:
    """One loader as all ranks know it.

    The loaders of the ranks are matched by the order in which they begin: the first of each rank, the second, ...

    Args:
        world: The ranks, and their store.
        timeout_s: How long to wait for another rank to begin this loader, or an epoch of it.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self.rank, self.world_size = world.members
        self._store = world.store
        self._timeout_s = timeout_s
        self._mute = False  # whether the store has once not answered
        number = self._ask(self._store.add, f"torchdata_ais/loaders/{self.rank}", 1)
        self._prefix = f"torchdata_ais/{number}"
        self._next_check = 0.0
        self._told = False

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Give the other ranks a sign of life every second while the context lasts, whatever this thread does."""
        over = threading.Event()
        key, where = f"{self._prefix}/alive/{self.rank}", f"pid {os.getpid()} on {socket.gethostname()}"

        def beat() -> None:
            count = 0
            while not over.wait(_BEAT_S):
                count += 1
                try:
                    self._store.set(key, f"{count} {where}")
                except (RuntimeError, OSError):  # the thread that waits meets it, too, and says so
                    return

        # The first one here, so that no rank that goes on is unknown to the others.
        self._ask(self._store.set, key, f"0 {where}")
        thread = threading.Thread(target=beat, name="rank-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_SILENT_S)

    def tell(self, name: str, value: str | bytes) -> None:
        """Let the other ranks know something, under a name of this loader.

        Raises:
            LoaderError: The store is gone.
        """
        self._ask(self._store.set, f"{self._prefix}/{name}", value)

    def first_to_tell(self, name: str, value: str) -> tuple[str, int]:
        """Tell something under a name that several ranks use; return what the first of them told, and which one it is.

        Raises:
            LoaderError: The store is gone.
        """
        mine = f"{value} {self.rank}"
        there = bytes(self._ask(self._store.compare_set, f"{self._prefix}/{name}", "", mine)).decode()
        first, _, rank = there.partition(" ")
        return first, int(rank)

    def hear(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return what other ranks told, and wait for it.

        Args:
            names: The name under which each of them tells it.

        Raises:
            LoaderError: One of them failed, died or does not come; or the store is gone.
        """
        deadline = time.monotonic() + self._timeout_s
        keys = {rank: f"{self._prefix}/{name}" for rank, name in names.items()}
        beats: dict[int, tuple[str, float]] = {}
        pause_s, next_look = 0.001, time.monotonic() + _BEAT_S
        while not self._has(*keys.values()):
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _BEAT_S
                self.check()
                missing = [rank for rank, key in keys.items() if not self._has(key)]
                for rank in missing:
                    self._look_after(rank, beats)
                if missing and time.monotonic() > deadline:
                    raise self._error(
                        f"{_named(missing)} did not begin this loader within {self._timeout_s:g} s"
                    )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return {rank: self._get(key) for rank, key in keys.items()}

    def _look_after(self, rank: int, beats: dict[int, tuple[str, float]]) -> None:
        """Raise if `rank` has begun and is silent since."""
        key = f"{self._prefix}/alive/{rank}"
        if not self._has(key):
            return
        beat = self._get(key).decode(errors="replace")
        last, since = beats.get(rank, ("", 0.0))
        if beat != last:
            beats[rank] = (beat, time.monotonic())
        elif time.monotonic() - since > _SILENT_S:
            place = beat.partition(" ")[2]
            raise LoaderError.at(
                f"rank {rank} ({place}) has given no sign of life for {_SILENT_S:g} s while the ranks began: "
                "it was killed, or is stopped",
                todo="look at the output of that rank, and for the kernel's OOM killer",
                failed_rank=rank,
                rank=self.rank,
            )

    def share_seed(self, epoch: int, seed: int) -> int:
        """Return rank 0's `seed` for the `epoch`, on every rank.

        Raises:
            LoaderError: Rank 0 does not come: it failed, has closed its loader, is gone, or is too late.
        """
        key = f"{self._prefix}/seed/{epoch}"
        if self.rank == 0:
            self._ask(self._store.set, key, str(seed))
            return seed
        deadline = time.monotonic() + self._timeout_s
        pause_s = 0.001
        while not self._has(key):
            self.check()
            if self._has(f"{self._prefix}/closed"):
                raise self._error(f"rank 0 has closed its loader, and this rank begins epoch {epoch}")
            if time.monotonic() > deadline:
                raise self._error(f"rank 0 did not begin epoch {epoch} within {self._timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return int(self._get(key))

    def report(self, error: BaseException) -> None:
        """Let the other ranks know of the error that ends this rank's epoch."""
        if self._told:
            return
        self._told = True
        text = f"{type(error).__name__}: {error}"[-_TEXT_LIMIT:]
        with contextlib.suppress(LoaderError):  # the store is gone, and with it who would have listened
            self.tell("failed", json.dumps({"rank": self.rank, "text": text}))
            self.see()

    def see(self) -> None:
        """Say that this rank has heard why the loader ends."""
        with contextlib.suppress(LoaderError):
            self.tell(f"seen/{self.rank}", "1")

    def linger(self, timeout_s: float = 3.0) -> None:
        """After `report`: wait until the others have seen it, for the store may end with this process."""
        deadline = time.monotonic() + timeout_s
        others = [f"{self._prefix}/seen/{rank}" for rank in range(self.world_size) if rank != self.rank]
        with contextlib.suppress(LoaderError):
            while not self._has(*others) and time.monotonic() < deadline:
                time.sleep(0.02)

    def look_round(self) -> None:
        """Call `check` if that has not been done for a second."""
        if time.monotonic() >= self._next_check:
            self.check()

    def check(self) -> None:
        """Look whether another rank has failed.

        Raises:
            LoaderError: One has; the text names it and has its error.
        """
        self._next_check = time.monotonic() + _CHECK_EVERY_S
        if self._told or not self._has(f"{self._prefix}/failed"):
            return
        failed = json.loads(self._get(f"{self._prefix}/failed"))
        if failed["rank"] != self.rank:
            self._told = True
            self.see()
            raise LoaderError.at(
                f"rank {failed['rank']} failed, so this rank's epoch ends here. Its error:\n{failed['text']}",
                todo="",
                failed_rank=failed["rank"],
                rank=self.rank,
            )

    def close(self) -> None:
        """Say that this rank's loader begins no more epochs."""
        # At the end of the program no thread starts any more, and the one that asks would be waited for for ever.
        if self.rank == 0 and not sys.is_finalizing():
            with contextlib.suppress(LoaderError):
                self.tell("closed", "1")

    def _has(self, *keys: str) -> bool:
        return bool(self._ask(self._store.check, list(keys)))

    def _get(self, key: str) -> bytes:
        return bytes(self._ask(self._store.get, key))

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the store answers.

        In a thread, for some stores never answer: one whose process is stopped, and a FileStore whose file ends in the
        middle of a record, since the rank that wrote it was killed.

        Raises:
            LoaderError: The store is gone, or gives no answer for `_ANSWER_S`.
        """
        answer: list[Any] = []
        if not self._mute:
            thread = threading.Thread(
                target=_note, args=(answer, call, arguments), name="rank-asks", daemon=True
            )
            thread.start()
            thread.join(_ANSWER_S)
        if not answer:
            self._mute = True
            raise LoaderError.at(
                f"the store of torch.distributed has given no answer for {_ANSWER_S:g} s: the process it lives in, "
                "most often rank 0, is stopped, or a rank was killed while it wrote to a FileStore",
                todo="look at the output of the other ranks; end this job and begin it again from its checkpoint",
                rank=self.rank,
            )
        if isinstance(answer[0], (RuntimeError, OSError)):
            raise self._gone(answer[0]) from answer[0]
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    def _gone(self, error: Exception) -> LoaderError:
        reason = str(error).partition("\n")[0]
        return LoaderError.at(
            f"the store of torch.distributed is gone ({reason}): the process it lives in, most often rank 0, has ended",
            todo="look at the output of that process",
            rank=self.rank,
        )

    def _error(self, what: str) -> LoaderError:
        return LoaderError.at(
            what,
            todo="every rank must make the same loaders in the same order and iterate them equally often; a loader "
            "of one rank alone takes rank=0, world_size=1 (with DataLoader2: shard_by_rank=False)",
            rank=self.rank,
        )


def _note(answer: list[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer.append(call(*arguments))
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
        answer.append(error)


def _named(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
