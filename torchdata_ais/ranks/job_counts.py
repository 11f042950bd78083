"""What the ranks tell each other while they train: one request to the store a rank, every 10 s, beside the batches.

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
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from torchdata_ais.errors import LoaderError
from torchdata_ais.meanwhile import meanwhile
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.ranks.intervals import LEAST_S, interval_of, usual_interval
from torchdata_ais.ranks.replicas import Replicas

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
