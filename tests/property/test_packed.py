"""Packs and buckets: budgets are kept, each sample comes once, on any topology, and states go on exactly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from helpers.global_batches import steps_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSampleReader, Mixture, SampleIndex, ais_loader, explain
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.index import field_sizes
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.plan.packing import Groups, bucketed, packed
from torchdata_ais.testing import write_shard

LENGTHS = np.random.default_rng(3).integers(1, 40, 200)


def make_index(folder: Path, lengths: Any = LENGTHS, name: str = "a") -> SampleIndex:
    paths = []
    for shard, begin in enumerate(range(0, len(lengths), 30)):
        members = []
        for number in range(begin, min(begin + 30, len(lengths))):
            members += [
                (f"{name}{number:04d}.cls", b"%d" % number),
                (f"{name}{number:04d}.txt", b"x" * int(lengths[number])),
            ]
        paths.append(write_shard(folder / f"{name}-{shard}.tar", members))
    return SampleIndex.build(paths)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return make_index(tmp_path_factory.mktemp("packed"))


def members_of(groups: Groups) -> list[list[int]]:
    return [groups.samples(number).tolist() for number in range(len(groups))]


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(1, 50), st.integers(0, 3), st.booleans())
@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck), deadline=None)
def test_a_pack_never_has_more_than_its_budget(
    lengths: list[int], budget: int, seed: int, shuffle: bool
) -> None:
    groups = packed(np.array(lengths, dtype=np.int64), budget, seed=seed, shuffle=shuffle)
    found = members_of(groups)
    assert all(sum(lengths[n] for n in pack) <= budget and pack for pack in found)
    assert sorted(sum(found, [])) == [n for n, length in enumerate(lengths) if length <= budget]
    assert groups.most == max(map(len, found), default=0)


@given(
    st.lists(st.integers(0, 60), max_size=80),
    st.sets(st.integers(1, 50), min_size=1, max_size=4),
    st.integers(50, 200),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck), deadline=None)
def test_a_batch_of_a_bucket_keeps_its_budget_with_padding(
    lengths: list[int], edges: set[int], budget: int, seed: int, shuffle: bool
) -> None:
    ascending = sorted(edges)
    found = members_of(
        bucketed(np.array(lengths, dtype=np.int64), ascending, budget, seed=seed, shuffle=shuffle)
    )
    for batch in found:
        edge = {min(edge for edge in ascending if lengths[n] <= edge) for n in batch}
        assert len(edge) == 1
        assert len(batch) * edge.pop() <= budget
    assert sorted(sum(found, [])) == [n for n, length in enumerate(lengths) if length <= ascending[-1]]


@pytest.mark.parametrize(("mean", "sigma", "budget"), [(6, 0.8, 4096), (6.5, 0.6, 8192), (11, 1, 1_000_000)])
def test_packs_of_log_normal_lengths_are_full(mean: float, sigma: float, budget: int) -> None:
    lengths = np.maximum(1, np.random.default_rng(0).lognormal(mean, sigma, 70_000)).astype(np.int64)
    begin = time.process_time()
    groups = packed(lengths, budget)
    took = time.process_time() - begin
    sums = np.add.reduceat(lengths[groups.order], np.concatenate([[0], groups.ends[:-1]]))
    assert sums.max() <= budget
    assert 1 - sums.sum() / (len(groups) * budget) < 0.0005
    assert took < 70_000 * 50e-6  # of 10 us, on a machine with other things to do


def test_the_order_of_packs_is_that_of_the_version_before() -> None:
    """A golden order: other packs would be other data for whoever goes on from a state."""
    groups = packed(LENGTHS, 100, seed=1)
    assert (len(groups), groups.order[:8].tolist(), groups.ends[:4].tolist()) == GOLDEN


GOLDEN = (41, [160, 142, 150, 20, 191, 188, 133, 38], [5, 8, 11, 15])


def test_promise_4_packs_are_the_same_on_any_topology(index: SampleIndex) -> None:
    def make() -> Any:
        pipe: Any = AISSampleReader(index, shuffle="samples").to_tuple("cls").pack(length="txt", budget=64)
        pipe.say_to(plan_of(pipe))
        return pipe

    def numbers(steps: list[Any]) -> list[list[list[int]]]:
        return [[[int(cls) for (cls,) in pack] for pack in step] for step in steps]

    alone = numbers(steps_of(make, 1, 1, 8)[0])
    packs = [pack for step in alone for pack in step]
    assert all(sum(LENGTHS[n] for n in pack) <= 64 for pack in packs)
    assert sorted(sum(packs, [])) == list(range(200))
    for ranks, workers in ((2, 1), (4, 2), (8, 3)):
        split = [numbers(rank) for rank in steps_of(make, ranks, workers, 8)]
        assert len({len(rank) for rank in split}) == 1
        for step, whole in enumerate(alone[:-1]):
            assert sum((rank[step] for rank in split), []) == whole


@pytest.mark.parametrize("kind", ["pack", "buckets"])
def test_promise_5_a_state_of_packs_goes_on_exactly(index: SampleIndex, kind: str) -> None:
    def loader(
        budget: int = 64, ranks: int = 1, rank: int = 0, workers: int = 0, lengths: Any = LENGTHS
    ) -> Any:
        pipe = AISSampleReader(index, shuffle="samples").to_tuple("cls")
        if kind == "pack":
            pipe = pipe.pack(length=lengths, budget=budget)
        else:
            pipe = pipe.buckets(length=lengths, edges=[20, 40], budget=budget, collation_fn=list)
        return ais_loader(
            pipe,
            seed=5,
            rank=rank,
            world_size=ranks,
            global_batch=4 if kind == "pack" else None,
            num_workers=workers,
        )

    with loader() as running:
        assert len(running) > 20 or kind == "pack"
        items = iter(running)
        before = [next(items) for _ in range(7)]
        state = running.state_dict()
        rest = list(items)
        assert len(before) + len(rest) == len(running)
    with loader(workers=2) as again:
        again.load_state_dict(state)
        assert list(again) == rest
    if kind == "pack":
        parts = []
        for rank in range(2):
            with loader(ranks=2, rank=rank) as one:
                one.load_state_dict(state)
                parts.append(list(one))
        assert [a + b for a, b in zip(*parts, strict=True)][:-1] == rest[:-1]
    for changed in ({"budget": 65}, {"lengths": LENGTHS[::-1].copy()}):
        with loader(**changed) as other, pytest.raises(StateError):
            other.load_state_dict(state)


def test_packs_with_workers_are_planned_once(index: SampleIndex) -> None:
    pipe = AISSampleReader(index, shuffle="samples").decode().to_tuple("cls").pack("txt", 64)
    with ais_loader(pipe, num_workers=2, seed=1, rank=0, world_size=1) as loader:
        found = [n for packs in loader for pack in packs for (n,) in pack]
        assert sorted(found) == list(range(200))
        assert len(loader) == len(pipe)


def test_packs_of_a_mixture(tmp_path: Path) -> None:
    first, second = make_index(tmp_path, LENGTHS[:60], "a"), make_index(tmp_path, LENGTHS[:90], "b")
    mixture = Mixture({first: 1, second: 1}, stop="all")
    pipe = (
        AISSampleReader(mixture, shuffle="samples").to_tuple("__key__").pack([LENGTHS[:60], LENGTHS[:90]], 64)
    )
    keys = [{key[0] for (key,) in pack} for packs in pipe for pack in packs]
    assert all(len(kinds) == 1 for kinds in keys)  # a pack is of one index
    assert {"a"} in keys
    assert {"b"} in keys
    with pytest.raises(UsageError, match="One array of lengths for several"):
        list(AISSampleReader(mixture).pack(LENGTHS[:60], 64))


def test_chosen_samples_and_filters(index: SampleIndex) -> None:
    chosen = index.select(np.arange(50, 150))
    found = [
        n
        for packs in AISSampleReader(chosen).to_tuple("cls").pack("txt", 64)
        for pack in packs
        for (n,) in pack
    ]
    assert sorted(map(int, found)) == list(range(50, 150))
    some = AISSampleReader(index, positions=[7, 3, 9, 7]).to_tuple("cls").pack("txt", 100)
    assert sorted(n for packs in some for pack in packs for (n,) in pack) == [b"3", b"7", b"7", b"9"]
    odd = AISSampleReader(index, empty="repeat").to_tuple("cls").filter(is_odd).pack("txt", 200)
    kept = {int(n) for packs in odd for pack in packs for (n,) in pack}
    assert kept == set(range(1, 200, 2))
    assert field_sizes(chosen, "txt").tolist() == LENGTHS[50:150].tolist()


def is_odd(sample: tuple[bytes]) -> bool:
    return int(sample[0]) % 2 == 1


def test_what_cannot_be_packed_is_told(index: SampleIndex) -> None:
    reader = AISSampleReader(index)
    with pytest.raises(UsageError, match="has the length 39, and 38 is the most"):
        list(AISSampleReader(index).pack("txt", 38))
    dropped = [
        len(pack) for packs in AISSampleReader(index).pack("txt", 38, too_long="drop") for pack in packs
    ]
    assert sum(dropped) == int((LENGTHS <= 38).sum())
    with pytest.raises(UsageError, match="has no field 'tokens'"):
        list(AISSampleReader(index).pack("tokens", 64))
    with pytest.raises(UsageError, match=r"Lengths of shape \(3,\)"):
        list(AISSampleReader(index).pack([1, 2, 3], 64))
    with pytest.raises(UsageError, match="A length below 0"):
        list(AISSampleReader(index).pack(LENGTHS - 5, 64))
    for edges, budget in (
        ([], 64),
        ([5, 5], 64),
        ([0, 5], 64),
        ([5, 80], 64),
        (40, 64),
        (["a", 5], 64),
        (2.5, 64),
    ):
        with pytest.raises(UsageError):
            reader.buckets("txt", edges, budget)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="too_long"):
        reader.pack("txt", 64, too_long="cut")  # type: ignore[arg-type]
    pipe = AISSampleReader(index).to_tuple("cls").buckets("txt", [40], 80)
    with ais_loader(pipe, global_batch=2, rank=0, world_size=1) as loader:
        with pytest.raises(UsageError, match="A rank gets 2 batches"):
            next(iter(loader))


def test_a_plan_of_packs_is_explained(index: SampleIndex) -> None:
    pipe = AISSampleReader(index, shuffle="samples").to_tuple("cls").pack("txt", 64)
    plan = explain(pipe, world=2).plan
    assert plan is not None
    assert plan.steps == -(-len(packed(LENGTHS, 64)) // 2)
