"""The state of reading by index: small, JSON, and refused if anything in it cannot be."""

from __future__ import annotations

import base64
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
from torchdata_ais.state import (
    EpochBegin,
    MergedState,
    PlanState,
    Segment,
    SourceCounts,
    StreamState,
    from_plain,
    packed,
    to_plain,
    unpacked,
)


def digest(source: int) -> str:
    return xxhash.xxh64_hexdigest(str(source).encode())


def plan(sources: int, most: int, *, changed: bool) -> PlanState:
    """Return the state of a run in the middle of an epoch, with numbers of the sources up to `most`."""
    draws, begins, one = [most] * sources, [most // 2] * sources, [most] * sources
    return PlanState(
        plan=1,
        sources=bytes.fromhex("".join(map(digest, range(sources)))),
        weights=digest(0),
        order="shuffle='samples', stop='first'",
        seed=0,
        segments=[Segment(0, 0, 0, 4096), *([Segment(1000, sum(begins), 1, 4096)] if changed else [])],
        step=2000,
        epoch=EpochBegin(2, 1500, sum(begins)),
        counts=SourceCounts(
            *(packed(numbers) for numbers in (one, draws, begins, one)),
            packed(one) if changed else b"",
            [[packed(begins), packed(one)]] if changed else [],
        ),
    )


TWO = PlanState(
    plan=1,
    sources=bytes.fromhex(digest(0) + digest(1)),
    weights=digest(2),
    order="stop='first'",
    seed=7,
    segments=[Segment(0, 0, 0, 64), Segment(10, 640, 1, 128), Segment(20, 1920, 2, 256)],
    step=25,
    epoch=EpochBegin(2, 20, 1900),
    counts=SourceCounts(
        packed([1000, 2000]),
        packed([960, 1600]),
        packed([640, 0]),
        packed([40, 400]),
        packed([1000, 2000]),
        [[packed([100, 0]), packed([900, 0])], [packed([0, 500]), packed([300, 700])]],
        [0],
    ),
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


@pytest.mark.parametrize("sources", [1, 2, 10, 50, 200])
@pytest.mark.parametrize("most", [10**3, 60_000, 10**9])
def test_a_plan_state_has_400_bytes_and_32_a_source(sources: int, most: int) -> None:
    """Also with sources of 10^9 samples; in an epoch that a change has interrupted, 16 more a source."""
    assert len(json.dumps(to_plain(plan(sources, most, changed=False)))) <= 400 + 32 * sources
    assert len(json.dumps(to_plain(plan(sources, most, changed=True)))) <= 440 + 48 * sources


def test_packed_numbers_have_the_width_of_the_largest() -> None:
    for numbers in ([0], [255], [256, 0], [1, 2, (1 << 63) - 1]):
        assert unpacked(packed(numbers), len(numbers)) == numbers
    assert [len(packed([most, 0])) for most in (255, 256, 1 << 16)] == [2, 4, 6]


def row(plain: dict[str, Any], place: int, numbers: list[int]) -> None:
    """Replace numbers of the sources in a state."""
    plain["counts"][place] = base64.b64encode(packed(numbers)).decode()


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
        (lambda s: s.update(sources=""), "sources"),
        (lambda s: s.update(sources="x"), "sources"),
        (lambda s: s.update(sources=s["sources"][:-4]), "not digests of 8 bytes"),
        (lambda s: s.update(sources=base64.b64encode(bytes(16)).decode()), "source is there twice"),
        (lambda s: row(s, 0, [1, 1, 1]), "one number for each source"),
        (lambda s: row(s, 1, [1]), "one number for each source"),
        (lambda s: row(s, 1, [1 << 63, 0]), "one number for each source"),
        (lambda s: row(s, 3, [1]), "one number for each source"),
        (lambda s: row(s, 4, [1, 1, 1]), "one number for each source"),
        (lambda s: row(s, 0, [0, 2000]), "no sample"),
        (lambda s: s["counts"].__setitem__(6, [2]), "removed source there is none of"),
        (lambda s: s["counts"].__setitem__(6, [0, 0]), "removed source there is none of"),
        (lambda s: s["counts"].__setitem__(6, [-1]), "counts"),
        (lambda s: s["counts"][5][0].__setitem__(1, "AAA="), "not of a round"),
        (lambda s: row({"counts": s["counts"][5][0]}, 1, [1100, 0]), "not of a round"),
        (lambda s: row({"counts": s["counts"][5][0]}, 1, [100, 0]), "not of a round"),
        (lambda s: s.update(weights="x"), "weights"),
        (lambda s: s.update(segments=[]), "segments"),
        (lambda s: s["segments"].append([25, 2560, 2, 128, 20, 1900]), "segments"),
        (lambda s: s["segments"].pop(0), "not the beginning"),
        (lambda s: s["segments"].reverse(), "not the beginning"),
        (lambda s: s["segments"].__setitem__(0, None), "not the beginning"),
        (lambda s: s["segments"].__setitem__(2, None), "not the beginning"),
        (lambda s: s["segments"][1].__setitem__(0, 21), "do not follow"),
        (lambda s: s["segments"][1].__setitem__(2, 3), "do not follow"),
        (lambda s: row(s, 1, [960, 950]), "do not follow"),
        (lambda s: s["epoch"].__setitem__(0, 1), "do not follow"),
        (lambda s: s["segments"][1].__setitem__(1, 641), "as many as its positions"),
        (lambda s: s["segments"][1].__setitem__(3, 0), "segments"),
        (lambda s: row(s, 2, [0, 1601]), "less often later"),
        (lambda s: s["epoch"].__setitem__(1, 26), "begins after a step of that epoch"),
        (lambda s: s["epoch"].__setitem__(2, 2561), "begins after a step of that epoch"),
        (lambda s: s["segments"][1].__setitem__(4, 11), "begins after a step of that epoch"),
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
        "counts",
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
