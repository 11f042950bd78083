"""Which rank holds the others up, and why: out of what all of them tell.

The straggler is the rank whose loop waits for data when those of the others do not. Why it waits is what takes longer
there than elsewhere: bytes of one shard, of one target, of all; or the work of one stage. Where no rank waits more
than the others, a loop itself may be slow: ranks that exchange gradients then all take as long, and the one to blame
stands in another line of the program than the others, which wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from torchdata_ais.observe.hidden import CHANCE_S, each_batch, hidden
from torchdata_ais.observe.rank_summary import RankSummary, WorkerSummary
from torchdata_ais.observe.slow_loop import slow_loop
from torchdata_ais.observe.slow_requests import MUCH, slow_requests
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.observe.verdict import Cause, Verdict

_MORE = 1.5
"""So many times as much work as elsewhere is more than chance."""

_SHARE = 0.05
"""Waiting for less than this share of the time is no reason to look for one."""

_EXPLAINS = 0.25
"""What takes longer by less than this share of the waiting is not why."""

_LITTLE_S = 2e-3


def verdict_of(ranks: list[RankSummary]) -> Verdict:
    """Return who holds the job up, out of what ranks tell that have taken a batch."""
    waited_for = _waited_for(ranks)
    if waited_for is not None and waited_for.cause != "hand-over":
        return waited_for
    loop = slow_loop(ranks)
    if loop.cause == "loop":
        return loop
    return hidden(ranks, loop.sentence) or waited_for or loop


def _waited_for(ranks: list[RankSummary]) -> Verdict | None:
    """Return what loops wait for; None if the data are ready."""
    waits = {one.rank: one.wait.mean for one in ranks}
    worst = max(ranks, key=lambda one: waits[one.rank])
    others = [one for one in ranks if one is not worst]
    usual_s = median([waits[one.rank] for one in others]) if others else 0.0
    excess_s = waits[worst.rank] - usual_s
    step_s = worst.wait.mean + worst.loop.mean
    is_more = excess_s > max(_LITTLE_S / 2, _SHARE * step_s, CHANCE_S / max(1, worst.wait.count))
    if others and is_more and waits[worst.rank] > 2 * usual_s:
        return _straggler(worst, others, usual_s)
    if median(waits.values()) > max(_LITTLE_S / 2, _SHARE * step_s):
        return _all_wait(ranks, median(waits.values()))
    return None


def _straggler(worst: RankSummary, others: list[RankSummary], usual_s: float) -> Verdict:
    worker = _worker_of(worst)
    who = f"rank {worst.rank}{'' if worker is None else f', worker {worker.worker},'} on {worst.node}"
    waited = (
        f"its loop waited {time_text(worst.wait.total_s)} for data in {worst.wait.count} steps "
        f"({time_text(worst.wait.mean)} a step), those of the other ranks {time_text(usual_s)} a step"
    )
    cause, place, why = _why(worst, worker, others)
    number = None if worker is None else worker.worker
    return Verdict(cause, f"{who} holds the job up: {why}; {waited}", worst.rank, number, worst.node, place)


def _all_wait(ranks: list[RankSummary], usual_s: float) -> Verdict:
    workers = [worker for one in ranks for worker in one.workers]
    network_s, own = each_batch(workers)
    stage = max(own, key=lambda name: own[name], default="")
    cause, place, why = slow_requests(ranks, None)
    if stage and own[stage] > network_s * (1 if cause == "network" else MUCH):
        cause, place = "decode", stage
        why = f"slow decode: {stage} takes {time_text(own[stage])} of worker time a batch"
    elif cause == "network":
        why = f"slow network: workers wait {time_text(network_s)} a batch for bytes"
    if (delayed_s := _delayed(workers)) > max(network_s, own.get(stage, 0.0)) and cause not in (
        "shard",
        "target",
    ):
        cause, place = "hand-over", ""
        why = f"workers wait {time_text(delayed_s)} a batch for a processor: the machines are busy"
    several = "all ranks wait for data" if len(ranks) > 1 else "the loop waits for data"
    return Verdict(cause, f"{several}, {time_text(usual_s)} a step: {why}", place=place)


def _worker_of(worst: RankSummary) -> WorkerSummary | None:
    """Return the worker for which most of the waiting was, or which works much longer, if it is one of several."""
    if len(worst.workers) < 2:
        return None
    waited_s = sum(one.kept_waiting_s for one in worst.workers)
    slowest = max(worst.workers, key=lambda one: one.kept_waiting_s)
    if slowest.kept_waiting_s > max(0.6, 1.5 / len(worst.workers)) * waited_s:
        return slowest
    takes_s = {one.worker: _takes(one) for one in worst.workers}
    slowest = max(worst.workers, key=lambda one: takes_s[one.worker])
    rest = [takes for number, takes in takes_s.items() if number != slowest.worker]
    return slowest if takes_s[slowest.worker] > MUCH * max(rest) + _LITTLE_S else None


def _takes(worker: WorkerSummary) -> float:
    """Return seconds a batch, without those in which the machine had no processor for it."""
    network_s, own = each_batch([worker])
    return network_s + sum(own.values())


def _why(
    worst: RankSummary, worker: WorkerSummary | None, others: list[RankSummary]
) -> tuple[Cause, str, str]:
    """Return what takes longer there than elsewhere."""
    there = [worker] if worker is not None else worst.workers
    elsewhere = [each_batch(one.workers) for one in others if one.workers]
    elsewhere += [each_batch([one]) for one in worst.workers if worker is not None and one is not worker]
    network_s, own = each_batch(there)
    usual_network_s = _median([one for one, _ in elsewhere])
    usual = {name: _median([stages.get(name, 0.0) for _, stages in elsewhere]) for name in own}
    stage = max(own, key=lambda name: own[name] - usual[name], default="")
    more_work_s = own[stage] - usual[stage] if stage and own[stage] > _MORE * usual[stage] else 0.0
    more_network_s = network_s - usual_network_s
    kept_waiting_s = sum(one.kept_waiting_s for one in there) / max(1, sum(one.batches for one in there))
    if max(more_work_s, more_network_s) < max(_LITTLE_S / 4, _EXPLAINS * kept_waiting_s):
        made_s = sum(one.made_s for one in there) / max(1, sum(one.batches for one in there))
        if (delayed_s := _delayed(there)) > made_s / 2:
            why = f"its workers wait {time_text(delayed_s)} a batch for a processor: the node is busy"
        else:
            why = f"its batches are made in {time_text(made_s)} and come late: the node is busy"
        return "hand-over", "", why
    asked = slow_requests([worst, *others], worst)
    # A target that is slow for all ranks is so for this one, too, without any excess.
    waited_s = more_network_s if asked[0] in ("network", "hand-over") else network_s
    if more_work_s < waited_s:
        return asked
    return "decode", stage, (
        f"slow decode: {stage} takes {time_text(own[stage])} of worker time a batch there, "
        f"{time_text(usual[stage])} elsewhere"
    )  # fmt: skip


def _delayed(workers: Sequence[WorkerSummary]) -> float:
    """Return seconds a batch in which the machine had no processor for it."""
    return sum(one.delayed_s for one in workers) / max(1, sum(one.batches for one in workers))


def _median(values: list[float]) -> float:
    return median(values) if values else 0.0


def listed_ranks(ranks: list[int]) -> str:
    """Return the numbers of ranks, the first of them, for reading."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown})"
