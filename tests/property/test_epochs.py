"""Epoch n has what epoch 0 has, compared with lists of what has come: mixtures, runs, remainders, changes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchdata_ais.errors import UsageError
from torchdata_ais.plan import Changes, Run, RunSegment, Sources

EPOCHS = 7
ONE = (1 << 16,)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
TAILS = ("short", "drop", "pad")

Sample = tuple[int, int]


def mixed(data: st.DataObject, count: int, *, zero: bool = False) -> tuple[int, ...]:
    """Return drawn weights: sixteenths, of which the sequence has a short period, so that it is made quickly."""
    least = 0 if zero else 1
    cuts = data.draw(
        st.lists(st.integers(least, 16 - least), min_size=count - 1, max_size=count - 1, unique=not zero)
    )
    return tuple((end - start) << 12 for start, end in pairwise([0, *sorted(cuts), 16]))


def begin(sources: Sources, batch: int, seed: int = 0, ranks: int = 1) -> Run:
    return Run.begun(sources, seed, batch, ranks)


def samples_of(run: Run, step: int) -> list[Sample]:
    """Return the samples of a step, over all ranks, in their order."""
    found: list[Sample] = []
    for rank in range(run.ranks):
        draws = run.at(run.positions(step, rank))
        found += zip(draws.source.tolist(), draws.index.tolist(), strict=True)
    return found


def epochs_of(run: Run, count: int = EPOCHS) -> list[list[list[Sample]]]:
    """Return the batches of some epochs."""
    found = []
    for number in range(count):
        epoch = run.epoch(number)
        assert epoch.number == number
        found.append([samples_of(run, step) for step in range(epoch.step, epoch.end)])
    return found


def check_rounds(seen: list[Sample], sizes: list[int]) -> None:
    """Fail unless all samples of each source came before one of it came again."""
    for source, size in enumerate(sizes):
        indexes = [index for of, index in seen if of == source]
        for start in range(0, len(indexes), size):
            part = indexes[start : start + size]
            assert len(set(part)) == len(part), (source, start)


def check_prefixes(epoch: list[Sample], weights: tuple[int, ...]) -> None:
    """Fail unless each beginning of an epoch is within one sample of the weights."""
    of = np.array([source for source, _ in epoch])
    for source, weight in enumerate(weights):
        exact = np.arange(1, len(of) + 1) * weight / (1 << 16)
        assert np.abs(np.cumsum(of == source) - exact).max() < 1


def without_fill(run: Run, batches: list[list[Sample]]) -> list[Sample]:
    """Return what an epoch gives without what fills its last batch up."""
    flat = [sample for batch in batches for sample in batch]
    return flat[: len(flat) - run.repeated(run.epoch(0))]


@given(sizes=SIZES, batch=st.integers(1, 12), seed=st.integers(0, 2**40), data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_promise_3_each_epoch_of_a_mixture_is_like_the_first(
    sizes: list[int], batch: int, seed: int, data: st.DataObject
) -> None:
    stop: Any = data.draw(st.sampled_from(["first", "all"]))
    tail: Any = data.draw(st.sampled_from(TAILS))
    shuffle: Any = data.draw(st.sampled_from(["samples", "runs", None]))
    weights = mixed(data, len(sizes))
    sources = Sources(tuple(sizes), weights=weights, stop=stop, tail=tail, shuffle=shuffle)
    try:
        run = begin(sources, batch, seed).checked()
    except UsageError:
        assume(False)
    batches = epochs_of(run)
    assert len({len(one) for one in batches}) == 1  # (a)
    epochs = [without_fill(run, one) for one in batches]
    assert {len(one) for one in epochs} == {len(epochs[0])}
    for epoch in epochs:
        counts = Counter(epoch)
        if stop == "first":
            assert max(counts.values()) == 1  # (b)
        elif tail != "drop":
            assert len(counts) == sum(sizes)
        check_prefixes(epoch, weights)  # (d)
    if tail != "drop" or len(sizes) > 1:
        check_rounds([sample for epoch in epochs for sample in epoch], sizes)  # (c)
    if shuffle is not None and len(set(epochs[0])) > 20:
        assert all(one != other for one, other in pairwise(epochs))  # (e)
    # The length is the longest, or the shortest.
    length, quota = len(epochs[0]), [source for source, _ in epochs[0]]
    if tail != "drop" and stop == "all":
        of_last = Counter(quota[:-1])
        assert any(of_last[source] < size for source, size in enumerate(sizes))
    if tail != "drop" and stop == "first":
        more = begin(Sources(tuple(2 * size for size in sizes), weights=weights, stop="first"), 1)
        following = Counter(more.at(np.arange(length + 1)).source.tolist())
        assert any(following[source] > size for source, size in enumerate(sizes))
    # Any position alone is what it is among all.
    everything = run.at(np.arange(3 * length))
    for position in range(0, 3 * length, 7):
        alone = run.at([position])
        assert (alone.source[0], alone.index[0], alone.draw[0]) == (
            everything.source[position],
            everything.index[position],
            everything.draw[position],
        )


@given(
    size=st.integers(1, 90),
    batch=st.integers(1, 40),
    mean=st.floats(1.0, 1e7),
    seed=st.integers(0, 2**40),
    tail=st.sampled_from(TAILS),
)
@settings(max_examples=examples(100), deadline=None)
def test_promise_3_runs_have_each_sample_in_an_epoch_and_leave_none_out_for_good(
    size: int, batch: int, mean: float, seed: int, tail: Any
) -> None:
    run = begin(Sources((size,), (mean,), shuffle="runs", tail=tail), min(batch, size), seed)
    epochs = [[sample for one in batches for sample in one] for batches in epochs_of(run)]
    for epoch in epochs:
        whole = size if tail != "drop" else size - size % min(batch, size)
        assert len(set(epoch)) == whole


def test_promise_3_runs_with_drop_read_every_sample_over_the_epochs() -> None:
    """103 samples in batches of 32: each epoch leaves 7 out, which are others in the next."""
    for seed in range(5):
        run = begin(Sources((103,), shuffle="runs", tail="drop"), 32, seed)
        seen = {sample for batches in epochs_of(run, 60) for batch in batches for sample in batch}
        assert len(seen) == 103


def test_adjacent_samples_of_runs_change_with_the_epoch() -> None:
    run = begin(Sources((400,), shuffle="runs"), 80)  # runs of ten
    borders, short = [], []
    for batches in epochs_of(run, 40):
        indexes = [index for batch in batches for _, index in batch]
        cuts = [place for place, (one, other) in enumerate(pairwise(indexes)) if other != (one + 1) % 400]
        borders.append({indexes[place] % 10 for place in cuts})
        assert len(cuts) <= 40
    assert {len(one) for one in borders} == {1}
    assert len(set().union(*borders)) > 5
    run = begin(Sources((403,), shuffle="runs"), 80)
    for batches in epochs_of(run, 40):
        indexes = [index for batch in batches for _, index in batch]
        cuts = [
            -1,
            *(place for place, (one, other) in enumerate(pairwise(indexes)) if other != (one + 1) % 403),
            402,
        ]
        short += [first for first, last in pairwise(cuts) if (last - first) % 10 == 3]
    assert len(set(short)) > 10


def test_promise_5_runs_keep_their_length_when_the_batch_changes() -> None:
    """Runs have the length that follows from the first batch: with that of the last segment samples would be lost."""
    sources = Sources((4096,), (1.0,), shuffle="runs")
    for before, after in ((512, 64), (64, 512), (512, 96)):
        run = begin(sources, before)
        seen = [sample for step in range(3) for sample in samples_of(run, step)]
        run = Run(sources, 0, [*run.segments, run.segment(3, after)], ranks=2)
        epoch = run.epoch_of(3)
        seen += [sample for step in range(3, epoch.end) for sample in samples_of(run, step)]
        assert sorted(index for _, index in seen) == list(range(4096))


@given(sizes=SIZES, seed=st.integers(0, 2**40), data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_promise_5_changes_at_any_step_lose_and_double_nothing(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    """Weights (0 removes a source), batch and ranks change in the middle of epochs.

    All samples of a source come before one of it comes again, over all changes; no epoch of "first" has a sample twice,
    and each of "all" has all samples of the sources that it has at its end.
    """
    stop: Any = data.draw(st.sampled_from(["first", "all"]))
    tail: Any = data.draw(st.sampled_from(TAILS))
    shuffle: Any = data.draw(st.sampled_from(["samples", "runs", None]))
    batch, weights = data.draw(st.integers(1, 6)), mixed(data, len(sizes))

    def sources(weights: tuple[int, ...]) -> Sources:
        return Sources(tuple(sizes), weights=weights, stop=stop, shuffle=shuffle, tail=tail)

    segments = [RunSegment(0, 0, 0, batch, weights, (0,) * len(sizes))]
    epochs: dict[int, list[Sample]] = {}
    seen: list[Sample] = []
    steps: Counter[int] = Counter()
    step = number = 0
    dropped = False
    try:
        run = Run(sources(weights), seed, segments)
    except UsageError:
        assume(False)
    for part in range(data.draw(st.integers(1, 5))):
        if part:
            more = data.draw(st.booleans())
            if more:
                weights = mixed(data, len(sizes), zero=True)
            batch = data.draw(st.sampled_from([batch, 1, 3, 5]))
            segments.append(run.segment(step, batch, weights if more else None))
        try:
            run = Run(sources(weights), seed, segments, ranks=min(batch, 2)).checked()
        except UsageError:
            assume(False)
        first = run.epoch_of(step)
        assert first.number >= number
        if tail == "drop" and first.number > number and sum(weight > 0 for weight in weights) == 1:
            dropped = True  # what is left of the epoch makes no batch of the new size
        for _ in range(data.draw(st.integers(0, 25))):
            epoch = run.epoch_of(step)
            number = epoch.number
            got = samples_of(run, step)
            steps[number] += 1
            if step + 1 == epoch.end:
                assert epoch.steps == steps[number]  # what was said beforehand
                repeated = run.repeated(epoch)
                if tail == "short" and repeated:
                    got = list(dict.fromkeys(got))
                elif repeated:
                    distinct = len(set(got))
                    assert distinct == len(got) or distinct <= len(sizes) * max(sizes)
                    got = got[: len(got) - repeated]
                if (
                    sum(weight > 0 for weight in weights) == 1
                    and tail == "drop"
                    and run.position(epoch.end) > epoch.position + run.length(epoch)
                ):
                    dropped = True  # one source alone begins the next round
                if stop == "all" and tail != "drop":
                    have = Counter(epochs.get(number, []) + got)
                    for source, weight in enumerate(weights):
                        if weight:
                            assert all(have[source, index] for index in range(sizes[source]))
            seen += got
            epochs.setdefault(number, []).extend(got)
            step += 1
        number = run.epoch_of(step).number
    if not dropped:
        check_rounds(seen, sizes)
        counts = run.counts(run.position(step))
        assert counts == tuple(Counter(source for source, _ in seen)[source] for source in range(len(sizes)))
    if stop == "first":
        for epoch in epochs.values():
            assert max(Counter(epoch).values()) == 1


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("sizes", [(5, 4), (3, 7), (4, 5, 2)])
def test_promise_3_an_epoch_that_was_changed_twice_keeps_its_promise(
    sizes: tuple[int, ...], stop: Any
) -> None:
    """At each step of the first epochs, and again some steps later, the weights become others."""
    some = [tuple((end - start) << 12 for start, end in pairwise(cuts)) for cuts in _CUTS[len(sizes)]]

    def sources(weights: tuple[int, ...]) -> Sources:
        return Sources(sizes, weights=weights, stop=stop, shuffle="samples")

    everything = {(source, index) for source, size in enumerate(sizes) for index in range(size)}
    plain = begin(sources(some[0]), 1)
    for step, later in product(range(plain.epoch(3).step), (1, 2, 4)):
        for second, third in ((some[1], some[2]), (some[2], some[1])):
            run = Run(sources(second), 0, [*plain.segments, plain.segment(step, 1, second)])
            again = Run(sources(third), 0, [*run.segments, run.segment(step + later, 1, third)])
            epochs: dict[int, list[Sample]] = {}
            for number in range(again.epoch_of(step + later).end + 1):
                known = plain if number < step else run if number < step + later else again
                epochs.setdefault(known.epoch_of(number).number, []).extend(samples_of(known, number))
            *whole, _ = epochs.values()
            if stop == "all":
                assert all(set(epoch) == everything for epoch in whole), (step, later, second, third)
            else:
                assert all(len(set(epoch)) == len(epoch) for epoch in whole), (step, later, second, third)


_CUTS = {2: [(0, 8, 16), (0, 15, 16), (0, 2, 16)], 3: [(0, 6, 12, 16), (0, 12, 14, 16), (0, 2, 4, 16)]}


@given(sizes=SIZES, batch=st.integers(2, 30), seed=st.integers(0, 2**40), data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_pad_fills_from_the_start_of_the_epoch_and_doubles_nothing_in_a_batch(
    sizes: list[int], batch: int, seed: int, data: st.DataObject
) -> None:
    stop: Any = data.draw(st.sampled_from(["first", "all"]))
    sources = Sources(tuple(sizes), weights=mixed(data, len(sizes)), stop=stop, shuffle="samples", tail="pad")
    ranks = data.draw(st.integers(1, 2))
    try:
        run = begin(sources, batch, seed, ranks).checked()
    except UsageError:
        assume(False)
    whole = [samples_of(run, step) for step in range(run.epoch(0).end)]
    at = data.draw(st.integers(0, run.epoch(0).end))
    other = data.draw(st.integers(2, 40))
    try:
        run = Run(sources, seed, [*run.segments, run.segment(at, other)], ranks=ranks).checked()
    except UsageError:
        assume(False)
    for number in range(2):
        epoch = run.epoch(run.epoch_of(at).number + number)
        last = samples_of(run, epoch.end - 1)
        assert len(last) == other
        fill = run.repeated(epoch)
        left, filled = last[: other - fill], last[other - fill :]
        distinct = len(set(last))
        there = len({sample for batch in whole for sample in batch})
        assert distinct - len(set(left)) == min(fill, there - len(set(left))) or distinct >= other - len(
            left
        ) + len(set(left))
        if stop == "first":
            assert distinct == len(last)
        if epoch.number == 0 and stop == "first" and fill:
            flat = [sample for batch in whole for sample in batch]
            assert filled == [sample for sample in flat if sample not in left][: len(filled)]


def test_pad_after_a_resume_with_a_larger_batch_takes_no_sample_twice() -> None:
    sources = Sources((20,), shuffle="samples", tail="pad")
    run = begin(sources, 4)
    first = samples_of(run, 0) + samples_of(run, 1)
    run = Run(sources, 0, [*run.segments, run.segment(4, 8)])  # four samples are left
    (epoch,) = {run.epoch_of(4).number}
    assert epoch == 0
    last = samples_of(run, 4)
    assert len(set(last)) == 8
    assert last[4:] == first[:4]
    begun = begin(sources, 4)
    run = Run(sources, 0, [*begun.segments, begun.segment(1, 6)])  # 16 are left: 6, 6 and 4
    assert samples_of(run, 3)[4:] == first[:2]


@pytest.mark.parametrize("stop", ["first", "all", "never"])
@pytest.mark.parametrize("start", [11, 12, 13])
def test_weights_hold_from_exactly_their_position_on(stop: Any, start: int) -> None:
    """Also where a run is resumed, with other weights or the same, exactly there, and one before or after."""
    only, other, both = (1 << 16, 0), (0, 1 << 16), (1 << 15, 1 << 15)
    steps = 100 if stop == "never" else None
    plain = Sources((50, 50), weights=only, stop=stop, epoch_steps=steps)
    changes = Changes(stages=((start, other),))
    after = Sources((50, 50), weights=only, stop=stop, epoch_steps=steps, changes=changes)
    run = begin(after, 1)
    assert run.at(np.arange(20)).source.tolist() == [0] * start + [1] * (20 - start)
    assert run.counts(start) == (start, 0)
    assert run.counts(start + 1) == (start, 1)
    run = begin(plain, 1)
    changed = Run(after, 0, [*run.segments, run.segment(12, 1, after.weights_at(12))])
    got = changed.at(np.arange(12, 20)).source.tolist()
    assert got == [0] * (start - 12) + [1] * (20 - max(start, 12))
    assert after.weights_at(start - 1) == only
    assert after.weights_at(start) == other
    assert both != other


def test_epochs_of_a_schedule_end_where_their_own_windows_end() -> None:
    """Cats alone from 0, cats and dogs from step 15 on: epochs of 100, then one of both kinds, then equal ones."""
    only, both = (1 << 16, 0), (1 << 15, 1 << 15)

    def sources_of(stop: Any, step: int) -> Sources:
        changes = Changes(stages=((step, both),))
        return Sources((100, 40), weights=only, stop=stop, shuffle="samples", changes=changes)

    for stop in ("first", "all"):
        run = begin(sources_of(stop, 15), 10)
        lengths = [run.length(run.epoch(number)) for number in range(6)]
        assert lengths == ([100, 131, 81, 81, 81, 81] if stop == "first" else [100, 149, 199, 199, 199, 199])
        epochs = [[sample for batch in batches for sample in batch] for batches in epochs_of(run, 6)]
        for number, epoch in enumerate(epochs):
            counts = Counter(epoch)
            if stop == "first":
                assert max(counts.values()) == 1
            else:
                assert len(counts) == (100 if number == 0 else 140)
        check_rounds([sample for epoch in epochs for sample in epoch], [100, 40])
        # A change exactly at the end of an epoch begins the next one.
        run = begin(sources_of(stop, 20), 10)
        lengths = [run.length(run.epoch(number)) for number in range(4)]
        assert lengths == ([100, 100, 81, 81] if stop == "first" else [100, 100, 199, 199])
        run = begin(sources_of(stop, 10), 10)
        lengths = [run.length(run.epoch(number)) for number in range(3)]
        assert lengths == ([100, 81, 81] if stop == "first" else [100, 199, 199])


def test_a_source_that_no_epoch_is_long_enough_for_is_found() -> None:
    weights = (15 << 12, 1 << 12)
    assert begin(Sources((3, 50), weights=weights, stop="first"), 1).never_drawn() == [1]
    assert begin(Sources((3, 50), weights=weights, stop="all"), 1).never_drawn() == []
    assert begin(Sources((300, 50), weights=weights, stop="first"), 1).never_drawn() == []


def test_pad_after_a_change_of_weights_takes_no_sample_twice() -> None:
    """What was given before the change cannot be looked up: the batch is filled up from the next epoch."""
    sizes, first, second = (12, 12), (1 << 15, 1 << 15), (1 << 14, 3 << 14)
    run = begin(Sources(sizes, weights=first, shuffle="samples", tail="pad"), 4)
    for step in range(1, run.epoch(0).end):
        after = Sources(sizes, weights=second, shuffle="samples", tail="pad")
        changed = Run(after, 0, [*run.segments, run.segment(step, 9, second)])
        last = samples_of(changed, changed.epoch_of(step).end - 1)
        assert len(set(last)) == len(last) == 9


def test_what_is_left_of_an_epoch_and_makes_no_larger_batch_is_dropped() -> None:
    run = begin(Sources((20,), shuffle="samples", tail="drop"), 4)
    changed = Run(run.sources, 0, [*run.segments, run.segment(4, 8)])  # four are left
    assert (changed.epoch_of(4).number, changed.epoch_of(4).steps) == (1, 2)
    seen = [index for step in (4, 5) for _, index in samples_of(changed, step)]
    assert len(set(seen)) == 16
    assert changed.position(4) == 20
