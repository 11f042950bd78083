"""A run: the same global batches on any topology, each sample once; what may change at a resume loses nothing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais.errors import UsageError
from torchdata_ais.plan import Changes, Run, RunSegment, Sources, round_weights

ONE = (1 << 16,)
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=4)


def begin(sources: Sources, batch: int, seed: int = 0, ranks: int = 1) -> Run:
    weights = sources.weights_at(0)
    return Run(sources, seed, [RunSegment(0, 0, 0, batch, weights, (0,) * len(weights))], ranks=ranks)


def drawn(run: Run, steps: range, rank: int = 0) -> list[tuple[int, int]]:
    """Return the draws ``(source, draw)`` of some steps."""
    found = []
    for step in steps:
        draws = run.at(run.positions(step, rank))
        found += list(zip(draws.source.tolist(), draws.draw.tolist(), strict=True))
    return found


def mixed(data: st.DataObject, sizes: list[int]) -> tuple[int, ...]:
    """Return drawn weights: sixteenths, of which the sequence has a short period, so that it is made quickly."""
    cuts = data.draw(st.sets(st.integers(1, 15), min_size=len(sizes) - 1, max_size=len(sizes) - 1))
    return tuple((end - start) << 12 for start, end in pairwise([0, *sorted(cuts), 16]))


@given(length=st.integers(1, 300), batch=st.integers(8, 60), seed=st.integers(0, 2**64), data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_promise_4_global_batches_are_equal_sets_for_any_number_of_ranks(
    length: int, batch: int, seed: int, data: st.DataObject
) -> None:
    tail = data.draw(st.sampled_from(["short", "drop", "pad"] if length >= batch else ["short", "pad"]))
    shuffle = data.draw(st.sampled_from(["samples", "runs", None]))
    sources = Sources((length,), (64.0,), shuffle=shuffle, tail=tail)
    whole = begin(sources, batch, seed)
    steps = whole.epoch_of(0).end
    expected = [set(drawn(whole, range(step, step + 1))) for step in range(2 * steps)]
    for ranks in (2, 3, 4, 6, 8):
        run = begin(sources, batch, seed, ranks)
        assert run.epoch_of(0).end == steps
        for step in range(2 * steps):
            parts = [drawn(run, range(step, step + 1), rank) for rank in range(ranks)]
            assert all(parts)
            assert set().union(*parts) == expected[step]
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        given_to = [run.given(run.epoch_of(0), rank) for rank in range(ranks)]
        assert given_to == [len(drawn(run, range(steps), rank)) for rank in range(ranks)]
    first = [index for step in range(steps) for index in whole.at(whole.positions(step)).index.tolist()]
    wanted = length // batch * batch if tail == "drop" else length
    assert len(set(first)) == wanted
    assert len(first) == wanted + whole.repeated(whole.epoch_of(0))


@given(sizes=SIZES, batch=st.integers(1, 20), data=st.data())
@settings(max_examples=examples(120), deadline=None)
def test_each_prefix_of_a_mixed_run_is_within_one_sample_and_epochs_end_as_told(
    sizes: list[int], batch: int, data: st.DataObject
) -> None:
    weights = mixed(data, sizes)
    stop = data.draw(st.sampled_from(["first", "all"]))
    sources = Sources(tuple(sizes), weights=weights, stop=stop, shuffle="samples")
    run = begin(sources, batch)
    epoch = run.epoch_of(0)
    draws = run.at(np.arange(run.length(epoch))).source
    for source, weight in enumerate(weights):
        exact = np.arange(1, len(draws) + 1) * weight / (1 << 16)
        assert np.abs(np.cumsum(draws == source) - exact).max() < 1
    counts = run.counts(run.length(epoch))
    if stop == "first":
        assert all(count <= size for count, size in zip(counts, sizes, strict=True))
        assert any(count == size for count, size in zip(counts, sizes, strict=True)) or sum(counts) == 0
    else:
        assert all(count >= size for count, size in zip(counts, sizes, strict=True))


@given(sizes=SIZES, seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_promise_5_weights_sources_and_batch_change_and_no_draw_is_lost_or_repeated(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    """A run of up to four segments, each with weights (0: the source is removed) and a global batch of its own."""
    epoch_steps = data.draw(st.sampled_from([None, 1, 3, 7]))
    stop = data.draw(st.sampled_from(["first", "all"])) if epoch_steps is None else "never"
    batch = data.draw(st.integers(1, 12))
    weights = mixed(data, sizes)

    def sources(weights: tuple[int, ...]) -> Sources:
        return Sources(tuple(sizes), weights=weights, stop=stop, shuffle="samples", epoch_steps=epoch_steps)

    segments = [RunSegment(0, 0, 0, batch, weights, (0,) * len(sizes))]
    seen: list[tuple[int, int]] = []
    step, number = 0, 0
    for _ in range(data.draw(st.integers(1, 4))):
        run = Run(sources(weights), seed, segments)
        more = data.draw(st.integers(0, 12))
        seen += drawn(run, range(step, step + more))
        assert run.epoch_of(step).number >= number
        step += more
        number = run.epoch_of(step).number
        position = run.position(step)
        assert len(seen) == position
        counts = run.counts(position)
        assert counts == tuple(Counter(source for source, _ in seen)[source] for source in range(len(sizes)))
        batch = data.draw(st.sampled_from([batch, 1, 5, 16]))
        changed = data.draw(st.booleans())
        if changed:
            weights = mixed(data, sizes)
            if len(sizes) > 1 and data.draw(st.booleans()):
                weights = (weights[0] + weights[1], 0, *weights[2:])
        segments.append(run.segment(step, batch, weights if changed else None))
    for source in range(len(sizes)):
        draws = [draw for of, draw in seen if of == source]
        assert draws == list(range(len(draws)))  # 0 lost, 0 twice


@given(length=st.integers(1, 60), batch=st.integers(1, 20), steps=st.integers(1, 9))
@settings(max_examples=examples(60), deadline=None)
def test_an_epoch_of_steps_goes_on_in_the_data(length: int, batch: int, steps: int) -> None:
    run = begin(Sources((length,), shuffle="samples", epoch_steps=steps), batch)
    assert [run.epoch_of(step).number for step in range(3 * steps)] == [
        step // steps for step in range(3 * steps)
    ]
    assert drawn(run, range(3 * steps)) == [(0, draw) for draw in range(3 * steps * batch)]


def test_promise_4_a_golden_run() -> None:
    weights = round_weights([3, 1])
    run = begin(Sources((8, 5), weights=weights, shuffle="samples"), 4, seed=11)
    got = [
        list(zip(draws.source.tolist(), draws.index.tolist(), strict=True))
        for draws in (run.at(run.positions(step)) for step in range(3))
    ]
    assert got == [
        [(0, 3), (0, 2), (0, 4), (1, 1)],
        [(0, 5), (0, 0), (0, 1), (1, 4)],
        [(0, 7), (0, 6)],
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"samples": ()}, "index is empty"),
        ({"samples": (0,)}, "index is empty"),
        ({"samples": (4,), "shuffle": "sample"}, "shuffle='sample'"),
        ({"samples": (4,), "tail": "cut"}, "tail='cut'"),
        ({"samples": (4,), "epoch_steps": 0}, "epoch_steps=0"),
        ({"samples": (4,), "stop": "never"}, "epoch_steps="),
    ],
)
def test_sources_that_cannot_be_are_refused(arguments: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Sources(**arguments)


@pytest.mark.parametrize("tail", ["short", "pad", "drop"])
def test_a_batch_larger_than_the_data_is_refused(tail: Any) -> None:
    with pytest.raises(UsageError, match=r"global batch of 8 .* is larger than the epoch, which has 5"):
        begin(Sources((5,), tail=tail), 8).checked()
    begin(Sources((8,), tail=tail), 8).checked()
    begin(
        Sources((5,), tail=tail, epoch_steps=1), 8
    ).checked()  # the data begin again within a batch, as told


def test_a_schedule_that_is_changed_and_comes_to_the_same_weights_loses_no_draw() -> None:
    """The weights hold from step 4 instead of 2 on, and the change is made at 3, where source 1 had its turn."""
    only, both = (1 << 16, 0), (1 << 15, 1 << 15)
    before, after = (
        Sources((50, 50), weights=only, stop="never", epoch_steps=9, changes=Changes(stages=((step, both),)))
        for step in (2, 4)
    )
    run = begin(before, 4)
    seen = drawn(run, range(3))
    segments = [*run.segments, run.segment(3, 4, only)]
    seen += drawn(Run(after, 0, segments), range(3, 8))
    for source in range(2):
        draws = [draw for of, draw in seen if of == source]
        assert draws == list(range(len(draws)))


def test_a_step_or_epoch_before_what_is_known_is_an_error() -> None:
    run = Run(Sources((20,)), 0, [RunSegment(0, 0, 0, 4, ONE, (0,)), RunSegment(7, 28, 1, 2, ONE, (28,))])
    with pytest.raises(IndexError, match="step 6 is before step 7"):
        run.epoch_of(6)
    with pytest.raises(IndexError, match="epoch 0 is before epoch 1"):
        run.epoch(0)
