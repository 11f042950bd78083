"""The state of reading by index: small, JSON, and refused if anything in it cannot be."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import xxhash

from torchdata_ais import AISSourceLister, ais_loader, merge_states, state_from_json, state_to_json
from torchdata_ais.errors import StateError
from torchdata_ais.state import MergedState, PlanState, Segment, StreamState, from_plain, to_plain

MOST = 10**12  # samples and steps of a very long run


def digest(source: int) -> str:
    return xxhash.xxh64_hexdigest(str(source).encode())


def plan(sources: int, segments: int, most: int = MOST) -> PlanState:
    """Return the state of a run of `segments` weight sets over `sources`, with large numbers everywhere."""
    rows = []
    for number in range(segments):
        step = most * number // segments
        draw = step // sources
        rows.append(Segment(step, draw * sources, number, 4096, [draw] * sources if draw else []))
    return PlanState(
        plan=1,
        sources=[digest(one) for one in range(sources)],
        removed=list(range(sources - 1)),
        weights=digest(0),
        order="shuffle='samples', stop='first'",
        seed=2**63,
        segments=rows,
        step=most,
        position=(most // sources + 1) * sources,
        epoch=segments,
        draws=[most // sources + 1] * sources,
    )


TWO = PlanState(
    plan=1,
    sources=[digest(0), digest(1)],
    removed=[0],
    weights=digest(2),
    order="stop='first'",
    seed=7,
    segments=[
        Segment(0, 0, 0, 64),
        Segment(10, 640, 1, 128, [640, 0]),
        Segment(20, 1920, 2, 128, [960, 960]),
    ],
    step=25,
    position=2560,
    epoch=2,
    draws=[960, 1600],
)


def test_a_plan_state_travels_as_json_and_by_torch_save() -> None:
    plain = to_plain(TWO)
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    for travelled in (
        json.loads(json.dumps(plain)),
        torch.load(file, weights_only=True),
        state_from_json(state_to_json(plain)),
        dict(reversed(plain.items())),
    ):
        assert travelled == plain
        assert from_plain(travelled) == TWO


@pytest.mark.parametrize("sources", [1, 2, 4, 9])
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_a_plan_state_is_small(sources: int, segments: int) -> None:
    """Below 1 KB with up to 4 sources and one segment; 64 bytes more for each source of each segment."""
    size = len(json.dumps(to_plain(plan(sources, segments))))
    assert size <= 1000 + 64 * max(0, sources * segments - 4)
    more = len(json.dumps(to_plain(plan(sources + 1, segments)), separators=(",", ":")))
    less = len(json.dumps(to_plain(plan(sources, segments)), separators=(",", ":")))
    assert more - less <= 64 * segments


def forged(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the state with a change and a checksum that is right again."""
    plain = copy.deepcopy(to_plain(TWO))
    edit(plain)
    assert plain != to_plain(TWO)
    bare = {name: value for name, value in plain.items() if name not in ("format", "version", "checksum")}
    return {**plain, "checksum": xxhash.xxh64_hexdigest(msgspec.json.encode(bare, order="sorted"))}


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda s: s.update(plan=0), "plan"),
        (lambda s: s.update(seed="7"), "seed"),
        (lambda s: s.update(seed=1 << 5000), "number in it is too large"),
        (lambda s: s.update(step=-1), "step"),
        (lambda s: s.update(step=19), "begins after its step"),
        (lambda s: s.update(more=1), "more"),
        (lambda s: s.pop("plan"), "plan"),
        (lambda s: s.update(sources=[]), "sources"),
        (lambda s: s.update(sources=["x", digest(1)]), "sources"),
        (lambda s: s.update(sources=[digest(1), digest(1)]), "source is there twice"),
        (lambda s: s["sources"].append(digest(2)), "one number of draws a source"),
        (lambda s: s.update(removed=[2]), "removed source there is none of"),
        (lambda s: s.update(removed=[0, 0]), "removed source there is none of"),
        (lambda s: s.update(removed=[-1]), "removed"),
        (lambda s: s.update(weights="x"), "weights"),
        (lambda s: s.update(segments=[]), "segments"),
        (lambda s: s["segments"].pop(0), "not the beginning"),
        (lambda s: s["segments"].reverse(), "not the beginning"),
        (lambda s: s["segments"][1].__setitem__(0, 21), "do not follow"),
        (lambda s: s["segments"][1].__setitem__(2, 3), "do not follow"),
        (lambda s: s.update(position=1900, draws=[960, 940]), "do not follow"),
        (lambda s: s.update(draws=[960, 1601]), "as many as its positions"),
        (lambda s: s.update(epoch=1), "do not follow"),
        (lambda s: s["segments"][1].__setitem__(1, 641), "as many as its positions"),
        (lambda s: s["segments"][1].__setitem__(3, 0), "segments"),
        (lambda s: s["segments"][2].__setitem__(4, [600, 1320]), "less often later"),
        (lambda s: s["within"].__setitem__(0, 26), "begins after a step of that epoch"),
        (lambda s: s["within"].__setitem__(1, 2561), "begins after a step of that epoch"),
        (lambda s: s["segments"][1].__setitem__(5, 11), "begins after a step of that epoch"),
        (lambda s: s["within"].__setitem__(2, [1]), "more samples than were drawn"),
        (lambda s: s["within"].__setitem__(slice(2, 4), [[1, 1, 1]] * 2), "more samples than were drawn"),
        (lambda s: s["within"].__setitem__(slice(2, 4), [[961, 0], [0, 0]]), "more samples than were drawn"),
        (lambda s: s["segments"][1].__setitem__(7, [641, 0]), "more samples than were drawn"),
    ],
)
def test_promise_5_a_plan_state_that_cannot_be_is_refused(
    edit: Callable[[dict[str, Any]], object], match: str
) -> None:
    with pytest.raises(StateError, match=f"The state is damaged: .*{match}"):
        from_plain(forged(edit))


@pytest.mark.parametrize(
    "name",
    [
        "plan",
        "sources",
        "order",
        "seed",
        "segments",
        "step",
        "position",
        "draws",
        "checksum",
        "kind",
        "version",
    ],
)
def test_promise_5_one_change_of_a_plan_state_is_refused(name: str) -> None:
    plain = to_plain(TWO)
    for value in (None, 2, "1", [], [[]], {}, 2.5):
        with pytest.raises(StateError):
            from_plain({**plain, name: value})
    with pytest.raises(StateError):
        from_plain({key: value for key, value in plain.items() if key != name})


def test_a_plan_state_is_not_for_streams() -> None:
    pipe = AISSourceLister("s.tar").load_tar().group_samples()
    with ais_loader(pipe) as loader, pytest.raises(StateError, match="of reading by index, not of streams"):
        loader.load_state_dict(to_plain(TWO))
    assert merge_states([to_plain(TWO), to_plain(TWO)]) == to_plain(TWO)
    other = to_plain(msgspec.structs.replace(TWO, seed=8))
    with pytest.raises(StateError, match="needs no merging"):
        merge_states([to_plain(TWO), other])


def test_a_rank_is_in_a_merged_state_once() -> None:
    one = StreamState(stages=["load_tar()"], ranks=2)
    other = StreamState(stages=["load_tar()"], ranks=2, rank=1)
    assert len(MergedState(merged=[one, other]).parts) == 2
    with pytest.raises(ValueError, match="a rank is there twice"):
        MergedState(merged=[one, one])
