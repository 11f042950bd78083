"""Which loop is slow: by how long it takes, or, where all wait for it, by the lines of the program it stands at.

Ranks that exchange gradients all take as long as the slowest: the one to blame stands in another line of the program
than the others, which wait for it.
"""

from __future__ import annotations

from statistics import median

import msgspec

from torchdata_ais.observe.rank_summary import RankSummary
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.observe.verdict import Verdict

_LITTLE_S = 2e-3
_LOOKS = 20
"""Fewer looks at where a loop stands tell nothing."""

_APART = 0.35
"""How much of their time ranks must stand at other lines to differ."""


def slow_loop(ranks: list[RankSummary]) -> Verdict:
    """Return which loop is slow, or that none is."""
    worst = max(ranks, key=lambda one: one.loop.mean)
    others = [one for one in ranks if one is not worst]
    if others:
        usual_s = median([one.loop.mean for one in others])
        if worst.loop.mean > 1.5 * usual_s + _LITTLE_S:
            place = _most_at(worst)
            return _loop(
                worst, place, f"it takes {time_text(worst.loop.mean)} a step, the others {time_text(usual_s)}"
            )
    apart = {one.rank: _apart(one, [other for other in ranks if other is not one]) for one in ranks}
    worst = max(ranks, key=lambda one: apart[one.rank])
    rest = [apart[one.rank] for one in ranks if one is not worst]
    if len(ranks) > 2 and apart[worst.rank] > _APART and apart[worst.rank] > 1.5 * max(rest):
        waits = _most_at(_merged_places([one for one in ranks if one is not worst]))
        place = _most_at(worst, waits)
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


def _most_at(one: RankSummary, but: str = "") -> str:
    return max(
        (place for place in one.places if place != but), key=lambda place: one.places[place], default=""
    )


def _merged_places(ranks: list[RankSummary]) -> RankSummary:
    total: dict[str, int] = {}
    for one in ranks:
        for place, count in one.places.items():
            total[place] = total.get(place, 0) + count
    return msgspec.structs.replace(ranks[0], places=total)


def _apart(one: RankSummary, others: list[RankSummary]) -> float:
    """Return which share of its time a rank stands elsewhere than the others do: 0 to 1."""
    shares = [_shares(other) for other in others]
    own = _shares(one)
    places = set(own).union(*shares)
    usual = {place: sum(share.get(place, 0.0) for share in shares) / max(1, len(shares)) for place in places}
    return sum(abs(own.get(place, 0.0) - usual[place]) for place in places) / 2


def _shares(one: RankSummary) -> dict[str, float]:
    total = sum(one.places.values())
    return {place: count / total for place, count in one.places.items()} if total >= _LOOKS else {}
