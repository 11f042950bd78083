"""What is given in the place of an empty batch follows from the plan: the same after a resume, and for any workers."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSampleReader, SampleIndex, ais_loader
from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.errors import EmptyBatchError
from torchdata_ais.loaders import as_dataset
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.testing import example_shards

TOTAL = 30


@pytest.fixture(scope="module")
def index() -> SampleIndex:
    return SampleIndex.build(example_shards(counts=(25, 35)))


@pytest.fixture(scope="module")
def small() -> SampleIndex:
    """Half of it: where most batches are empty, an epoch takes the square of its length."""
    return SampleIndex.build(example_shards(counts=(12, TOTAL - 12)))


def is_kept(sample: dict[str, Any], kept: frozenset[int]) -> bool:
    return int(sample["cls"]) in kept


def pipe_of(index: SampleIndex, kept: frozenset[int], batch: int = 2, **how: Any) -> Any:
    reader = AISSampleReader(index, empty="repeat", **how)
    return reader.decode().filter(partial(is_kept, kept=kept)).to_tuple("cls").batched(batch)


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


def kept_of(rng: random.Random) -> frozenset[int]:
    """Return samples that a filter leaves: some of all, or of the beginning, the middle or the end."""
    begin = rng.choice([0, 0, 10, 20])
    end = rng.choice([TOTAL, begin + 6, begin + 10])
    return frozenset(rng.sample(range(begin, end), rng.randint(1, 6)))


@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_promise_5_a_run_with_substitutes_resumes_at_every_step_on_every_topology(
    small: SampleIndex, seed: int, data: st.DataObject
) -> None:
    kept = kept_of(random.Random(seed))
    shuffle: Any = data.draw(st.sampled_from(["samples", "runs", None]))
    tail: Any = data.draw(st.sampled_from(["short", "drop", "pad"]))
    batch = data.draw(st.sampled_from([6, 7, 12]))
    ranks = data.draw(st.sampled_from([1, 2, 3]))

    def loader(rank: int = 0, world: int = ranks, **how: Any) -> Any:
        pipe = pipe_of(small, kept, shuffle=shuffle, tail=tail)
        return ais_loader(pipe, global_batch=batch, rank=rank, world_size=world, seed=seed, **how)

    whole, states = [], []
    for rank in range(ranks):
        with loader(rank) as running:
            states = [running.state_dict()]
            got = []
            try:
                for (one,) in running:
                    got.append(one.tolist())
                    states.append(running.state_dict())
            except EmptyBatchError:
                assert tail == "drop"
                return  # all that the filter leaves was dropped
            whole.append(got)
    steps = len(whole[0])
    assert all(set().union(*parts) <= kept for parts in zip(*whole, strict=True))
    for step in range(0, steps, data.draw(st.integers(1, 3))):
        for rank in range(ranks):
            with loader(rank) as resumed:
                resumed.load_state_dict(states[step])
                assert batches(resumed) == whole[rank][step:]
    for world in (1, 2, 3):  # the samples of a step are the same for any number of ranks
        parts = []
        for rank in range(world):
            with loader(rank, world) as other:
                parts.append(batches(other))
        for step in range(steps):
            assert {n for part in parts for n in part[step]} == {n for part in whole for n in part[step]}


def check_every_loader(small: SampleIndex, workers: int, seed: int, epoch: int, data: st.DataObject) -> None:
    """Compare an epoch of other loaders, and of workers, with that of a loader without workers."""
    kept = kept_of(random.Random(seed))
    shuffle: Any = data.draw(st.sampled_from(["samples", "runs", None]))
    tail: Any = data.draw(st.sampled_from(["short", "pad"]))
    batch = data.draw(st.sampled_from([6, 7, 12]))

    def pipe(at: int = 0) -> Any:
        made = pipe_of(small, kept, batch, shuffle=shuffle, tail=tail, batch_size=batch, seed=seed)
        plan_of(made).set_epoch(at)
        return made

    with ais_loader(pipe(), global_batch=batch, seed=seed) as loader:
        wanted = [batches(loader) for _ in range(epoch + 1)]
    with ais_loader(pipe(), global_batch=batch, seed=seed, num_workers=workers) as loader:
        assert [batches(loader) for _ in range(epoch + 1)] == wanted
    assert batches(as_dataset(pipe(epoch), rank=0, world_size=1)) == wanted[epoch]
    service: Any = MultiProcessingReadingService(workers) if workers else None
    with DataLoader2(pipe(epoch), reading_service=service) as two:
        assert batches(two) == wanted[epoch]


@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 2), data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_promise_4_every_loader_gives_the_substitutes_of_the_plan(
    small: SampleIndex, seed: int, epoch: int, data: st.DataObject
) -> None:
    check_every_loader(small, 0, seed, epoch, data)


@pytest.mark.ci
@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 2), workers=st.integers(1, 3), data=st.data())
@settings(max_examples=examples(10), deadline=None)
def test_promise_4_workers_of_every_loader_give_the_substitutes_of_the_plan(
    small: SampleIndex, seed: int, epoch: int, workers: int, data: st.DataObject
) -> None:
    check_every_loader(small, workers, seed, epoch, data)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.ci)])
def test_workers_give_the_substitutes_that_one_process_gives(index: SampleIndex, workers: int) -> None:
    kept = frozenset({13, 14, 15, 31})

    def loader(workers: int) -> Any:
        return ais_loader(pipe_of(index, kept), global_batch=6, num_workers=workers)

    with loader(0) as alone:
        iterator = iter(alone)
        first = [next(iterator)[0].tolist() for _ in range(7)]
        state = alone.state_dict()
        rest = [batch.tolist() for (batch,) in iterator]
    assert first[:3] == [[13, 14, 15]] * 3  # none before: the next one
    assert first[3:5] == [[13, 14, 15]] * 2
    assert first[5:7] == [[31], [31]]
    with loader(workers) as several:
        assert batches(several) == first + rest
    with loader(workers) as several:
        several.load_state_dict(state)
        assert batches(several) == rest


def test_a_batch_that_was_changed_in_place_is_given_as_it_was_read(index: SampleIndex) -> None:
    with ais_loader(pipe_of(index, frozenset({0, 1})), global_batch=6) as loader:
        for (batch,) in loader:
            assert batch.tolist() == [0, 1]
            batch.zero_()


def test_a_resume_with_another_batch_looks_before_the_change(index: SampleIndex) -> None:
    """All that is left of the epoch is empty: the substitute is of before the resume."""
    with ais_loader(pipe_of(index, frozenset({3, 4})), global_batch=6) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
    with ais_loader(pipe_of(index, frozenset({3, 4})), global_batch=10) as loader:
        loader.load_state_dict(state, allow={"batch"})
        assert batches(loader) == [[3, 4]] * 3


def test_nothing_left_of_a_whole_epoch_is_an_error(index: SampleIndex) -> None:
    with (
        ais_loader(pipe_of(index, frozenset()), global_batch=6) as loader,
        pytest.raises(EmptyBatchError, match="nothing is left of them or of any other"),
    ):
        next(iter(loader))
