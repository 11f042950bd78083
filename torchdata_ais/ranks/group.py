"""Ranks of a job, and their failures.

The ranks communicate over the store of torch.distributed, not by collectives. Nothing leaks per epoch, ranks need not
arrive at the same time, and a waiting rank can see why the others do not come.

A store may not answer: its process is stopped, or the file of a FileStore ends within a record because the writing
rank was killed.
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
from datetime import timedelta
from typing import Any

import torch.distributed

from torchdata_ais._util.process_end import meanwhile
from torchdata_ais._util.world import World
from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.intervals import usual_interval
from torchdata_ais.ranks.start_heartbeat import SILENT_S, WaitedFor, named, take_back, text_of

_AT_ONCE = 256
"""Names per request to the store, which must answer within `_ANSWER_S`."""

_ANSWER_S = 30.0
"""Time limit for one call of the store."""


class StoreCalls:
    """The store of one rank; a call of `store` itself may block for ever.

    Each call here raises a LoaderError if the store is gone or does not answer in time.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self.store = store
        self._rank = rank
        self._mute = False  # whether it has once not answered

    def set(self, name: str, value: str | bytes) -> None:
        """Put `value` under a name."""
        self._ask(self.store.set, name, value)

    def add(self, name: str, value: int, *, wait_s: float | None = None) -> int:
        """Add to a number, which starts at 0; return the new value."""
        return int(self._ask(self.store.add, name, value, wait_s=wait_s))

    def compare_set(self, name: str, expected: str, value: str) -> bytes:
        """Compare and set a value, or a missing one; return what is there now."""
        return bytes(self._ask(self.store.compare_set, name, expected, value))

    def has(self, *names: str) -> bool:
        """Return whether all of these are there."""
        return bool(self._ask(self.store.check, list(names)))

    def get(self, name: str) -> bytes:
        """Return the value of a key; wait until it exists."""
        return bytes(self._ask(self.store.get, name))

    def known(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return the values of the ranks whose key exists."""
        return self.get_all({rank: names[rank] for rank in self.there(names)})

    def there(self, names: Mapping[int, str]) -> list[int]:
        """Return the ranks whose names are there."""
        answers = self._of_many(lambda some: [self.store.check([name]) for name in some], names)
        return [rank for rank, there in answers.items() if there]

    def get_all(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return the value of each rank's key."""
        one_call = self.store.has_extended_api()
        answers = self._of_many(
            lambda some: self.store.multi_get(some) if one_call else [self.store.get(name) for name in some],
            names,
        )
        return {rank: bytes(value) for rank, value in answers.items()}

    def gone(self, error: Exception) -> LoaderError:
        """Return the exception to raise for this error of the store."""
        reason = str(error).partition("\n")[0]
        return LoaderError.at(
            f"the store of torch.distributed is gone ({reason}): the process it lives in, most often rank 0, has ended",
            todo="look at the output of that process",
            rank=self._rank,
        )

    def _of_many(self, call: Callable[[list[str]], list[Any]], names: Mapping[int, str]) -> dict[int, Any]:
        """Return the store's answer for each name: rank 0 reads the keys of all."""
        asked, answers = list(names.values()), []
        for begin in range(0, len(asked), _AT_ONCE):
            answers += self._ask(call, asked[begin : begin + _AT_ONCE])
        return dict(zip(names, answers, strict=True))

    def _ask(self, call: Callable[..., object], *arguments: object, wait_s: float | None = None) -> Any:
        wait_s = _ANSWER_S if wait_s is None else wait_s
        answer: list[Any] = []
        if not self._mute:
            name = f"rank-asks for {threading.current_thread().name}"
            thread = threading.Thread(target=_note, args=(answer, call, arguments), name=name, daemon=True)
            thread.start()
            thread.join(wait_s)
        if not answer:
            self._mute = True
            raise LoaderError.at(
                f"the store of torch.distributed has given no answer for {wait_s:g} s: the process it lives in, "
                "most often rank 0, is stopped, or a rank was killed while it wrote to a FileStore",
                todo="look at the output of the other ranks; end this job and begin it again from its checkpoint",
                rank=self._rank,
            )
        if isinstance(answer[0], (RuntimeError, OSError)):
            raise self.gone(answer[0]) from answer[0]
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]


def _note(answer: list[Any], call: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        answer.append(call(*arguments))
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
        answer.append(error)


_CHECK_EVERY_S = 1.0
_BEAT_S = 1.0
_BEATS_A_SECOND = 4000
"""Of all ranks together, while they begin."""

_POLLS_A_SECOND = 1000
"""Polls per second, of all ranks together, while they wait for a value."""


def join_ranks(world: World, timeout_s: float) -> Ranks | None:
    """Return this process's rank; None without other ranks or a common store."""
    return None if world.members[1] == 1 or world.store is None else Ranks(world, timeout_s)


class Ranks:
    """One loader as all ranks know it.

    The loaders of the ranks are matched by the order in which they start: the first of each rank, the second, ...

    Attributes:
        rank, world_size: This process, and how many there are.
        timeout_s: How long to wait for another rank to start this loader, or an epoch of it.
        calls: The store by which the ranks communicate.
        prefix: Prefix of this loader's keys in the store.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self.rank, self.world_size = world.members
        self.calls = StoreCalls(world.store, self.rank)
        self.timeout_s = timeout_s
        number = self.calls.add(f"torchdata_ais/loaders/{self.rank}", 1)
        self.prefix = f"torchdata_ais/{number}"
        self._next_check = 0.0
        self._told = False
        self._lost: int | None = None  # a rank that will not see the report
        self._heard: LoaderError | None = None

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Send a heartbeat every second, from a thread, while the context lasts."""
        key, where = f"{self.prefix}/alive/{self.rank}", f"pid {os.getpid()} on {socket.gethostname()}"

        def beat(over: threading.Event) -> None:
            count = 0
            while not over.wait(max(_BEAT_S, self.world_size / _BEATS_A_SECOND)):
                count += 1
                try:
                    self.calls.store.set(key, f"{count} {where}")
                except (RuntimeError, OSError):  # the waiting thread gets the same error and reports it
                    return

        # The first one is sent here, so that every rank that continues is known to the others.
        self.calls.set(key, f"0 {where}")
        take_back(self.rank, self.calls.has, self.calls.set)
        with meanwhile(beat, "rank-alive", SILENT_S):
            yield

    def tell(self, name: str, value: str | bytes) -> None:
        """Let the other ranks know something, under a name of this loader."""
        self.calls.set(f"{self.prefix}/{name}", value)

    def first_to_tell(self, name: str, value: str) -> tuple[str, int]:
        """Publish a value under a key that several ranks use; the first one wins.

        Returns the first value, and the rank that published it.
        """
        mine = f"{value} {self.rank}"
        there = self.calls.compare_set(f"{self.prefix}/{name}", "", mine).decode()
        first, _, rank = there.partition(" ")
        return first, int(rank)

    def replace(self, name: str, expected: bytes, value: bytes) -> bytes:
        """Compare and set a key of this loader; return its value after the call."""
        return self.calls.compare_set(f"{self.prefix}/{name}", expected.decode(), value.decode())

    def add(self, name: str, value: int, *, wait_s: float | None = None) -> int:
        """Add to a number that all ranks share; return the new value."""
        return self.calls.add(f"{self.prefix}/{name}", value, wait_s=wait_s)

    def told(self, name: str) -> bytes | None:
        """Return the value of a key of this loader, or None; does not wait."""
        key = f"{self.prefix}/{name}"
        return self.calls.get(key) if self.calls.has(key) else None

    def hear_within(self, names: Mapping[int, str], wait_s: float, unless: str) -> dict[int, bytes]:
        """Return the values of all ranks, or nothing if they do not come in time.

        Ranks that are training send no heartbeat: a slow one is not taken for dead. The key `unless` ends the wait.

        Raises:
            LoaderError: A rank reports an error; or the store is gone.
        """
        deadline = time.monotonic() + wait_s
        keys = {rank: f"{self.prefix}/{name}" for rank, name in names.items()}
        pause_s, longest_s = 0.001, self._longest_pause_s()
        while not self.calls.has(*keys.values()):
            if self.calls.has(f"{self.prefix}/{unless}") or time.monotonic() > deadline:
                return {}
            self.look_round()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        return self.calls.get_all(keys)

    def hear(self, names: Mapping[int, str]) -> dict[int, bytes]:
        """Return values of other ranks; wait for them.

        Raises:
            LoaderError: One of them failed, died or does not come; or the store is gone.
        """
        deadline = time.monotonic() + self.timeout_s
        keys = {rank: f"{self.prefix}/{name}" for rank, name in names.items()}
        waited_for = WaitedFor(self.rank, self.prefix, self.calls.known)
        look_s, longest_s = usual_interval(self.world_size), self._longest_pause_s()
        pause_s, next_look = 0.001, time.monotonic() + look_s
        # Polled rather than waited for, so that a rank that failed or died is seen in between.
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
        """Return the polling interval, long enough not to overload the store."""
        return max(0.05, self.world_size / _POLLS_A_SECOND)

    def report(self, error: BaseException) -> None:
        """Let the other ranks know of the error that ends this rank's epoch."""
        if self._told:
            return
        self._told = True
        self._lost = error.place.get("failed_rank") if isinstance(error, LoaderError) else None
        with contextlib.suppress(LoaderError):  # the store is gone, and with it who would have listened
            self.tell("failed", json.dumps({"rank": self.rank, "text": text_of(error), "lost": self._lost}))
            self.see()

    def see(self) -> None:
        """Report that this rank knows why the loader ends."""
        with contextlib.suppress(LoaderError):
            self.tell(f"seen/{self.rank}", "1")

    def linger(self, timeout_s: float = 3.0) -> None:
        """After `report`: wait for the others, since the store may end here."""
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
        """Look whether another rank has failed, and raise its error."""
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
        """Make `check` and `raise_heard` raise an error found by another thread."""
        self._heard = error

    def raise_heard(self) -> None:
        """Raise the error that another thread found; sends no request."""
        if self._heard is not None:
            raise self._heard

    def close(self) -> None:
        """Report that this rank's loader starts no more epochs."""
        # At the end of the program no thread starts any more, and the requesting one would be waited for for ever.
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


BLOCKS_S = 3600.0
"""Time limit of one request on such a connection, which is then repeated."""


def own_connection(store: Any) -> tuple[Any, bool]:
    """Return a store, and whether a call of it may wait: a second connection.

    A FileStore and a HashStore have no connections, and older versions of torch make no second one.
    """
    stores: Any = torch.distributed  # which does not say that it has them
    inner = store
    while isinstance(inner, stores.PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, (stores.FileStore, stores.HashStore)):
        return store, False
    try:
        own = store.clone()
        own.set_timeout(timedelta(seconds=BLOCKS_S))
    except (AttributeError, RuntimeError):  # also of a store that is gone: the shared one reports it
        return store, False
    return own, True
