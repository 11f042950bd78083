"""Packs and buckets of streams: budgets are kept, each sample comes once, and states go on where they were taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSourceLister, ais_loader, explain, merge_states
from torchdata_ais.errors import MissingFieldError, StateError, UsageError
from torchdata_ais.pipes import Bucketer, Packer
from torchdata_ais.reading.packing import length_in
from torchdata_ais.testing import write_shard

COUNTS = (23, 31, 17, 29)
LENGTHS = [1 + number * 13 % 40 for number in range(sum(COUNTS))]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, begin, found = tmp_path_factory.mktemp("streams"), 0, []
    for shard, count in enumerate(COUNTS):
        members = []
        for number in range(begin, begin + count):
            members += [(f"{number:04d}.cls", b"%d" % number), (f"{number:04d}.txt", b"x" * LENGTHS[number])]
        found.append(str(write_shard(folder / f"s-{shard}.tar", members)))
        begin += count
    return found


def packs_of(shards: list[str], pool: int = 15, **how: Any) -> Any:
    samples = AISSourceLister(shards).shuffle().load_tar().group_samples().shuffled(20).decode()
    return samples.pack(length="txt", budget=64, pool=pool, **how)


def buckets_of(shards: list[str], **how: Any) -> Any:
    samples = AISSourceLister(shards).shuffle().load_tar().group_samples().shuffled(20).decode()
    return samples.buckets(length="txt", edges=[10, 25, 40], budget=100, collation_fn=list, **how)


def numbers(groups: Any) -> list[list[int]]:
    """Return the samples of each pack, or batch of a bucket."""
    parts = [group if isinstance(group[0], list) else [group] for group in groups]
    return [[sample["cls"] for sample in part] for group in parts for part in group]


KINDS = pytest.mark.parametrize("make", [packs_of, buckets_of])


@KINDS
def test_promise_3_every_sample_once_and_no_budget_is_exceeded(shards: list[str], make: Any) -> None:
    with ais_loader(make(shards), seed=3) as loader:
        for _ in range(2):
            found = numbers(loader)
            assert sorted(sum(found, [])) == list(range(sum(COUNTS)))
            for group in found:
                lengths = [LENGTHS[number] for number in group]
                if make is packs_of:
                    assert sum(lengths) <= 64
                else:
                    edge = min(edge for edge in (10, 25, 40) if edge >= max(lengths))
                    assert min(lengths) > {10: 0, 25: 10, 40: 25}[edge]
                    assert len(lengths) * edge <= 100


def test_packs_are_nearly_full(shards: list[str]) -> None:
    with ais_loader(packs_of(shards), seed=3) as loader:
        packs = sum(1 for _ in loader)
    assert packs <= sum(LENGTHS) / 64 * 1.05 + 1


@KINDS
def test_promise_5_a_state_of_any_step_goes_on_to_the_letter(shards: list[str], make: Any) -> None:
    with ais_loader(make(shards), seed=3) as loader:
        whole, states = [], []
        for group in loader:
            whole += numbers([group])
            states.append(loader.state_dict())
    for step in range(0, len(states), 3):
        with ais_loader(make(shards), seed=3) as again:
            again.load_state_dict(states[step])
            assert numbers(again) == whole[step + 1 :]


@pytest.mark.ci
@KINDS
def test_promise_5_in_workers_and_on_other_ranks(shards: list[str], make: Any) -> None:
    how: dict[str, Any] = {"seed": 3, "num_workers": 2}
    with ais_loader(make(shards), **how) as loader:
        whole = numbers(loader)
    with ais_loader(make(shards), **how) as loader:
        groups = iter(loader)
        first = numbers(next(groups) for _ in range(5))
        state = loader.state_dict()
        del groups
    with ais_loader(make(shards), **how) as again:
        again.load_state_dict(state)
        assert first + numbers(again) == whole
    rest = []
    for rank in range(3):
        with (
            ais_loader(make(shards), seed=3, rank=rank, world_size=3, epoch_steps=None) as other,
            torch.no_grad(),
        ):
            other.load_state_dict(merge_states([state]))
            rest += numbers(other)
    assert sorted(sum(first + rest, [])) == list(range(sum(COUNTS)))


def test_a_state_has_no_more_than_the_samples_that_wait(shards: list[str]) -> None:
    pipe = packs_of(shards)
    for _ in zip(pipe, range(7), strict=False):
        places = pipe.held_places()
        assert 0 < len(places) < 15
        assert min(places) >= 0
    assert pipe.memory_bound().text == "15 samples + 1 group"
    assert buckets_of(shards).memory_bound().text == "16 samples + 1 group"
    assert "checkpoints: can be taken" in str(explain(pipe))


def test_a_state_of_another_pool_or_budget_is_refused(shards: list[str]) -> None:
    with ais_loader(packs_of(shards), seed=3) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for other in (packs_of(shards, pool=16), packs_of(shards, too_long="drop"), buckets_of(shards)):
        with ais_loader(other, seed=3) as changed, pytest.raises(StateError):
            changed.load_state_dict(state)


def test_behind_to_tuple_it_packs_and_says_why_there_is_no_state(shards: list[str]) -> None:
    samples = AISSourceLister(shards).load_tar().group_samples().decode().to_tuple("cls", "txt")
    pipe = samples.pack(length=lambda pair: len(pair[1]), budget=64)
    with ais_loader(pipe) as loader:
        found = [[number for number, _ in packs[0]] for packs in loader]
        assert sorted(sum(found, [])) == list(range(sum(COUNTS)))
    with ais_loader(pipe) as loader:
        next(iter(loader))
        with pytest.raises(StateError, match=r"Put it before stages that make new items, such as to_tuple"):
            loader.state_dict()


def test_samples_that_are_too_long_are_named_or_left_out(shards: list[str]) -> None:
    samples = AISSourceLister(shards).load_tar().group_samples().decode()
    with pytest.raises(
        UsageError, match=r"sample '00\d\d' has the length \d+, and 30 is the most.*too_long=\"drop\""
    ):
        list(samples.pack(length="txt", budget=30))
    for pipe in (
        samples.pack(length="txt", budget=30, too_long="drop"),
        samples.buckets(length="txt", edges=[30], budget=60, too_long="drop", collation_fn=list),
    ):
        assert sorted(sum(numbers(pipe), [])) == [n for n, length in enumerate(LENGTHS) if length <= 30]


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 12), st.integers(0, 4))
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_the_lengths_all_come_once_and_fit(lengths: list[int], pool: int, seed: int) -> None:
    items = list(enumerate(lengths))
    found = [packs[0] for packs in Packer(items, length=second, budget=30, pool=pool)]
    assert sorted(sum(found, [])) == items
    assert all(sum(length for _, length in pack) <= 30 for pack in found)
    waited = [number for pack in found for number, _ in pack[:1]]
    assert waited == sorted(waited)  # the oldest comes next: nothing waits for ever
    batches = list(Bucketer(items, length=second, edges=[5, 30], budget=60, collation_fn=list))
    assert sorted(sum(batches, [])) == items
    assert all(len(batch) <= (12 if batch[0][1] <= 5 else 2) for batch in batches)
    assert all({length <= 5 for _, length in batch} == {batch[0][1] <= 5} for batch in batches)


def second(item: tuple[int, int]) -> int:
    return item[1]


@pytest.mark.parametrize(
    ("value", "length"),
    [(b"abc", 3), ("é", 2), (7, 7), (torch.tensor(5), 5), (torch.zeros(4, 2), 4), ([1], 1), ("\udce9", 3)],
)
def test_what_a_length_is(value: Any, length: int) -> None:
    assert length_in({"x": value}, "x") == length


@pytest.mark.parametrize(
    ("item", "length", "error", "message"),
    [
        ({"__key__": "a"}, "txt", MissingFieldError, "(?i)sample 'a' has no field 'txt'"),
        ((1, 2), "txt", UsageError, "of type tuple.*before .to_tuple"),
        ({"x": None}, "x", UsageError, "'x' is None, which is no length"),
        ({"x": -3}, "x", UsageError, "is -3, which is no length"),
        ({"x": True}, "x", UsageError, "is True"),
        ({"x": 1}, lambda _: 2.5, UsageError, "function of length= is 2.5"),
    ],
)
def test_what_is_no_length_is_refused(item: Any, length: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        list(Packer([item], length=length, budget=10))


def test_arrays_of_lengths_are_for_indexes(shards: list[str]) -> None:
    samples = AISSourceLister(shards).load_tar().group_samples().decode()
    with pytest.raises(UsageError, match=r"knows no numbers of samples.*read_samples"):
        list(samples.pack(length=LENGTHS, budget=64))
    with pytest.raises(UsageError, match="pool=0"):
        samples.pack(length="txt", budget=64, pool=0)
    with pytest.raises(TypeError, match="valid length"):
        len(samples.pack(length="txt", budget=64))


def test_functions_are_for_streams(shards: list[str], tmp_path: Path) -> None:
    from torchdata_ais import AISSampleReader, SampleIndex

    pipe = AISSampleReader(SampleIndex.build(shards)).pack(length=len, budget=64)
    with pytest.raises(UsageError, match=r"known before a sample is read.*with_column"):
        len(pipe)
