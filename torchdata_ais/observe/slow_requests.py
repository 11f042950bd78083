"""Which requests are slow, of all that the ranks have told of: those to one target, for one shard, or all of a rank."""

from __future__ import annotations

from collections.abc import Iterable

from torchdata_ais.observe.rank_summary import RankSummary, Served
from torchdata_ais.observe.sketch import Sketch
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.observe.verdict import Cause

MUCH = 3.0
"""So many times as long as elsewhere is slow."""

_MORE = 1.5
"""So many times as long as elsewhere is more than chance."""

_LITTLE_S = 2e-3


def slow_requests(ranks: list[RankSummary], worst: RankSummary | None) -> tuple[Cause, str, str]:
    """Return which requests are slow: those to one target, for one shard of `worst` (or of any), or all of a rank."""
    targets: dict[str, Sketch] = {}
    for one in ranks:
        for host, took in one.targets.items():
            targets.setdefault(host, Sketch()).merge(took)
    every = _merged(targets.values())
    usual_s = every.quantile(0.5)
    shards: dict[str, Served] = {}
    for one in ranks if worst is None else [worst]:
        shards.update(one.shards)
    host = max(targets, key=lambda name: targets[name].quantile(0.5), default="")
    rest = _merged(took for name, took in targets.items() if name != host)
    several = sum(served.host == host for one in ranks for served in one.shards.values()) > 1
    if several and rest.count and targets[host].quantile(0.25) > MUCH * rest.quantile(0.5) + _LITTLE_S:
        return "target", host, (
            f"slow target: {host} takes {time_text(targets[host].quantile(0.5))} a request, the others "
            f"{time_text(rest.quantile(0.5))}"
        )  # fmt: skip
    name = max(shards, key=lambda shard: shards[shard].each_s, default="")
    if name and shards[name].each_s > MUCH * usual_s + _LITTLE_S:
        slow = [one for one in shards.values() if one.each_s > shards[name].each_s / 2]
        if len(slow) <= max(1, len(shards) // 8):
            return "shard", name, (
                f"slow shard: {name} takes {time_text(shards[name].each_s)} a request at {shards[name].host}, "
                f"others {time_text(usual_s)}"
            )  # fmt: skip
    if worst is None:
        return "network", "", ""
    mine = _merged(worst.targets.values())
    theirs = _merged(took for one in ranks if one is not worst for took in one.targets.values())
    if theirs.count and mine.quantile(0.5) < _MORE * theirs.quantile(0.5):
        return (
            "hand-over",
            "",
            "its requests take no longer than elsewhere, and its batches come late: the node is busy",
        )
    return "network", worst.node, (
        f"slow network: requests of that rank take {time_text(mine.quantile(0.5))}, in the whole job "
        f"{time_text(usual_s)}"
    )  # fmt: skip


def _merged(parts: Iterable[Sketch]) -> Sketch:
    total = Sketch()
    for part in parts:
        total.merge(part)
    return total
