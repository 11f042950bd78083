"""What is slow although no loop waits for it: batches that are made ahead hide it, as long as they last."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from torchdata_ais.observe.rank_summary import RankSummary, WorkerSummary
from torchdata_ais.observe.slow_requests import MUCH, slow_requests
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.observe.verdict import Verdict

_SHARE = 0.1
"""Work that takes longer than elsewhere by less than this share of the steps' time is not worth a word."""

_LITTLE_S = 2e-3

CHANCE_S = 0.2
"""What takes no longer than this in the whole job, beyond what is usual, may be chance."""


def hidden(ranks: list[RankSummary], ready: str) -> Verdict | None:
    """Return what takes much longer than elsewhere, if anything does.

    Args:
        ranks: What they tell.
        ready: The sentence that says that nobody waits.
    """
    step_s = median([one.wait.mean + one.loop.mean for one in ranks])
    return _of_requests(ranks, ready, step_s) or _of_a_worker(ranks, ready, step_s)


def _of_requests(ranks: list[RankSummary], ready: str, step_s: float) -> Verdict | None:
    cause, place, why = slow_requests(ranks, None)
    if cause == "target":
        slow_s = median([one.targets[place].quantile(0.5) for one in ranks if place in one.targets])
        return Verdict("target", _sentence(ready, why), place=place, hidden=True) if slow_s > step_s else None
    if cause != "shard":
        return None
    served = sorted((one.shards[name].each_s for one in ranks for name in one.shards), reverse=True)
    at = next(one for one in ranks if place in one.shards)
    shard = at.shards[place]
    if shard.each_s < max(step_s, MUCH * served[1] if len(served) > 1 else 0.0):
        return None
    worker = shard.worker if len(at.workers) > 1 else None
    return Verdict("shard", _sentence(ready, why), at.rank, worker, at.node, place, hidden=True)


def _of_a_worker(ranks: list[RankSummary], ready: str, step_s: float) -> Verdict | None:
    workers = [(one, worker) for one in ranks for worker in one.workers if worker.batches]
    if len(workers) < 2:
        return None
    worked = [each_batch([worker])[1] for _, worker in workers]
    stages = {name for own in worked for name in own}
    usual = {name: median([own.get(name, 0.0) for own in worked]) for name in stages}
    more_s, stage, number = max(
        (own_s - usual[name], name, number)
        for number, own in enumerate(worked)
        for name, own_s in own.items()
    )
    (one, worker), takes_s = workers[number], worked[number][stage]
    least_s = max(_SHARE * step_s * len(one.workers), CHANCE_S / worker.batches)
    if takes_s < MUCH * usual[stage] + _LITTLE_S or more_s < least_s:
        return None
    several = len(one.workers) > 1
    why = (
        f"slow decode: {stage} takes {time_text(takes_s)} of worker time a batch at rank {one.rank}"
        f"{f', worker {worker.worker},' if several else ''} on {one.node}, {time_text(usual[stage])} elsewhere"
    )
    number_shown = worker.worker if several else None
    return Verdict("decode", _sentence(ready, why), one.rank, number_shown, one.node, stage, hidden=True)


def _sentence(ready: str, why: str) -> str:
    return f"{ready}; what is made ahead hides a {why}"


def each_batch(workers: Sequence[WorkerSummary]) -> tuple[float, dict[str, float]]:
    """Return seconds a batch that workers waited for bytes, and that their stages worked."""
    batches = max(1, sum(one.batches for one in workers))
    own: dict[str, float] = {}
    for one in workers:
        for name, own_s in one.own_s.items():
            own[name] = own.get(name, 0.0) + own_s / batches
    return sum(one.network_s for one in workers) / batches, own
