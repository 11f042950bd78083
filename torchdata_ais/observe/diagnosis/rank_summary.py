"""Summary of a rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import torch
import torch.distributed as dist
from msgspec import Meta
from typing_extensions import Self

from torchdata_ais._util.world import known_ranks
from torchdata_ais.errors import LoaderError
from torchdata_ais.observe.diagnosis.batch_records import Doing
from torchdata_ais.store import RequestRecord

ERROR = 0.02
"""Relative error bound of a quantile."""

_LOG_GROWTH = math.log((1 + ERROR) / (1 - ERROR))
_LEAST_S = 1e-6
_MOST = 1 + math.ceil(math.log(1e5 / _LEAST_S) / _LOG_GROWTH)  # a day and more


class Sketch(msgspec.Struct, array_like=True):
    """Counts of durations by their logarithm: at most 634 buckets.

    A quantile it gives is within 2 % of a value that was added, from a microsecond to a day.

    Attributes:
        counts: Bucket -> how many durations fell into it.
        total_s: Their sum.

    Example:
        >>> sketch = Sketch()
        >>> for number in range(1, 101):
        ...     sketch.add(number / 1000)
        >>> round(sketch.quantile(0.5), 3), sketch.count
        (0.05, 100)
    """

    counts: dict[int, int] = {}
    total_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= bucket <= _MOST and count >= 0 for bucket, count in self.counts.items()):
            raise ValueError("the durations are none")

    @property
    def count(self) -> int:
        """Number of durations added."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Their mean; 0 of none."""
        return self.total_s / max(1, self.count)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        bucket = 0 if seconds <= _LEAST_S else min(_MOST, 1 + int(math.log(seconds / _LEAST_S) / _LOG_GROWTH))
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total_s += seconds

    def merge(self, other: Sketch) -> Self:
        """Add the counts of another one."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total_s += other.total_s
        return self

    def quantile(self, share: float) -> float:
        """Return the duration that `share` of all do not exceed; 0 of none."""
        wanted, seen = share * (self.count - 1), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen > wanted:
                # In the middle of the bucket's borders, so that neither is further off than the error.
                return 0.0 if bucket == 0 else _LEAST_S * math.exp(_LOG_GROWTH * (bucket - 1)) * (1 + ERROR)
        return 0.0


SILENT_S = 30.0
"""Seconds after its last report when a rank counts as silent."""

SHARDS_TOLD = 16
_SHARDS_KEPT = 2048
_PLACES_KEPT = 64
_MOST_RANKS = 1 << 20


class Served(msgspec.Struct, array_like=True):
    """Requests of a rank for one shard; host and worker are those of the last.

    Attributes:
        seconds: Time until their first bytes, and waiting for the rest.
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
    """Work of one worker for a rank.

    Attributes:
        pid: Its process; 0 before its first report.
        made_s: Seconds that making its batches took.
        network_s: Those of them spent waiting for bytes.
        delayed_s: Those in which the machine had no processor for it; in none of the others.
        own_s: Stage -> seconds it worked.
        kept_waiting_s: How long the training loop waited for its batches.
        doing: Its activity, if it has been making a batch for long; None without a report.
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
    """Summary of one rank.

    The first batch of each worker in an epoch is left out: processes start, connections open.

    Attributes:
        told: When this was written, in seconds since 1970 by the clock of `node`.
        step: Batches given so far.
        wait: How long the training loop waited for a batch: its readiness.
        loop: How long the loop took with one.
        places: Line of the program -> how often it was there, of the samples taken while the loop had a batch.
        targets: Host -> seconds a request took.
        shards: The shards that took longest a request.
        skipped: Error class -> samples given up.
        waiting_s: How long the loop has waited for the batch that it waits for now; 0 if it has one.
        ended: How the run ended; empty while it runs.
        silent_s: The age of this report, by the reader's clock; 0 where the run has ended.
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
        """Return the record of a worker."""
        for one in self.workers:
            if one.worker == number:
                return one
        self.workers.append(WorkerSummary(number))
        return self.workers[-1]

    def stood_at(self, place: str) -> None:
        """Record the current line of the program while it has a batch."""
        if place in self.places or len(self.places) < _PLACES_KEPT:
            self.places[place] = self.places.get(place, 0) + 1

    def told_briefly(self) -> RankSummary:
        """Return this with only the slowest shards, for sending."""
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


def gather(summary: RankSummary, group: Any, timeout_s: float) -> list[RankSummary]:
    """Return the summaries of all ranks of `group`; a collective call."""
    mine = bytearray(msgspec.msgpack.encode(summary))
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    _, size = known_ranks(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    _wait(sizes, torch.tensor([len(mine)], device=device), group, timeout_s)
    longest = int(max(sizes))
    padded = torch.frombuffer(mine.ljust(longest, b"\0"), dtype=torch.uint8).to(device)
    told = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(size)]
    _wait(told, padded, group, timeout_s)
    return [
        msgspec.msgpack.decode(one[: int(length)].cpu().numpy().tobytes(), type=RankSummary)
        for one, length in zip(told, sizes, strict=True)
    ]


def _wait(into: list[torch.Tensor], mine: torch.Tensor, group: Any, timeout_s: float) -> None:
    deadline, pause_s = time.monotonic() + timeout_s, 0.0005
    try:
        work: Any = dist.all_gather(into, mine, group=group, async_op=True)
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise LoaderError.at(
                    f"not all ranks of the group asked for the report within {timeout_s:g} s",
                    todo="call it on all of them; `torchdata-ais watch` of a run_dir= tells which one is stopped "
                    "or gone",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        work.wait()
    except RuntimeError as error:
        if isinstance(error, LoaderError):
            raise
        reason = str(error).partition("\n")[0]
        raise LoaderError.at(
            f"the report needs all ranks of the group, and one is gone ({reason})",
            todo="look at the output of the other ranks; `torchdata-ais watch` of a run_dir= tells of the rest",
        ) from error
