"""Comparison of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from torchdata_ais._util.formatting import text_table, time_text
from torchdata_ais.observe.diagnosis.blame import Cause, Verdict, listed_ranks, verdict_of
from torchdata_ais.observe.diagnosis.rank_summary import SILENT_S, RankSummary, WorkerSummary

HEAD = ("rank", "node", "step", "wait p50", "p99", "loop p50", "waited", "worker", "skipped")

_LONG_S = 5.0
_STEPS = 5.0
"""A batch that is waited for so many steps is late."""


def standing_still(ranks: list[RankSummary]) -> Verdict | None:
    """Return the rank that stalls the job; None if it progresses, or is over."""
    return _silent(ranks) or _waiting([one for one in ranks if not one.ended])


def _silent(ranks: list[RankSummary]) -> Verdict | None:
    silent = sorted((one for one in ranks if one.silent_s > SILENT_S), key=lambda one: -one.silent_s)
    if not silent:
        return None
    first, since = silent[0], time_text(silent[0].silent_s)
    if len(silent) == len(ranks):
        since = time_text(silent[-1].silent_s)
        text = f"no rank has told anything for {since}, by the clock here: the job was killed, or is stopped"
        return Verdict("silent", text)
    more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
    text = (
        f"rank {first.rank} on {first.node}{more} holds the job up: nothing was heard of it for {since}: it was "
        f"killed, or is stopped; its pid is {first.pid}"
    )
    return Verdict("silent", text, first.rank, None, first.node)


def _waiting(ranks: list[RankSummary]) -> Verdict | None:
    worst = max(ranks, key=lambda one: one.waiting_s, default=None)
    if worst is None or worst.waiting_s < max(_LONG_S, _STEPS * (worst.wait.mean + worst.loop.mean)):
        return None
    worker = max(
        (one for one in worst.workers if one.doing is not None),
        key=lambda one: 0.0 if one.doing is None else one.doing.seconds,
        default=None,
    )
    cause, place, why = _why(ranks, worst, worker)
    number = worker.worker if worker is not None and len(worst.workers) > 1 else None
    waited = f"has waited {time_text(worst.waiting_s)} for the next batch: {why}"
    if len(ranks) > 1 and median(one.waiting_s for one in ranks) > worst.waiting_s / 2:
        return Verdict(
            cause, f"most ranks wait for data, and rank {worst.rank} on {worst.node} {waited}", place=place
        )
    who = f"rank {worst.rank}{'' if number is None else f', worker {number},'} on {worst.node}"
    text = f"{who} holds the job up: it {waited}"
    return Verdict(cause, text, worst.rank, number, worst.node, place)


def _why(
    ranks: list[RankSummary], worst: RankSummary, worker: WorkerSummary | None
) -> tuple[Cause, str, str]:
    """Return the current activity of the worker that makes it."""
    doing = None if worker is None else worker.doing
    if worker is None or doing is None or not doing.stage:
        return "unknown", "", f"its workers do not say what they do; kill -USR2 {worst.pid} puts it on record"
    request = worker.request
    if not doing.reads or request is None:
        cause: Cause = "network" if doing.reads else "decode"
        return cause, doing.stage, f"its worker stands in {doing.stage}"
    asked_s = time_text(request.took_s or 0.0)
    if request.first_byte_s is not None:
        return "shard", request.name, f"{request.name} is under way for {asked_s} from {request.host}"
    text = f"{request.host} has not answered for {asked_s}, asked for {request.name}"
    late = {
        other.request.name: other.request.host
        for one in ranks
        for other in one.workers
        if other.request is not None
        and other.request.first_byte_s is None
        and (other.request.took_s or 0.0) > 1.0
    }
    at_host = sum(host == request.host for host in late.values())
    if at_host > 1 and at_host == len(late):
        return "target", request.host, f"slow target: {text}"
    return "shard", request.name, f"slow shard: {text}"


@dataclass
class Readiness:
    """Readiness of the data on each rank, and the cause of delays.

    `print` shows a table and a sentence.

    Attributes:
        ranks: The report of each rank, in their order.
        missing: Ranks without a report.
        verdict: The cause of delays.
        notes: Further remarks: on silent ranks, on clocks.
    """

    ranks: list[RankSummary]
    missing: list[int]
    verdict: Verdict
    notes: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The rank, worker, node, target or shard that delays the job, and why."""
        return self.verdict.sentence

    def __str__(self) -> str:
        rows = [HEAD, *(row_of(one) for one in self.ranks)]
        return "\n".join([*text_table(rows), *self.notes, self.sentence])

    __repr__ = __str__


def row_of(one: RankSummary) -> tuple[str, ...]:
    """Return a rank as the cells of a table."""
    total_s = one.wait.total_s + one.loop.total_s
    slowest = max(one.workers, key=lambda worker: worker.kept_waiting_s, default=None)
    return (
        str(one.rank),
        one.node,
        str(one.step),
        time_text(one.wait.quantile(0.5)),
        time_text(one.wait.quantile(0.99)),
        time_text(one.loop.quantile(0.5)),
        f"{one.wait.total_s / total_s:.0%}" if total_s else "",
        "" if slowest is None or not slowest.kept_waiting_s else str(slowest.worker),
        str(sum(one.skipped.values())),
    )


def readiness_of(summaries: Iterable[RankSummary], notes: Sequence[str] = ()) -> Readiness:
    """Return how ready the data were, and the cause of delays."""
    ranks = sorted(summaries, key=lambda one: one.rank)
    known = {one.rank for one in ranks}
    missing = [rank for rank in range(max((one.ranks for one in ranks), default=0)) if rank not in known]
    said = list(notes)
    if missing:
        said.append(
            f"nothing is known of {listed_ranks(missing)}: not begun yet, gone, or the folder is not shared"
        )
    begun = [one for one in ranks if one.wait.count]
    verdict = standing_still(ranks)
    if verdict is None:
        verdict = verdict_of(begun) if begun else Verdict("unknown", "no rank has taken a batch yet")
    return Readiness(ranks, missing, verdict, said)
