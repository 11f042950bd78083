"""Runs with changes by step, against lists."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais import Schedule
from torchdata_ais.errors import UsageError
from torchdata_ais.plan import Changes, EndlessOrder, Order, Run, Sources
from torchdata_ais.plan.mixture import DENOMINATOR

MOST_STEP = 40


@st.composite
def schedules(draw: Any, sources: int, *, with_weights: bool = True) -> Schedule:
    """A schedule whose entries do not contradict each other."""
    steps = st.integers(0, MOST_STEP)
    cuts = sorted(draw(st.sets(steps, max_size=6)))
    skips = {
        (begin, end): draw(st.sampled_from(["drop", "defer"]))
        for begin, end in zip(cuts[::2], cuts[1::2], strict=False)
    }
    weights: dict[Any, list[float]] = {}
    row = st.lists(st.integers(0, 5), min_size=sources, max_size=sources).filter(any)
    places = sorted(draw(st.sets(steps, max_size=5))) if with_weights else []
    at = 0
    while at < len(places):
        if at + 1 < len(places) and draw(st.booleans()):
            weights[places[at], places[at + 1]] = draw(row)
            at += 2
        else:
            weights[places[at]] = draw(row)
            at += 1
    return Schedule(
        global_batch=draw(st.dictionaries(steps, st.integers(3, 9), max_size=4)), weights=weights, skip=skips
    )


def expected_steps(schedule: Schedule, first: int, most: int) -> list[tuple[int, int, int]]:
    """Return ``(step, position, global batch)`` of the given steps, of epochs that are so many steps."""
    found, position = [], 0
    for step in range(most):
        batch = next((count for start, count in reversed(schedule.batches) if start <= step), first)
        how = next((how for begin, end, how in schedule.skips if begin <= step < end), None)
        if how is None:
            found.append((step, position, batch))
        position += 0 if how == "defer" else batch
    return found


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    epoch_steps=st.integers(1, 25),
    ranks=st.integers(1, 3),
    seed=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=examples(120), deadline=None)
def test_promise_4_a_run_with_a_schedule_is_that_of_lists(
    sizes: list[int], epoch_steps: int, ranks: int, seed: int, data: st.DataObject
) -> None:
    schedule = data.draw(schedules(len(sizes)))
    times = data.draw(st.dictionaries(st.integers(0, len(sizes) - 1), st.integers(1, 5), max_size=len(sizes)))
    schedule = Schedule.from_json({**schedule.to_json(), "max_repeats": list(times.items())})
    weights = tuple(DENOMINATOR // len(sizes) for _ in sizes[1:])
    weights = (DENOMINATOR - sum(weights), *weights)
    sources = Sources(
        tuple(sizes), weights=weights, shuffle="samples", stop="never", epoch_steps=epoch_steps,
        changes=schedule.changes(weights),
    )  # fmt: skip
    run = Run.begun(sources, seed, 4, ranks)
    most = 2 * MOST_STEP
    given_steps = expected_steps(schedule, 4, most)
    given_steps = [one for one in given_steps if one[0] < run.last_step]
    assert list(run.given_steps(0, most)) == [step for step, _, _ in given_steps]
    assert run.last_step > most or times
    drawn: dict[int, tuple[int, int, int]] = {}
    for step, position, batch in given_steps:
        parts = [run.positions(step, rank).tolist() for rank in range(ranks)]
        assert [len(part) for part in parts] == [run.size(step, rank) for rank in range(ranks)]
        assert sum(parts, []) == list(range(position, position + batch))
        assert run.position(step) == position
        epoch = run.epoch_of(step)
        assert epoch.number == step // epoch_steps
        assert (epoch.first_step, epoch.end) == (epoch.number * epoch_steps, (epoch.number + 1) * epoch_steps)
        if epoch.end <= most:
            assert epoch.steps == sum(epoch.first_step <= one < epoch.end for one, _, _ in given_steps)
        draws = run.at(np.concatenate(parts))
        drawn |= {
            place: (source, index, draw)
            for place, source, index, draw in zip(
                sum(parts, []), draws.source.tolist(), draws.index.tolist(), draws.draw.tolist(), strict=True
            )
        }
    # Over all positions, dropped ones too, each source comes round after round.
    end = max(drawn, default=-1) + 1
    everything = run.at(np.arange(end))
    assert run.counts(end) == tuple(np.bincount(everything.source, minlength=len(sizes)).tolist())
    rounds: dict[tuple[int, int], list[int]] = {}
    counts: Counter[int] = Counter()
    triples = zip(
        everything.source.tolist(), everything.index.tolist(), everything.draw.tolist(), strict=True
    )
    for place, (source, index, draw) in enumerate(triples):
        assert draw == counts[source]
        assert drawn.get(place, (source, index, draw)) == (source, index, draw)
        rounds.setdefault((source, draw // sizes[source]), []).append(index)
        counts[source] += 1
    assert all(len(set(numbers)) == len(numbers) for numbers in rounds.values())
    assert all(counts[source] <= most * sizes[source] for source, most in times.items())


@pytest.mark.ci
@given(
    stages=st.lists(
        st.tuples(st.integers(1, 400), st.lists(st.floats(0.01, 1), min_size=3, max_size=3)), max_size=6
    )
)
@settings(max_examples=examples(100), deadline=None)
def test_promise_3_each_prefix_is_near_the_weights_in_force(stages: list[tuple[int, list[float]]]) -> None:
    """Within one sample of the numbers of a part, and within two of the weights themselves."""
    schedule = Schedule(weights={sum(length for length, _ in stages[:number]): [round(100 * one) for one in row]
                                 for number, (_, row) in enumerate(stages)})  # fmt: skip
    even = (DENOMINATOR - 2 * (DENOMINATOR // 3), DENOMINATOR // 3, DENOMINATOR // 3)
    found = [(0, even), *(one for one in schedule.changes(even).stages if one[0])]
    if schedule.weights and schedule.weights[0][0] == 0:
        found = list(schedule.changes(even).stages)
    length = sum(length for length, _ in stages) + 200
    order = EndlessOrder([Order(1000, source=number) for number in range(3)], found)
    sources = order.at(np.arange(length)).source
    weight_at = np.zeros((length, 3))
    for start, row in found:
        weight_at[start:] = row
    wanted = np.cumsum(weight_at / DENOMINATOR, axis=0)
    for number in range(3):
        assert np.abs(np.cumsum(sources == number) - wanted[:, number]).max() < 2


@given(
    samples=st.integers(9, 60),
    tail=st.sampled_from(["short", "drop", "pad"]),
    ranks=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_promise_3_an_epoch_without_epoch_steps_has_each_sample_once_whatever_the_batches(
    samples: int, tail: Any, ranks: int, data: st.DataObject
) -> None:
    schedule = data.draw(schedules(1, with_weights=False))
    sources = Sources((samples,), shuffle="samples", tail=tail, changes=schedule.changes((DENOMINATOR,)))
    run = Run.begun(sources, 1, 5, ranks)
    if any(not run.epoch(number).steps for number in range(MOST_STEP)):
        with pytest.raises(UsageError, match="without a step"):
            run.checked()
        return
    run.checked()
    dropped = any(how == "drop" for _, _, how in schedule.skips)
    step, whole = 0, []
    for number in range(6):
        epoch = run.epoch(number)
        assert epoch.number == number
        steps = list(run.given_steps(max(step, epoch.first_step), epoch.end))
        assert len(steps) == epoch.steps
        got = []
        for one in steps:
            assert run.epoch_of(one).number == number
            positions = [run.positions(one, rank) for rank in range(ranks)]
            batch = schedule.changes((DENOMINATOR,)).batch_at(one, 5)
            if one + 1 < epoch.end and tail != "short":
                assert sum(map(len, positions)) == batch
            got += np.concatenate(positions).tolist()
        distinct = list(dict.fromkeys(got))
        assert len(got) - len(distinct) <= run.repeated(epoch)
        own = [place for place in distinct if epoch.first_position <= place < epoch.first_position + samples]
        indexes = run.at(np.array(own, dtype=np.int64)).index.tolist()
        assert len(set(indexes)) == len(indexes)
        assert run.length(epoch) == len(own)
        if not dropped and tail != "drop":
            assert sorted(indexes) == list(range(samples))
        whole.append(indexes)
        step = epoch.end
    assert whole[0] != whole[1] or len(whole[0]) < 5


@pytest.mark.ci
def test_a_thousand_entries_over_a_hundred_sources_are_cheap() -> None:
    """At most 0.3 s of processor time, here with a margin, and 16 MiB."""
    generator = np.random.default_rng(0)
    constant = {10 * step: generator.integers(1, 100, 100).tolist() for step in range(1000)}
    ramps = {(10 * step, 10 * step + 9): row for step, row in enumerate(constant.values())}
    weights = tuple([656] * 36 + [655] * 64)
    for entries in (constant, ramps):

        def planned() -> Run:
            schedule = Schedule(weights=entries)  # type: ignore[arg-type]  # noqa: B023 - called in this round
            changes = schedule.changes(weights)
            sources = Sources(
                (10**6,) * 100, weights=weights, stop="never", epoch_steps=10**5, changes=changes
            )
            return Run.begun(sources, 0, 256)

        begun = time.process_time()
        planned().positions(0)
        assert time.process_time() - begun < 5 * 0.3
        tracemalloc.start()
        planned()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20, peak


def test_a_ramp_has_eight_pieces_from_the_weights_before_to_its_own() -> None:
    stages = Schedule(weights={(8, 24): [0, 1]}).changes((DENOMINATOR, 0)).stages
    assert [step for step, _ in stages] == [8, 10, 12, 14, 16, 18, 20, 22, 24]
    assert [row[1] * 16 // DENOMINATOR for _, row in stages] == [1, 3, 5, 7, 9, 11, 13, 15, 16]
    assert all(sum(row) == DENOMINATOR for _, row in stages)
    short = Schedule(weights={(8, 11): [0, 1]}).changes((DENOMINATOR, 0)).stages
    assert [step for step, _ in short] == [8, 9, 10, 11]


def test_deferred_samples_come_after_and_dropped_ones_do_not() -> None:
    for how, first in (("defer", 8), ("drop", 16)):
        changes = Changes(skips=((2, 4, how),))  # type: ignore[arg-type]
        run = Run.begun(Sources((100,), changes=changes), 0, 4)
        assert run.positions(4).tolist() == list(range(first, first + 4))
        assert run.epoch_of(0).steps == (25 if how == "defer" else 23)
        assert run.length(run.epoch(0)) == (100 if how == "defer" else 92)


@pytest.mark.parametrize("epoch_steps", [None, 3])
def test_a_schedule_that_skips_the_end_of_an_epoch_goes_on_with_the_next(epoch_steps: int | None) -> None:
    changes = Changes(skips=((2, 4, "drop"),))
    run = Run.begun(Sources((12,), epoch_steps=epoch_steps, changes=changes), 0, 4)
    assert [run.epoch(number).steps for number in range(3)] == [2, 2, 3]
    assert list(run.given_steps(0, 9)) == [0, 1, 4, 5, 6, 7, 8]


def test_weights_after_deferred_steps_hold_from_their_step_on() -> None:
    changes = Changes(stages=((5, (0, DENOMINATOR)),), skips=((2, 4, "defer"),))
    sources = Sources((50, 50), weights=(DENOMINATOR, 0), stop="never", epoch_steps=9, changes=changes)
    run = Run.begun(sources, 0, 4)
    assert [run.at(run.positions(step)).source.tolist() for step in (1, 4, 5)] == [[0] * 4, [0] * 4, [1] * 4]


def test_pad_fills_no_batch_with_samples_that_were_dropped() -> None:
    changes = Changes(skips=((0, 1, "drop"),))
    run = Run.begun(Sources((14,), tail="pad", shuffle="samples", changes=changes), 0, 5)
    assert run.positions(1).tolist() == [5, 6, 7, 8, 9]
    assert run.positions(2).tolist() == [10, 11, 12, 13, 5]


def test_a_rest_of_exactly_one_batch_is_a_step_of_its_epoch() -> None:
    run = Run.begun(Sources((12,), tail="drop", changes=Changes(batches=((1, 8),))), 0, 4)
    assert run.epoch(0).steps == 2
    assert run.positions(1).tolist() == list(range(4, 12))


@pytest.mark.parametrize(
    ("begin", "end", "empty"), [(5, 10, 1), (0, 5, 0), (3, 14, 1), (6, 10, None), (3, 9, None)]
)
def test_a_skip_that_leaves_an_epoch_without_a_step_is_told(begin: int, end: int, empty: int | None) -> None:
    run = Run.begun(Sources((20,), changes=Changes(skips=((begin, end, "drop"),))), 0, 4)
    if empty is None:
        assert min(run.checked().epoch(number).steps for number in range(4)) > 0
        return
    with pytest.raises(UsageError, match=f"leaves epoch {empty} without a step"):
        run.checked()


def test_weights_of_a_step_hold_where_epochs_end_with_the_data() -> None:
    changes = Changes(stages=((3, (16384, 49152)),))
    run = Run.begun(Sources((100, 100), weights=(32768, 32768), changes=changes), 0, 8)
    assert [run.counts(run.position(step)) for step in (3, 5, 8)] == [(12, 12), (16, 24), (22, 42)]
