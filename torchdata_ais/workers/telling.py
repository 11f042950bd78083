"""What the workers tell beside their items: counts, records of batches, and what they are doing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from torchdata_ais.observe.asking import Asked, ask_all, ask_records
from torchdata_ais.observe.collect import Report
from torchdata_ais.observe.flight import ProcessPart
from torchdata_ais.observe.records import Recorded
from torchdata_ais.workers.channel import Kind, Message
from torchdata_ais.workers.process import Peer
from torchdata_ais.workers.yielding_lock import YieldingLock


class Telling:
    """Takes in what workers tell, and asks them; from any thread.

    Args:
        workers: The workers; more may come.
        turn: Held by who takes their items.

    Attributes:
        reports: The last counts of each worker.
        over: Whether there are no workers any more.
    """

    def __init__(self, workers: Sequence[Peer], turn: YieldingLock) -> None:
        self._workers = workers
        self._turn = turn
        self._asking = threading.Lock()  # one at a time asks the workers what they are doing
        self._last_doing: list[ProcessPart] = []
        self.over = False
        self.reports: dict[int, Report] = {}

    def takes(self, worker: Peer, message: Message) -> bool:
        """Take the message, if it is a report of counts. Who calls holds the lock."""
        if message.kind is not Kind.STATS:
            return False
        report: Report = message.load()
        self.reports[worker.worker_id] = report.after(self.reports.get(worker.worker_id))
        return True

    def doing(self) -> list[ProcessPart]:
        """Return what the workers are doing, of those that were started with `Job.records`.

        Once they have ended: what they were doing when an error came.
        """
        if self.over:
            return self._last_doing
        with self._asking:
            return ask_all(map(_asked, self._with_records()))

    def note_doing(self) -> None:
        """Keep what the workers are doing: whoever hears of an error finds them ended."""
        self._last_doing = self.doing()

    def records(self) -> list[tuple[int, Recorded]]:
        """Return what the workers have noted since this was last asked for."""
        # Where somebody waits for items, reports are taken in as they come.
        if self._turn.lock.acquire(blocking=False):
            try:
                for worker in self._workers:
                    worker.read_all()
                    rest = deque(message for message in worker.inbox if not self.takes(worker, message))
                    worker.inbox = rest
            finally:
                self._turn.lock.release()
        with self._asking:
            asked = self._with_records()
            fresh = ask_records(map(_asked, asked))
        told = {number: report.take() for number, report in list(self.reports.items())}
        parts = (
            (peer.worker_id, Recorded.joined([told.get(peer.worker_id), new]))
            for peer, new in zip(asked, fresh, strict=True)
        )
        return [(worker, recorded) for worker, recorded in parts if recorded is not None]

    def _with_records(self) -> list[Peer]:
        return [worker for worker in self._workers if worker.flight is not None]


def _asked(worker: Peer) -> tuple[str, int, Asked]:
    assert worker.flight is not None
    return worker.name, worker.pid or 0, worker.flight
