"""Causes of slow ranks.

The straggler is the rank whose loop waits for data when those of the others do not. The cause is the work that takes
longer there than elsewhere: bytes of one shard, of one target, of all; or the work of one stage. Where no rank waits
more than the others, a loop itself may be slow. Ranks that exchange gradients then all take as long. The slow one is
at another line of the program than the others, which wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from torchdata_ais._util.formatting import time_text
from torchdata_ais.observe.diagnosis.rank_summary import RankSummary, Served, Sketch, WorkerSummary

Cause = Literal["shard", "target", "network", "decode", "hand-over", "loop", "silent", "none", "unknown"]


@dataclass
class Verdict:
    """The rank that delays the job, and the cause.

    Attributes:
        cause: ``"shard"``, ``"target"``; ``"network"``: all requests of the rank; ``"decode"``: the work of a stage;
            ``"hand-over"``: between worker and loop; ``"loop"``; ``"silent"``: the rank reports nothing any more;
            ``"none"``: the data are ready everywhere; ``"unknown"``: that is not known.
        sentence: The same, in words.
        rank: Which rank; None where it is all of them, or none.
        worker: Which of its workers, where it is one.
        node: Where that rank runs.
        place: The shard, the target, the stage or the line of the program.
        hidden: Whether no loop waits for it: batches that are made ahead last until it is over.
    """

    cause: Cause
    sentence: str
    rank: int | None = None
    worker: int | None = None
    node: str = ""
    place: str = ""
    hidden: bool = False


MUCH = 3.0
"""So many times as long as elsewhere is slow."""

_MORE = 1.5
"""So many times as long as elsewhere is more than chance."""

_LITTLE_S = 2e-3


# One decision with many branches: a target explains more than a shard, and a shard more than the network.
def slow_requests(ranks: list[RankSummary], worst: RankSummary | None) -> tuple[Cause, str, str]:
    """Return the slow requests: of a target, a shard of `worst`, or all."""
    targets: dict[str, Sketch] = {}
    for one in ranks:
        for host, took in one.targets.items():
            targets.setdefault(host, Sketch()).merge(took)
    usual_s = _merged(targets.values()).quantile(0.5)
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


_SHARE = 0.05
"""Share of waiting time below which no reason is looked for."""

_EXPLAINS = 0.25
"""Share of the waiting below which a difference is not its reason."""


_HIDDEN_SHARE = 0.1
"""Share of the steps' time below which slower work is not reported."""

_CHANCE_S = 0.2
"""Seconds in the whole job, beyond the usual, that may be chance."""

_LOOKS = 20
"""Fewest samples of a loop's position that count."""

_APART = 0.35
"""Share of time that ranks must be at other lines to differ."""


def verdict_of(ranks: list[RankSummary]) -> Verdict:
    """Return the cause of delays, from the ranks that have taken a batch."""
    waited_for = _waited_for(ranks)
    if waited_for is not None and waited_for.cause != "hand-over":
        return waited_for
    loop = _slow_loop(ranks)
    if loop.cause == "loop":
        return loop
    step_s = median([one.wait.mean + one.loop.mean for one in ranks])
    hidden = _hidden_requests(ranks, loop.sentence, step_s) or _hidden_worker(ranks, loop.sentence, step_s)
    return hidden or waited_for or loop


def _waited_for(ranks: list[RankSummary]) -> Verdict | None:
    """Return the cause of the loops' waiting; None if the data are ready."""
    waits = {one.rank: one.wait.mean for one in ranks}
    worst = max(ranks, key=lambda one: waits[one.rank])
    others = [one for one in ranks if one is not worst]
    usual_s = median([waits[one.rank] for one in others]) if others else 0.0
    excess_s = waits[worst.rank] - usual_s
    step_s = worst.wait.mean + worst.loop.mean
    is_more = excess_s > max(_LITTLE_S / 2, _SHARE * step_s, _CHANCE_S / max(1, worst.wait.count))
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
    network_s, own = _each_batch(workers)
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
    """Return the worker that caused most of the waiting, or works much longer."""
    if len(worst.workers) < 2:
        return None
    waited_s = sum(one.kept_waiting_s for one in worst.workers)
    slowest = max(worst.workers, key=lambda one: one.kept_waiting_s)
    if slowest.kept_waiting_s > max(0.6, 1.5 / len(worst.workers)) * waited_s:
        return slowest
    takes_s = {}
    for one in worst.workers:
        network_s, own = _each_batch([one])
        takes_s[one.worker] = network_s + sum(own.values())
    slowest = max(worst.workers, key=lambda one: takes_s[one.worker])
    rest = [takes for number, takes in takes_s.items() if number != slowest.worker]
    return slowest if takes_s[slowest.worker] > MUCH * max(rest) + _LITTLE_S else None


def _why(
    worst: RankSummary, worker: WorkerSummary | None, others: list[RankSummary]
) -> tuple[Cause, str, str]:
    """Return the work that takes longer there than elsewhere."""
    there = [worker] if worker is not None else worst.workers
    elsewhere = [_each_batch(one.workers) for one in others if one.workers]
    elsewhere += [_each_batch([one]) for one in worst.workers if worker is not None and one is not worker]
    network_s, own = _each_batch(there)
    usual_network_s = median([one for one, _ in elsewhere] or [0.0])
    usual = {name: median([stages.get(name, 0.0) for _, stages in elsewhere] or [0.0]) for name in own}
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


def listed_ranks(ranks: list[int]) -> str:
    """Return the numbers of ranks, the first of them, for reading."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown})"


def _slow_loop(ranks: list[RankSummary]) -> Verdict:
    """Return which loop is slow, or that none is."""
    worst = max(ranks, key=lambda one: one.loop.mean)
    others = [one for one in ranks if one is not worst]
    if others:
        usual_s = median([one.loop.mean for one in others])
        if worst.loop.mean > 1.5 * usual_s + _LITTLE_S:
            place = _most_at(worst.places)
            return _loop(
                worst, place, f"it takes {time_text(worst.loop.mean)} a step, the others {time_text(usual_s)}"
            )
    apart = {one.rank: _apart(one, [other for other in ranks if other is not one]) for one in ranks}
    worst = max(ranks, key=lambda one: apart[one.rank])
    rest = [apart[one.rank] for one in ranks if one is not worst]
    if len(ranks) > 2 and apart[worst.rank] > _APART and apart[worst.rank] > 1.5 * max(rest):
        places: Counter[str] = Counter()
        for one in ranks:
            places.update(one.places if one is not worst else {})
        waits = _most_at(places)
        place = _most_at(worst.places, waits)
        return _loop(
            worst, place, f"it stands at {place} when the others stand at {waits}, where they wait for it"
        )
    loop_s = median([one.loop.mean for one in ranks])
    text = f"the data are ready on all ranks: their loops take {time_text(loop_s)} a step, and wait for nothing here"
    if len(ranks) == 1:
        text = f"the data are ready: the loop takes {time_text(loop_s)} a step, and waits for nothing here"
    return Verdict("none", text)


def _loop(worst: RankSummary, place: str, why: str) -> Verdict:
    where = f", most of it at {place}" if place and place not in why else ""
    text = f"rank {worst.rank} on {worst.node} holds the job up: slow loop: {why}{where}; its data are ready"
    return Verdict("loop", text, worst.rank, None, worst.node, place)


def _most_at(places: Mapping[str, int], but: str = "") -> str:
    return max((place for place in places if place != but), key=lambda place: places[place], default="")


def _apart(one: RankSummary, others: list[RankSummary]) -> float:
    """Return a rank's share of time at other lines than the others: 0 to 1."""
    shares = [_shares(other) for other in others]
    own = _shares(one)
    places = set(own).union(*shares)
    usual = {place: sum(share.get(place, 0.0) for share in shares) / max(1, len(shares)) for place in places}
    return sum(abs(own.get(place, 0.0) - usual[place]) for place in places) / 2


def _shares(one: RankSummary) -> dict[str, float]:
    total = sum(one.places.values())
    return {place: count / total for place, count in one.places.items()} if total >= _LOOKS else {}


def _hidden_requests(ranks: list[RankSummary], ready: str, step_s: float) -> Verdict | None:
    cause, place, why = slow_requests(ranks, None)
    if cause == "target":
        slow_s = median([one.targets[place].quantile(0.5) for one in ranks if place in one.targets])
        if slow_s > step_s:
            return Verdict("target", _hidden_sentence(ready, why), place=place, hidden=True)
    if cause != "shard":
        return None
    served = sorted((one.shards[name].each_s for one in ranks for name in one.shards), reverse=True)
    at = next(one for one in ranks if place in one.shards)
    shard = at.shards[place]
    if shard.each_s < max(step_s, MUCH * served[1] if len(served) > 1 else 0.0):
        return None
    worker = shard.worker if len(at.workers) > 1 else None
    return Verdict("shard", _hidden_sentence(ready, why), at.rank, worker, at.node, place, hidden=True)


def _hidden_worker(ranks: list[RankSummary], ready: str, step_s: float) -> Verdict | None:
    workers = [(one, worker) for one in ranks for worker in one.workers if worker.batches]
    if len(workers) < 2:
        return None
    worked = [_each_batch([worker])[1] for _, worker in workers]
    stages = {name for own in worked for name in own}
    usual = {name: median([own.get(name, 0.0) for own in worked]) for name in stages}
    more_s, stage, number = max(
        (own_s - usual[name], name, number)
        for number, own in enumerate(worked)
        for name, own_s in own.items()
    )
    (one, worker), takes_s = workers[number], worked[number][stage]
    least_s = max(_HIDDEN_SHARE * step_s * len(one.workers), _CHANCE_S / worker.batches)
    if takes_s < MUCH * usual[stage] + _LITTLE_S or more_s < least_s:
        return None
    several = len(one.workers) > 1
    why = (
        f"slow decode: {stage} takes {time_text(takes_s)} of worker time a batch at rank {one.rank}"
        f"{f', worker {worker.worker},' if several else ''} on {one.node}, {time_text(usual[stage])} elsewhere"
    )
    number_shown = worker.worker if several else None
    return Verdict(
        "decode", _hidden_sentence(ready, why), one.rank, number_shown, one.node, stage, hidden=True
    )


def _hidden_sentence(ready: str, why: str) -> str:
    return f"{ready}; what is made ahead hides a {why}"


def _each_batch(workers: Sequence[WorkerSummary]) -> tuple[float, dict[str, float]]:
    """Return seconds a batch of waiting for bytes, and of work in the stages."""
    batches = max(1, sum(one.batches for one in workers))
    own: dict[str, float] = {}
    for one in workers:
        for name, own_s in one.own_s.items():
            own[name] = own.get(name, 0.0) + own_s / batches
    return sum(one.network_s for one in workers) / batches, own
