"""What one rank tells of its run: small, plain, and enough to find among many the one that holds the others up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from torchdata_ais.observe.records import Doing
from torchdata_ais.observe.sketch import Sketch
from torchdata_ais.store import RequestRecord

SILENT_S = 30.0
"""A rank that has not told for so long is silent."""

SHARDS_TOLD = 16
_SHARDS_KEPT = 2048
_PLACES_KEPT = 64
_MOST_RANKS = 1 << 20


class Served(msgspec.Struct, array_like=True):
    """How one shard was served to a rank.

    Attributes:
        host: Who served it last.
        requests: How many requests it took.
        seconds: Time until their first bytes, and waiting for the rest.
        worker: Which worker asked last.
    """

    host: str
    requests: int = 0
    seconds: float = 0.0
    worker: int = 0

    @property
    def each_s(self) -> float:
        """Seconds a request."""
        return self.seconds / max(1, self.requests)


class WorkerSummary(msgspec.Struct):
    """What one worker did for a rank.

    Attributes:
        worker: Its number.
        pid: Its process; 0 before it has told.
        batches: Batches it made.
        made_s: Seconds that took.
        network_s: Those of them spent waiting for bytes.
        delayed_s: Those in which the machine had no processor for it; in none of the others.
        own_s: Stage -> seconds it worked.
        kept_waiting_s: How long the training loop waited for its batches.
        doing: What it does now, if it has been making a batch for long; None where it does not say.
        request: Its oldest request under way: without an answer, if there is one.
    """

    worker: int
    pid: int = 0
    batches: int = 0
    made_s: float = 0.0
    network_s: float = 0.0
    delayed_s: float = 0.0
    own_s: dict[str, float] = {}
    kept_waiting_s: float = 0.0
    doing: Doing | None = None
    request: RequestRecord | None = None


class RankSummary(msgspec.Struct):
    """One rank. The first batch of each worker in an epoch is left out: processes start, connections open.

    Attributes:
        rank, ranks: Which rank of how many.
        node, pid: Where it runs.
        told: When this was written, in seconds since 1970 by the clock of `node`.
        epoch: The epoch under way.
        step: Batches given so far.
        wait: How long the training loop waited for a batch: its readiness.
        loop: How long the loop took with one.
        places: Line of the program -> how often it stood there, of the looks taken while the loop had a batch.
        workers: Its workers.
        targets: Host -> seconds a request took.
        shards: The shards that took longest a request.
        skipped: Error class -> samples given up.
        bytes: Bytes read.
        retries: Requests made again.
        waiting_s: How long the loop has waited for the batch that it waits for now; 0 if it has one.
        ended: How the run ended; empty while it goes on.
        silent_s: How long ago this was written, as it looks to who reads it; 0 where the run has ended.
    """

    rank: Annotated[int, Meta(ge=0, lt=_MOST_RANKS)]
    ranks: Annotated[int, Meta(ge=1, le=_MOST_RANKS)]
    node: str
    pid: int
    told: float = 0.0
    epoch: int = 0
    step: int = 0
    wait: Sketch = msgspec.field(default_factory=Sketch)
    loop: Sketch = msgspec.field(default_factory=Sketch)
    places: dict[str, int] = {}
    workers: list[WorkerSummary] = []
    targets: dict[str, Sketch] = {}
    shards: dict[str, Served] = {}
    skipped: dict[str, int] = {}
    bytes: int = 0
    retries: int = 0
    waiting_s: float = 0.0
    ended: str = ""
    silent_s: float = 0.0

    def worker(self, number: int) -> WorkerSummary:
        """Return what is known of a worker."""
        for one in self.workers:
            if one.worker == number:
                return one
        self.workers.append(WorkerSummary(number))
        return self.workers[-1]

    def stood_at(self, place: str) -> None:
        """Note where the program stands while it has a batch."""
        if place in self.places or len(self.places) < _PLACES_KEPT:
            self.places[place] = self.places.get(place, 0) + 1

    def told_briefly(self) -> RankSummary:
        """Return this with only the slowest shards: what travels."""
        slowest = sorted(self.shards.items(), key=lambda item: -item[1].each_s)[:SHARDS_TOLD]
        return msgspec.structs.replace(self, shards=dict(slowest))


def note_requests(summary: RankSummary, worker: int, requests: Iterable[RequestRecord]) -> None:
    """Count requests of a worker to the targets and shards they were for."""
    for request in requests:
        took_s = (request.first_byte_s or 0.0) + request.read_s
        if request.first_byte_s is None:  # no answer came
            took_s = request.took_s or 0.0
        summary.targets.setdefault(request.host, Sketch()).add(took_s)
        served = summary.shards.setdefault(request.name, Served(request.host))
        served.host, served.worker = request.host, worker
        served.requests += 1
        served.seconds += took_s
        summary.bytes += request.bytes
        summary.retries += request.attempt > 1
    if len(summary.shards) > _SHARDS_KEPT:
        slowest = sorted(summary.shards.items(), key=lambda item: -item[1].each_s)
        summary.shards = dict(slowest[: _SHARDS_KEPT // 2])
