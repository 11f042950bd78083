"""Counts over all ranks of a job.

It adds what this rank has seen and given up since the last time to a number that all share, and so learns what the job
has: 36 bits of items, 26 of skips, and on top whether a rank has failed. Several things (stages that may skip a share,
digests of batches) take turns. It is made in a thread, at a moment that is the rank's own, so that not all ranks ask at
once; small jobs ask more often, at most a hundred times a second together.
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
from torchdata_ais.ranks.start_heartbeat import LEAST_S, interval_of, usual_interval

_KEPT = 64
"""Digests that are kept to compare with what is heard later."""

_TOLD = 16


class _Digest(msgspec.Struct, array_like=True):
    """What a process was given up to a step: the digest is of all batches compared so far, so a difference stays."""

    number: int
    step: int
    digest: str


class _Told(msgspec.Struct, array_like=True):
    """What one process says of itself, the latest last."""

    process: int
    digests: list[_Digest]


_told = msgspec.json.Decoder(_Told)


class Replicas:
    """Compares every n-th batch of this process with those of the others that have the same data.

    A batch costs its digest. What the others were given is heard beside the batches: all of a place leave their latest
    digests under one name, each in place of what it heard there before.

    Args:
        ranks: All processes of the loader, and their store.
        world: This process's rank in the data.
        every: Steps from one comparison to the next.
    """

    def __init__(self, ranks: Ranks, world: World, every: int) -> None:
        self._ranks, self._rank, self._every = ranks, world.rank, every
        self._lock = threading.Lock()  # one thread notes, another one tells
        self._mine: deque[_Digest] = deque(maxlen=_KEPT)
        self._heard = b""
        self._other: _Told | None = None

    def note(self, step: int, batch: Any) -> None:
        """Note the batch of a global step, if it is its turn; asks nobody."""
        if step % self._every:
            return
        digest = batch_digest(batch)
        with self._lock:
            number, before = (self._mine[-1].number + 1, self._mine[-1].digest) if self._mine else (0, "")
            chained = xxhash.xxh3_64_hexdigest(f"{before} {step} {digest}".encode())
            self._mine.append(_Digest(number, step, chained))

    def exchange(self) -> bool:
        """Tell what this process was given, or hear what another one told: one request. Return whether it was told.

        Raises:
            LoaderError: Another replica was given another batch; both are named. Or the store is gone.
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
        """Hear what was told last, and leave what this process was given for those that come later."""
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


def batch_digest(batch: Any) -> str:
    """Return 16 hexadecimal digits of all that is in a batch, tensors by their bytes.

    Example:
        >>> one = {"x": torch.ones(2), "y": ["a"]}
        >>> batch_digest(one) == batch_digest({"x": torch.ones(2), "y": ["a"]}), batch_digest(one) == batch_digest([])
        (True, False)
    """
    state = xxhash.xxh3_64()
    _add(state, batch)
    return state.hexdigest()


def _add(state: Any, item: Any) -> None:
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
"""Intervals after which each rank has asked, for none is longer by more than a fifth."""


logger = logging.getLogger("torchdata_ais")


class Counted(NamedTuple):
    """Items that stages have seen, and how many of them they gave up."""

    items: int = 0
    skipped: int = 0


class JobCounts:
    """One rank's part in what the job counts.

    Args:
        ranks: The ranks, and their store.
        counts: Returns what this rank has counted so far, of each thing that is counted by the job; called in a thread.
        replicas: Compares batches with the processes that get the same, if there are any.

    Attributes:
        job: The same of all ranks, as of the last request.
        before: The same as of the one before: the others have told since then what they saw until then.
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
        self._turn = threading.Lock()

    def running(self, epoch: int) -> AbstractContextManager[None]:
        """Ask now and then while the context lasts, first whether the others are in the same epoch.

        Args:
            epoch: That of this rank.
        """
        self._iterations += 1
        return meanwhile(partial(self._run, epoch), "rank-counts", LEAST_S)

    def exchange_next(self) -> None:
        """Tell what is new of one thing, and hear of the others: one request; the next time of the next thing.

        Raises:
            LoaderError: Another rank has failed, or was given other batches; or the store is gone.
        """
        with self._turn:  # what two threads tell at once would be counted twice
            turn = self._turns[0]
            self._turns.rotate(-1)
            turn()

    def exchange_last(self) -> None:
        """Tell and hear all at the end of an epoch; that the store is gone does not end the training.

        Raises:
            LoaderError: Another rank has failed, or was given other batches.
        """
        if not self._gone:
            self._goes_on(self._exchange_all)
        self._ranks.raise_heard()

    def exchange_again(self) -> None:
        """After `exchange_last`: hear what the others have told since, when each of them has had its turn.

        Raises:
            LoaderError: Another rank has failed, or was given other batches.
        """
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
        """Let the other ranks look why this one has failed, with their next request."""
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
        exchange: Callable[[], object] = partial(self._compare_epochs, epoch)
        while not over.wait(pause_s) and self._goes_on(exchange):
            exchange = self.exchange_next

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
