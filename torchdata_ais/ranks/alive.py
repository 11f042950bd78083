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
from collections.abc import Iterator, Mapping

from torchdata_ais.errors import LoaderError
from torchdata_ais.meanwhile import meanwhile
from torchdata_ais.ranks.intervals import usual_interval
from torchdata_ais.ranks.presence import SILENT_S, WaitedFor, named, take_back
from torchdata_ais.ranks.store_calls import StoreCalls
from torchdata_ais.world import World

_CHECK_EVERY_S = 1.0
_BEAT_S = 1.0
_BEATS_A_SECOND = 4000
"""Of all ranks together, while they begin."""

_POLLS_A_SECOND = 1000
"""Of all ranks together, while they wait for what is told."""

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

    Attributes:
        rank, world_size: This process, and how many there are.
        timeout_s: As given.
        calls: The store that they tell each other by.
        prefix: What the names of this loader begin with in the store.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self.rank, self.world_size = world.members
        self.calls = StoreCalls(world.store, self.rank)
        self.timeout_s = timeout_s
        number = self.calls.add(f"torchdata_ais/loaders/{self.rank}", 1)
        self.prefix = f"torchdata_ais/{number}"
        self._next_check = 0.0
        self._told = False
        self._lost: int | None = None  # a rank that will not see what is reported
        self._heard: LoaderError | None = None

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Give the other ranks a sign of life every second while the context lasts, whatever this thread does."""
        key, where = f"{self.prefix}/alive/{self.rank}", f"pid {os.getpid()} on {socket.gethostname()}"

        def beat(over: threading.Event) -> None:
            count = 0
            while not over.wait(max(_BEAT_S, self.world_size / _BEATS_A_SECOND)):
                count += 1
                try:
                    self.calls.store.set(key, f"{count} {where}")
                except (RuntimeError, OSError):  # the thread that waits meets it, too, and says so
                    return

        # The first one here, so that no rank that goes on is unknown to the others.
        self.calls.set(key, f"0 {where}")
        take_back(self.rank, self.calls.has, self.calls.set)
        with meanwhile(beat, "rank-alive", SILENT_S):
            yield

    def tell(self, name: str, value: str | bytes) -> None:
        """Let the other ranks know something, under a name of this loader.

        Raises:
            LoaderError: The store is gone.
        """
        self.calls.set(f"{self.prefix}/{name}", value)

    def first_to_tell(self, name: str, value: str) -> tuple[str, int]:
        """Tell something under a name that several ranks use; return what the first of them told, and which one it is.

        Raises:
            LoaderError: The store is gone.
        """
        mine = f"{value} {self.rank}"
        there = self.calls.compare_set(f"{self.prefix}/{name}", "", mine).decode()
        first, _, rank = there.partition(" ")
        return first, int(rank)

    def replace(self, name: str, expected: bytes, value: bytes) -> bytes:
        """Tell something in place of what is expected to stand under a name; return what stands there then.

        Raises:
            LoaderError: The store is gone.
        """
        return self.calls.compare_set(f"{self.prefix}/{name}", expected.decode(), value.decode())

    def add(self, name: str, value: int, *, wait_s: float | None = None) -> int:
        """Add to a number of this loader that all ranks share; return what it is then.

        Args:
            name: That of the number.
            value: What to add.
            wait_s: How long the store may take; default 30 s.

        Raises:
            LoaderError: The store is gone.
        """
        return self.calls.add(f"{self.prefix}/{name}", value, wait_s=wait_s)

    def told(self, name: str) -> bytes | None:
        """Return what was told under a name of this loader, if anything was; does not wait for it.

        Raises:
            LoaderError: The store is gone.
        """
        key = f"{self.prefix}/{name}"
        return self.calls.get(key) if self.calls.has(key) else None

    def hear(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return what other ranks told, and wait for it.

        Args:
            names: The name under which each of them tells it.

        Raises:
            LoaderError: One of them failed, died or does not come; or the store is gone.
        """
        deadline = time.monotonic() + self.timeout_s
        keys = {rank: f"{self.prefix}/{name}" for rank, name in names.items()}
        waited_for = WaitedFor(self.rank, self.prefix, self.calls.known)
        look_s, longest_s = usual_interval(self.world_size), self._longest_pause_s()
        pause_s, next_look = 0.001, time.monotonic() + look_s
        while not self.calls.has(*keys.values()):
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + look_s
                self.check()
                there = set(self.calls.there(keys))
                missing = [rank for rank in keys if rank not in there]
                waited_for.look_after(missing)
                if missing and time.monotonic() > deadline:
                    raise self._error(
                        f"{named(missing)} did not begin this loader within {self.timeout_s:g} s"
                    )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        return self.calls.get_all(keys)

    def share_seed(self, epoch: int, seed: int) -> int:
        """Return rank 0's `seed` for the `epoch`, on every rank.

        Raises:
            LoaderError: Rank 0 does not come: it failed, has closed its loader, is gone, or is too late.
        """
        key = f"{self.prefix}/seed/{epoch}"
        if self.rank == 0:
            self.calls.set(key, str(seed))
            return seed
        deadline = time.monotonic() + self.timeout_s
        pause_s, longest_s = 0.001, self._longest_pause_s()
        while not self.calls.has(key):
            if time.monotonic() >= self._next_check:
                self.check()
                if self.calls.has(f"{self.prefix}/closed"):
                    raise self._error(f"rank 0 has closed its loader, and this rank begins epoch {epoch}")
            if time.monotonic() > deadline:
                raise self._error(f"rank 0 did not begin epoch {epoch} within {self.timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        return int(self.calls.get(key))

    def _longest_pause_s(self) -> float:
        """Return how long to wait between two looks at the store, so that all ranks together do not swamp it."""
        return max(0.05, self.world_size / _POLLS_A_SECOND)

    def report(self, error: BaseException) -> None:
        """Let the other ranks know of the error that ends this rank's epoch."""
        if self._told:
            return
        self._told = True
        self._lost = error.place.get("failed_rank") if isinstance(error, LoaderError) else None
        text = f"{type(error).__name__}: {error}"[-_TEXT_LIMIT:]
        with contextlib.suppress(LoaderError):  # the store is gone, and with it who would have listened
            self.tell("failed", json.dumps({"rank": self.rank, "text": text, "lost": self._lost}))
            self.see()

    def see(self) -> None:
        """Say that this rank has heard why the loader ends."""
        with contextlib.suppress(LoaderError):
            self.tell(f"seen/{self.rank}", "1")

    def linger(self, timeout_s: float = 3.0) -> None:
        """After `report`: wait until the others have seen it, for the store may end with this process."""
        deadline = time.monotonic() + timeout_s
        without = {self.rank, self._lost}
        others = [f"{self.prefix}/seen/{rank}" for rank in range(self.world_size) if rank not in without]
        with contextlib.suppress(LoaderError):
            while others and not self.calls.has(*others) and time.monotonic() < deadline:
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
        self.raise_heard()
        if self._told or not self.calls.has(f"{self.prefix}/failed"):
            return
        failed = json.loads(self.calls.get(f"{self.prefix}/failed"))
        if failed["rank"] != self.rank:
            self._told, self._lost = True, failed["lost"]
            self.see()
            raise LoaderError.at(
                f"rank {failed['rank']} failed, so this rank's epoch ends here. Its error:\n{failed['text']}",
                todo="",
                failed_rank=failed["rank"],
                rank=self.rank,
            )

    def pass_on(self, error: LoaderError) -> None:
        """Have `check` and `raise_heard` raise what another thread of this process was told by `check`."""
        self._heard = error

    def raise_heard(self) -> None:
        """Raise what another thread was told; asks nobody.

        Raises:
            LoaderError: Another rank has failed; the text names it and has its error.
        """
        if self._heard is not None:
            raise self._heard

    def close(self) -> None:
        """Say that this rank's loader begins no more epochs."""
        # At the end of the program no thread starts any more, and the one that asks would be waited for for ever.
        if self.rank == 0 and not sys.is_finalizing():
            with contextlib.suppress(LoaderError):
                self.tell("closed", "1")

    def _error(self, what: str) -> LoaderError:
        return LoaderError.at(
            what,
            todo="every rank must make the same loaders in the same order and iterate them equally often; a loader "
            "of one rank alone takes rank=0, world_size=1 (with DataLoader2: shard_by_rank=False)",
            rank=self.rank,
        )
