"""Counts over all ranks of a job.

A rank adds its new items and skips to a number that all ranks share, and the answer is the count of the job. The
number has 36 bits of items, 26 of skips, and above them whether a rank has failed. Several counts (stages that may
skip a share, digests of batches) take turns. A thread sends the requests at times that differ between the ranks. Small
jobs send more, at most a hundred a second together.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
import xxhash

from torchdata_ais._util.process_end import meanwhile
from torchdata_ais._util.world import World
from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.intervals import LEAST_S, usual_interval
from torchdata_ais.ranks.start_heartbeat import interval_of

_KEPT = 64
"""Number of digests kept for comparison with those of other replicas."""

_TOLD = 16


class _Digest(msgspec.Struct, array_like=True):
    """Digest of all batches of a replica up to a step, so a difference stays."""

    number: int
    step: int
    digest: str


class _Told(msgspec.Struct, array_like=True):
    """Latest digests of one process, the last one at the end."""

    process: int
    digests: list[_Digest]


_told = msgspec.json.Decoder(_Told)


class Replicas:
    """Compares every n-th batch with those of the replicas with the same data.

    A batch costs its digest. Digests are exchanged between batches: all replicas write their latest digests to one
    key, each replacing the value that it read there.
    """

    def __init__(self, ranks: Ranks, world: World, every: int) -> None:
        self._ranks, self._rank, self._every = ranks, world.rank, every
        self._lock = threading.Lock()  # one thread notes, another one publishes
        self._mine: deque[_Digest] = deque(maxlen=_KEPT)
        self._heard = b""
        self._other: _Told | None = None

    def note(self, step: int, batch: object) -> None:
        """Note the batch of a global step, if it is its turn; sends no request."""
        if step % self._every:
            return
        digest = batch_digest(batch)
        with self._lock:
            number, before = (self._mine[-1].number + 1, self._mine[-1].digest) if self._mine else (0, "")
            chained = xxhash.xxh3_64_hexdigest(f"{before} {step} {digest}".encode())
            self._mine.append(_Digest(number, step, chained))

    def exchange(self) -> bool:
        """Publish this process's digests, or read another one's: one request.

        Returns whether they were published.

        Raises:
            LoaderError: Another replica got another batch; both are named. Or the store is gone.
        """
        with self._lock:
            mine = list(self._mine)
        told = msgspec.json.encode(_Told(self._ranks.rank, mine[-_TOLD:]))
        there = self._ranks.replace(f"replica/{self._rank}", self._heard, told)
        self._heard = there
        if there != told:
            self._other = _told.decode(there)
        if self._other is not None:  # it may be ahead, and is compared again until this process is there
            self._compare(mine, self._other)
        return there == told

    def exchange_last(self) -> None:
        """Read the last published digests, and publish those of this process."""
        if not self.exchange():
            self.exchange()

    def _compare(self, mine: list[_Digest], other: _Told) -> None:
        digests = {one.number: one for one in mine}
        known = [(digests[theirs.number], theirs) for theirs in other.digests if theirs.number in digests]
        differ = next((at for at, (ours, theirs) in enumerate(known) if ours.digest != theirs.digest), None)
        if differ is None:
            return
        ours, _ = known[differ]
        before = " or before it" if not differ and ours.number else ""
        raise LoaderError.at(
            f"the processes {other.process} and {self._ranks.rank} share the data of rank {self._rank}, and were given "
            f"different batches in step {ours.step}{before}",
            todo="give both the same pipe, without random stages of your own; look which of them skipped a sample",
            rank=self._ranks.rank,
            failed_rank=other.process,
        )


def batch_digest(batch: object) -> str:
    """Return 16 hexadecimal digits of a batch, of tensors by their bytes.

    Example:
        >>> one = {"x": torch.ones(2), "y": ["a"]}
        >>> batch_digest(one) == batch_digest({"x": torch.ones(2), "y": ["a"]}), batch_digest(one) == batch_digest([])
        (True, False)
    """
    state = xxhash.xxh3_64()
    _add(state, batch)
    return state.hexdigest()


def _add(state: Any, item: object) -> None:
    if isinstance(item, torch.Tensor):
        state.update(f"{item.dtype}{tuple(item.shape)}".encode())
        state.update(item.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    elif isinstance(item, Mapping):
        for name, value in item.items():
            state.update(repr(name).encode())
            _add(state, value)
    elif isinstance(item, (list, tuple)):
        state.update(f"[{len(item)}".encode())
        for value in item:
            _add(state, value)
    else:
        state.update(item if isinstance(item, bytes) else repr(item).encode())


_ITEM_BITS, _SKIP_BITS = 36, 26
_FAILED = 1 << (_ITEM_BITS + _SKIP_BITS)

_TURN = 1.25
"""Intervals after which each rank has sent a request: none is longer by more than a fifth."""


logger = logging.getLogger("torchdata_ais")


class Counted(NamedTuple):
    """Items that stages have seen, and how many of them they gave up."""

    items: int = 0
    skipped: int = 0


class JobCounts:
    """Counts of one rank, added to those of the job.

    `counts` returns this rank's counts so far, one for each count of the job; it is called in a thread.

    Attributes:
        job: The same of all ranks, as of the last request.
        before: The job's counts as of the request before. Since then the others have reported theirs up to that time.
        ranks: How many there are.
    """

    def __init__(
        self, ranks: Ranks, counts: Callable[[], list[Counted]], replicas: Replicas | None = None
    ) -> None:
        self._ranks = ranks
        self.ranks = ranks.world_size
        self._counts = counts
        self._replicas = replicas
        things = len(counts())
        self.job = [Counted()] * things
        self.before = [Counted()] * things
        self._told = [Counted()] * max(1, things)
        self._turns: deque[Callable[[], object]] = deque(
            partial(self._count, n) for n in range(max(1, things))
        )
        if replicas is not None:
            self._turns.append(replicas.exchange)
        self._gone = self._is_failure_told = False
        self._iterations = 0
        self._due = 0.0
        self._turn = threading.Lock()

    def running(self, epoch: int) -> AbstractContextManager[None]:
        """Exchange counts in this context; the first request compares epochs."""
        self._iterations += 1
        return meanwhile(partial(self._run, epoch), "rank-counts", LEAST_S)

    def exchange_next(self) -> None:
        """Exchange one count with the job, each at its turn: one request."""
        with self._turn:  # two simultaneous reports would be counted twice
            turn = self._turns[0]
            self._turns.rotate(-1)
            turn()

    def exchange_last(self) -> None:
        """Exchange all counts at the end of an epoch.

        A store that is gone does not end the training.
        """
        if not self._gone:
            self._goes_on(self._exchange_all)
        self._ranks.raise_heard()

    def exchange_again(self) -> None:
        """After `exchange_last`: read what the others have reported since."""
        time.sleep(_TURN * usual_interval(self.ranks))
        self.exchange_last()

    def _exchange_all(self) -> None:
        with self._turn:
            for number in range(len(self._told)):
                self._count(number)
            if self._replicas is not None:
                self._replicas.exchange_last()

    def _count(self, number: int) -> None:
        mine = self._counts()
        now = mine[number] if mine else Counted()
        before = self._told[number]
        items, skipped = max(0, now.items - before.items), max(0, now.skipped - before.skipped)
        # One number has both counts, so that one request adds and reads both.
        total = self._ranks.add(f"counted/{number}", items + (skipped << _ITEM_BITS))
        self._told[number] = now
        if total & _FAILED:
            self._is_failure_told = True
            self._ranks.check()
        if mine:
            self.before[number] = self.job[number]
            self.job[number] = Counted(
                total & ((1 << _ITEM_BITS) - 1), (total >> _ITEM_BITS) & ((1 << _SKIP_BITS) - 1)
            )

    def tell_failure(self) -> None:
        """Show the other ranks, at their next request, why this one failed."""
        with contextlib.suppress(LoaderError):
            # A second rank that fails takes the bit away again: it adds twice.
            while not self._is_failure_told:
                self._is_failure_told = bool(self._ranks.add("counted/0", _FAILED, wait_s=1.0) & _FAILED)

    def _compare_epochs(self, epoch: int) -> None:
        first, rank = self._ranks.first_to_tell(f"iteration/{self._iterations}", str(epoch))
        if first != str(epoch):
            logger.warning(
                "iteration %d of the loader gives epoch %d on rank %d and epoch %s on rank %d: unless one of them has "
                "iterated for itself, samples of this epoch come twice and others never; call set_epoch alike on all "
                "ranks",
                self._iterations, epoch, self._ranks.rank, first, rank,
            )  # fmt: skip

    def _run(self, epoch: int, over: threading.Event) -> None:
        pause_s = interval_of(self._ranks.rank, self._ranks.world_size)
        self._due = self._due or time.monotonic() + pause_s  # kept from epoch to epoch: they may be shorter
        is_compared = False
        while not over.wait(max(0.0, self._due - time.monotonic())):
            self._due = time.monotonic() + pause_s
            if not is_compared and not self._goes_on(partial(self._compare_epochs, epoch)):
                return
            is_compared = True
            if not self._goes_on(self.exchange_next):
                return

    def _goes_on(self, exchange: Callable[[], object]) -> bool:
        try:
            exchange()
        except LoaderError as error:
            if "failed_rank" in error.place:
                self._ranks.pass_on(error)  # the training loop may be waiting for the others in a collective
            elif not self._gone:
                self._gone = True
                logger.warning("the training goes on, and hears of no other rank any more: %s", error.what)
            return False
        return True
