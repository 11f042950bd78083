"""Orders of sources and mixtures, at their limits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from torchdata_ais.errors import UsageError
from torchdata_ais.plan import Run, RunSegment
from torchdata_ais.plan.order import EndlessOrder, Order
from torchdata_ais.plan.run import Sources

HALF = 1 << 15


def test_positions_of_stages_ascend() -> None:
    for stages in ([(0, [1]), (0, [2])], [(0, [1]), (5, [1]), (5, [2])], [(1, [1])], []):
        with pytest.raises(UsageError, match="begin at its position and ascend"):
            EndlessOrder([Order(4)], stages)


def test_weights_hold_from_their_position_on() -> None:
    order = EndlessOrder([Order(100), Order(100, source=1)], [(0, [1 << 16, 0]), (10, [0, 1 << 16])])
    assert order.at(range(8, 12)).source.tolist() == [0, 0, 1, 1]
    later = EndlessOrder(
        [Order(100), Order(100, source=1)], [(0, [1 << 16, 0]), (10, [0, 1 << 16])], position=10
    )
    assert later.at(range(10, 12)).source.tolist() == [1, 1]


def run_of(samples: tuple[int, ...] = (10,), global_batch: int = 4, ranks: int = 1, **how: object) -> Run:
    weights = tuple((1 << 16) // len(samples) for _ in samples)
    sources = Sources(samples, weights=weights, **how)  # type: ignore[arg-type]
    return Run(sources, 0, [RunSegment(0, 0, 0, global_batch, weights, (0,) * len(samples))], ranks=ranks)


def test_without_shuffle_the_order_is_the_stored_one() -> None:
    assert run_of().at(range(20)).index.tolist() == [*range(10), *range(10)]
    both = run_of((6, 6)).at(range(12))
    assert [both.index[both.source == source].tolist() for source in (0, 1)] == [[*range(6)], [*range(6)]]


def test_shuffled_samples_are_not_adjacent_and_runs_are() -> None:
    def adjacent(**how: object) -> float:
        found = run_of((5000,), 64, mean_bytes=(1.0,), **how).at(range(5000)).index
        return float(np.mean(np.diff(found) == 1))

    assert adjacent(shuffle="samples") < 0.01
    assert 0.8 < adjacent(shuffle="runs") < 0.9  # runs of 8: an eighth of the batch


def test_every_batch_of_a_mixture_is_whole_with_drop_after_any_change() -> None:
    """Weights and batch change at each step: neither the rest of that epoch nor a later one has half a batch."""
    weights = ((HALF, HALF), ((1 << 16) - 4096, 4096))
    for step in range(8):
        for batch in (2, 3, 5):
            run = run_of((11, 7), 4, tail="drop", shuffle="samples", stop="all")
            run = Run(run.sources, 0, [*run.segments, run.segment(step, batch, weights[1])])
            for later in range(step, step + 12):
                draws = run.at(run.positions(later))
                assert len(draws.index) == batch, (step, batch, later)
            first = run.epoch_of(step)
            assert run.length(first) % batch == 0


def test_the_rest_of_an_epoch_of_fixed_steps_is_what_is_left() -> None:
    run = run_of((10,), 4, epoch_steps=5, stop="never")
    run = Run(run.sources, 0, [*run.segments, run.segment(2, 3)])
    epochs = [run.epoch_of(step) for step in range(2, 12)]
    assert [epoch.number for epoch in epochs] == [0] * 3 + [1] * 5 + [2] * 2
    assert (epochs[0].first_step, epochs[0].steps, epochs[0].end) == (0, 5, 5)
    assert all(before.end <= after.end for before, after in pairwise(epochs))


def test_what_drop_leaves_of_an_epoch_comes_in_the_next_one_after_any_change() -> None:
    """All samples of a source come before one of it comes again, also where the rest of an epoch is no batch."""
    even, other = (HALF, HALF), ((1 << 16) - 20000, 20000)
    for step in range(5):
        for batch in (2, 3, 5, 6):
            plain = run_of((11, 7), 4, tail="drop", shuffle="samples", stop="all")
            run = Run(plain.sources, 0, [*plain.segments, plain.segment(step, batch, other)])
            assert plain.segments[0].weights == even
            steps = [(plain if number < step else run, number) for number in range(step + 14)]
            seen: Counter[tuple[int, int]] = Counter()
            for known, number in steps:
                found = known.at(known.positions(number))
                seen.update(zip(found.source.tolist(), found.index.tolist(), strict=True))
                for source, size in enumerate((11, 7)):
                    times = [seen[source, index] for index in range(size)]
                    assert max(times) - min(times) <= 1, (step, batch, number, source)
