"""Steps and slices: a global batch is the same set of positions for any number of ranks."""

from __future__ import annotations

import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais.plan import Slots


@given(length=st.integers(1, 400), batch=st.integers(1, 60), ranks=st.integers(1, 60))
@settings(max_examples=examples(200), deadline=None)
def test_promise_3_the_slices_of_the_ranks_are_each_position_once(
    length: int, batch: int, ranks: int
) -> None:
    ranks = min(ranks, batch)
    slots = Slots(length, batch, ranks)
    seen: list[int] = []
    for step in range(len(slots)):
        slices = [slots.positions(step, rank).tolist() for rank in range(ranks)]
        assert all(slices)  # every rank has every step
        assert max(map(len, slices)) - min(map(len, slices)) <= 1
        step_positions = {position for part in slices for position in part}
        assert step_positions == set(range(step * batch, min(length, (step + 1) * batch)))
        seen += [position for part in slices for position in part]
    assert len(seen) == length + slots.repeated()
    assert set(seen) == set(range(length))


@given(length=st.integers(1, 400), batch=st.integers(1, 60), ranks=st.integers(1, 60))
@settings(max_examples=examples(100), deadline=None)
def test_drop_and_pad_have_only_whole_batches(length: int, batch: int, ranks: int) -> None:
    ranks = min(ranks, batch)
    padded = Slots(length, batch, ranks, "pad")
    everything = [
        p for s in range(len(padded)) for r in range(ranks) for p in padded.positions(s, r).tolist()
    ]
    assert everything == [position % length for position in range(len(padded) * batch)]
    assert len(everything) == length + padded.repeated()
    if length >= batch:
        dropped = Slots(length, batch, ranks, "drop")
        everything = [
            p for s in range(len(dropped)) for r in range(ranks) for p in dropped.positions(s, r).tolist()
        ]
        assert everything == list(range(length // batch * batch))
        assert dropped.repeated() == 0


def test_the_batches_of_a_rank_go_round_its_workers() -> None:
    slots = Slots(100, 4, 2)
    assert [slots.worker(step, 3) for step in range(5)] == [0, 1, 2, 0, 1]
    assert slots.worker(7, 0) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 4), "at least one position"),
        ((10, 2, 3), "leaves a rank without any"),
        ((10, 0), "leaves a rank without any"),
        ((10, 4, 1, "cut"), "short, drop, pad"),
        ((3, 4, 1, "drop"), "larger than the epoch"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Slots(*arguments)


def test_a_step_or_rank_that_is_not_there_is_refused() -> None:
    slots = Slots(10, 4, 2)
    for step, rank in ((3, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError):
            slots.positions(step, rank)
