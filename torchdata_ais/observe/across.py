"""How ready the data of the ranks were: what all of them tell, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchdata_ais.observe.blame import listed_ranks, verdict_of
from torchdata_ais.observe.rank_summary import RankSummary
from torchdata_ais.observe.standing import standing_still
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.observe.verdict import Verdict
from torchdata_ais.tables import text_table

HEAD = ("rank", "node", "step", "wait p50", "p99", "loop p50", "waited", "worker", "skipped")


@dataclass
class Readiness:
    """How ready the data were on each rank, and who held the job up; `print` shows a table and the sentence.

    Attributes:
        ranks: What each rank told, in their order.
        missing: Ranks that told nothing.
        verdict: Who holds the job up, and why.
        notes: What else there is to say: of ranks that are silent, of clocks.
    """

    ranks: list[RankSummary]
    missing: list[int]
    verdict: Verdict
    notes: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """Which rank, worker, node, target or shard holds the job up, and why."""
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
    """Return how ready the data were, and who held the job up.

    Args:
        summaries: What the ranks told; some may be missing.
        notes: What is to be said besides.
    """
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
