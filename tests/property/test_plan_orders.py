"""The plan's orders: every sample once, quotas within one, the same values everywhere and for ever."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais.plan import EndlessOrder, MixedOrder, Order, Permutation, Quota, round_weights
from torchdata_ais.plan.mixture import DENOMINATOR


@given(
    n=st.one_of(st.integers(1, 300), st.integers(65_530, 65_545), st.integers(65_537, 300_000)),
    key=st.integers(),
)
@settings(max_examples=examples(60), deadline=None)
def test_promise_3_a_permutation_gives_each_value_once(n: int, key: int) -> None:
    values = Permutation(n, key).take(np.arange(n))
    assert values.min() == 0
    assert values.max() == n - 1
    assert len(np.unique(values)) == n


@pytest.mark.parametrize("n", [2**30 + 1, 10**9, 2**31 - 1, 2**40 + 12_345, 2**62])
def test_a_large_permutation_stays_in_range_and_doubles_nothing_where_it_is_looked_at(n: int) -> None:
    for start in (0, n // 2, n - 100_000):
        values = Permutation(n, 3).take(np.arange(start, start + 100_000))
        assert values.min() >= 0
        assert values.max() < n
        assert len(np.unique(values)) == 100_000


def test_promise_4_the_orders_are_these_and_stay_these() -> None:
    assert Permutation(10, 0).take(range(10)).tolist() == [3, 9, 8, 2, 5, 6, 4, 7, 0, 1]
    assert Permutation(10**9, 1).take(range(5)).tolist() == [
        418239564,
        976780221,
        232270031,
        449961359,
        914858771,
    ]
    assert Order(100_000, seed=5).take([0, 1, 99_999, 100_000, 250_000]).tolist() == [
        74511,
        16191,
        31893,
        37939,
        65137,
    ]
    assert Order(1_000_000, seed=5, run=10).take([0, 9, 10, 1_000_000]).tolist() == [
        765221,
        765230,
        182021,
        506094,
    ]
    assert Quota([1, 2, 4]).sources(range(14)).tolist() == [2, 1, 2, 2, 0, 1, 2, 2, 1, 2, 2, 0, 1, 2]


def test_epochs_and_seeds_are_not_alike() -> None:
    n = 200_000
    orders = [
        Order(n, seed=seed).take(np.arange(epoch * n, (epoch + 1) * n)) for seed in (0, 1) for epoch in (0, 1)
    ]
    for number, one in enumerate(orders):
        for other in orders[number + 1 :]:
            # Of unrelated orders: correlation 0 +- 1/sqrt(n), about one value at its old place.
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(n)
            assert (one == other).sum() < 12
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 5 / math.sqrt(n)


@pytest.mark.parametrize("n", [1_000_000, 2**30 + 1])
def test_a_batch_comes_from_shards_all_over_the_data(n: int) -> None:
    """256 of 1,000 shards drawn at random are 226 different ones on average, 6.4 more or less."""
    batches = Order(n, seed=9).take(np.arange(256 * 200)).reshape(200, 256) * 1000 // n
    distinct = [len(np.unique(batch)) for batch in batches]
    assert min(distinct) >= 200
    assert 224 < np.mean(distinct) < 228


def test_the_places_of_values_are_uniform() -> None:
    """The first value of many keys falls evenly into 64 parts (chi-squared: 63 +- 11)."""
    for n in (50_000, 1_000_003):
        firsts = np.array(
            [int(Permutation(n, key).take([n // 3])[0]) for key in range(2_000 if n > 2**16 else 200)]
        )
        counts = np.bincount(firsts * 16 // n, minlength=16)
        expected = len(firsts) / 16
        assert ((counts - expected) ** 2 / expected).sum() < 15 + 6 * math.sqrt(30)


@given(
    samples=st.integers(1, 5_000),
    run=st.integers(1, 700),
    seed=st.integers(0, 2**70),
    epoch=st.integers(0, 5),
)
@settings(max_examples=examples(80), deadline=None)
def test_runs_stay_together_and_their_borders_move(samples: int, run: int, seed: int, epoch: int) -> None:
    values = Order(samples, seed, run=run).take(np.arange(epoch * samples, (epoch + 1) * samples))
    assert sorted(values.tolist()) == list(range(samples))
    whole, rest = divmod(samples, run)
    cuts = np.flatnonzero(np.diff(values) % samples != 1) + 1
    lengths = np.diff([0, *cuts.tolist(), samples]) % run
    assert len(cuts) <= whole  # each run is whole, but for one
    assert sorted(lengths[lengths > 0].tolist()) == ([rest] if rest else [])


def test_the_stored_order_repeats_and_a_source_has_an_order_of_its_own() -> None:
    assert Order(3, shuffle=False).take(range(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert (
        Order(50, seed=1, source=0).take(range(50)).tolist()
        != Order(50, seed=1, source=1).take(range(50)).tolist()
    )


weights_of = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=100)


@given(weights=weights_of)
@settings(max_examples=examples(40), deadline=None)
def test_weights_are_rounded_by_largest_remainder(weights: list[float]) -> None:
    rounded = round_weights(weights)
    assert sum(rounded) == DENOMINATOR
    assert min(rounded) >= 1
    exact = np.array(weights) / math.fsum(weights) * DENOMINATOR
    if exact.min() >= 1:
        assert np.abs(np.array(rounded) - exact).max() < 1 + 1e-6


@given(shares=st.lists(st.integers(1, 400), min_size=1, max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_every_prefix_is_within_one_sample_of_the_weights(shares: list[int]) -> None:
    quota, period = Quota(shares), sum(shares)
    sources = quota.sources(np.arange(2 * period))
    prefix = np.cumsum(sources[:, None] == np.arange(len(shares)), axis=0)
    exact = np.arange(1, 2 * period + 1)[:, None] * np.array(shares) / period
    assert np.abs(prefix - exact).max() < 1
    assert prefix[period - 1].tolist() == shares
    draws = quota.draws(np.arange(2 * period))
    for number in range(len(shares)):
        where = np.flatnonzero(sources == number)
        assert draws[where].tolist() == list(range(len(where)))
        assert [quota.position_of(number, draw) for draw in range(len(where))] == where.tolist()
    assert (
        quota.counts(period + period // 3).tolist()
        == np.bincount(sources[: period + period // 3], minlength=len(shares)).tolist()
    )


def test_a_hundred_weights_of_any_size_stay_within_one_sample_over_a_whole_period() -> None:
    weights = round_weights([1.1**number for number in range(100)])
    sources = Quota(weights).sources(np.arange(DENOMINATOR))
    steps = np.arange(1, DENOMINATOR + 1)
    for number, weight in enumerate(weights):
        assert np.abs(np.cumsum(sources == number) - steps * weight / DENOMINATOR).max() < 1


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    stop=st.sampled_from(["first", "all"]),
    data=st.data(),
)
@settings(max_examples=examples(80), deadline=None)
def test_promise_3_a_mixture_draws_all_of_a_source_before_any_again(
    sizes: list[int], stop: str, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    orders = [Order(size, seed=3, source=number) for number, size in enumerate(sizes)]
    mixed = MixedOrder(orders, weights, stop=stop)  # type: ignore[arg-type]
    length = mixed.stretches[0].length
    all_draws = mixed.at(np.arange(length + 1))
    seen: list[list[int]] = [[] for _ in sizes]
    for source, index, draw in zip(all_draws.source, all_draws.index, all_draws.draw, strict=True):
        assert draw == len(seen[source])
        seen[source].append(int(index))
    for size, indexes in zip(sizes, seen, strict=True):
        for start in range(0, len(indexes), size):
            part = indexes[start : start + size]
            assert len(set(part)) == len(part)
    counts = mixed.counts(length)
    if stop == "first":
        assert all(count <= size for count, size in zip(counts, sizes, strict=True))
    else:
        assert all(count >= size for count, size in zip(counts, sizes, strict=True))
        before = mixed.counts(length - 1)
        assert any(count < size for count, size in zip(before, sizes, strict=True))
    # One position alone is what it is among all.
    for position in range(0, length, 7):
        alone = mixed.at([position])
        assert (alone.source[0], alone.index[0]) == (all_draws.source[position], all_draws.index[position])


@pytest.mark.parametrize("position", [4, 5, 6])
def test_an_order_that_begins_at_a_change_of_weights_has_the_new_ones(position: int) -> None:
    schedule = [(0, [1 << 16, 0]), (5, [0, 1 << 16])]
    mixed = EndlessOrder([Order(9), Order(9, source=1)], schedule, position=position)
    assert mixed.at(range(position, 9)).source.tolist() == [0 if one < 5 else 1 for one in range(position, 9)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: round_weights([]), "1 to 65536 weights"),
        (lambda: round_weights([1, 0]), "not 0"),
        (lambda: round_weights([1, -0.5]), "not -0.5"),
        (lambda: round_weights([1, math.nan]), "not nan"),
        (lambda: round_weights([1, math.inf]), "not inf"),
        (lambda: Quota([]), "at least 1"),
        (lambda: Quota([3, 0]), "at least 1"),
        (lambda: Order(0), "at least one sample"),
        (lambda: Order(5, run=0), "at least one sample"),
        (lambda: Permutation(-1, 0), "not -1"),
        (lambda: EndlessOrder([Order(5)], [(3, [1])]), "begin at its position"),
        (lambda: EndlessOrder([Order(5)], [(0, [1, 1])]), "2 weights for 1 sources"),
        (lambda: MixedOrder([Order(5)], [1, 1]), "2 weights for 1 sources"),
        (lambda: MixedOrder([Order(5)], [1], stop="never"), "first, all, not"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("n", [10, 10**6])
def test_positions_outside_are_refused(n: int) -> None:
    for position in (-1, n):
        with pytest.raises(IndexError):
            Permutation(n, 0).take([0, position])
    with pytest.raises(IndexError):
        Order(n).take([-1])
    with pytest.raises(IndexError):
        MixedOrder([Order(n)], [1]).at([-1])
    with pytest.raises(IndexError):
        EndlessOrder([Order(n)], [(0, [1])]).at([-1])
