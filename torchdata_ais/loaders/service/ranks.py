"""What the ranks of a distributed job must agree on, and tell each other when one fails.

Over the store of torch.distributed, not over collectives: nothing to leak per epoch, nobody has to arrive at the same
time, and a rank that waits can see why the others do not come.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch.distributed as dist

from torchdata_ais.errors import LoaderError
from torchdata_ais.loaders._torchdata import FullSync
from torchdata_ais.loaders.service.graph import all_pipes

__all__ = ["Ranks", "join_ranks", "notice_lost_ranks"]

_CHECK_EVERY_S = 1.0
_TEXT_LIMIT = 16 << 10


def join_ranks(signature: str, timeout_s: float) -> Ranks | None:
    """Return this process's place among the ranks; None if torch.distributed is not in use or there is one rank."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return Ranks(signature, timeout_s)


def notice_lost_ranks(pipe: Any) -> None:
    """Let every ``fullsync`` of the graph raise when another rank is gone.

    torchdata's own asks the other ranks in a callback of a thread pool, where an error is logged and forgotten: the
    rank then waits for its time-out of half an hour.
    """
    for part in all_pipes(pipe):
        if type(part) is FullSync:
            part.__class__ = _FullSync  # in place, for the service before this one holds it too


class _FullSync(FullSync):  # type: ignore[misc]
    def _callback_fn(self, expected: Any) -> None:
        try:
            super()._callback_fn(expected)
        except Exception as error:  # noqa: BLE001 - gloo raises RuntimeErrors of many kinds
            with self._cv:
                self._error = LoaderError.at(
                    f"another rank cannot be reached any more: {error}",
                    todo="look for the rank that ended first; its own output says why",
                    rank=dist.get_rank(),
                )
                self._done_callback = True
                self._cv.notify()


class Ranks:
    """One loader as all ranks know it.

    The ranks' loaders are matched by their pipe's shape and the order in which they were first iterated.

    Args:
        signature: The pipe's shape: only loaders of the same shape are matched.
        timeout_s: How long to wait for rank 0 to begin an epoch.
    """

    def __init__(self, signature: str, timeout_s: float) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._timeout_s = timeout_s
        self._store: Any = dist.distributed_c10d._get_default_store()
        number = self._store.add(f"torchdata_ais/{signature}/{self.rank}", 1)
        self._prefix = f"torchdata_ais/{signature}/{number}"
        self._next_check = 0.0
        self._told = False

    def share_seed(self, epoch: int, seed: int) -> int:
        """Return rank 0's `seed` for the `epoch`, on every rank.

        Raises:
            LoaderError: Rank 0 does not come: it failed, has closed its loader, is gone, or is too late.
        """
        key = f"{self._prefix}/seed/{epoch}"
        if self.rank == 0:
            self._store.set(key, str(seed))
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
        return int(self._store.get(key))

    def report(self, error: BaseException) -> None:
        """Let the other ranks know of the error that ends this rank's epoch."""
        if self._told:
            return
        self._told = True
        text = f"{type(error).__name__}: {error}"[-_TEXT_LIMIT:]
        try:
            self._store.set(f"{self._prefix}/failed", json.dumps({"rank": self.rank, "text": text}))
        except (RuntimeError, OSError):  # the store is gone, and with it who would have listened
            return

    def linger(self, timeout_s: float = 3.0) -> None:
        """After `report`: wait until the others have seen it, for the store may end with this process."""
        deadline = time.monotonic() + timeout_s
        others = [f"{self._prefix}/seen/{rank}" for rank in range(self.world_size) if rank != self.rank]
        try:
            while not self._store.check(others) and time.monotonic() < deadline:
                time.sleep(0.02)
        except (RuntimeError, OSError):
            return

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
        failed = json.loads(self._store.get(f"{self._prefix}/failed"))
        if failed["rank"] != self.rank:
            self._told = True
            self._store.set(f"{self._prefix}/seen/{self.rank}", "1")
            raise LoaderError.at(
                f"rank {failed['rank']} failed, so this rank's epoch ends here. Its error:\n{failed['text']}",
                todo="",
                failed_rank=failed["rank"],
                rank=self.rank,
            )

    def close(self) -> None:
        """Say that this rank's loader begins no more epochs."""
        if self.rank == 0:
            try:
                self._store.set(f"{self._prefix}/closed", "1")
            except (RuntimeError, OSError):
                return

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except (RuntimeError, OSError) as error:
            raise self._error(f"the store of torch.distributed is gone ({error})") from error

    def _error(self, what: str) -> LoaderError:
        return LoaderError.at(
            what,
            todo="every rank must make the same loaders in the same order and iterate them equally often; a loader "
            "of one rank alone takes shard_by_rank=False",
            rank=self.rank,
        )
