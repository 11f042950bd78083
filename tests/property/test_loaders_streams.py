"""Loaders of streams, over drawn pipes, ranks, epochs and steps: each epoch has each sample once, before and after."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import pytest
from helpers.examples import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSourceLister, ais_loader, merge_states
from torchdata_ais.dataloader2 import DataLoader2, InProcessReadingService
from torchdata_ais.loaders import as_dataset
from torchdata_ais.testing import write_shard

pytestmark = [
    pytest.mark.filterwarnings("ignore:the . ranks may take different numbers"),
]

COUNTS = (3, 0, 11, 1, 7, 9)
KEYS = [f"{number:02}" for number in range(sum(COUNTS))]
QUIET: Any = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, keys = tmp_path_factory.mktemp("streams"), iter(KEYS)
    return [
        write_shard(
            folder / f"{n}.tar", {f"{key}.txt": b"x" * (1 + int(key) * 7 % 20) for key in islice(keys, count)}
        )
        for n, count in enumerate(COUNTS)
    ]


class Case(NamedTuple):
    """A pipe, and a seed."""

    shuffle: bool
    open_shards: int
    buffer: int
    late: bool
    threads: int
    ends: str
    batch: int
    seed: int

    def pipe(self, shards: list[str]) -> Any:
        pipe: Any = AISSourceLister(shards)
        if self.shuffle:
            pipe = pipe.shuffle()
        pipe = pipe.load_tar(open_shards=self.open_shards).group_samples()
        if self.buffer and not self.late:
            pipe = pipe.shuffled(self.buffer)
        pipe = pipe.decode(threads=self.threads)
        if self.buffer and self.late:
            pipe = pipe.shuffled(self.buffer)
        if self.ends == "pack":
            return pipe.pack(length="txt", budget=30, pool=self.batch)
        if self.ends == "buckets":
            return pipe.buckets(length="txt", edges=[6, 20], budget=40, collation_fn=list)
        return pipe.to_tuple("__key__").batched(self.batch) if self.ends == "batched" else pipe

    def loader(self, shards: list[str], rank: int = 0, ranks: int = 1) -> Any:
        return ais_loader(self.pipe(shards), seed=self.seed, rank=rank, world_size=ranks, epoch_steps=None)


def keys_of(item: Any) -> list[str]:
    if isinstance(item, dict):
        return [item["__key__"]]
    return [item] if isinstance(item, str) else [key for part in item for key in keys_of(part)]


CASES = st.builds(
    Case,
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([0, 1, 4, 40]),
    st.booleans(),
    st.sampled_from([0, 0, 2]),
    st.sampled_from(["samples", "batched", "pack", "buckets"]),
    st.integers(1, 5),
    st.integers(0, 2**31),
)


@settings(max_examples=examples(100), **QUIET)
@given(case=CASES, epoch=st.integers(0, 2), ranks=st.integers(1, 3), after=st.integers(1, 3), draw=st.data())
def test_promise_3_and_5_any_ranks_resume_any_epoch_and_the_next_one_is_whole(
    shards: list[str], case: Case, epoch: int, ranks: int, after: int, draw: st.DataObject
) -> None:
    whole, heads, states = [], [], []
    for rank in range(ranks):
        with case.loader(shards, rank, ranks) as loader:
            whole.append([[keys_of(item) for item in loader] for _ in range(epoch + 2)])
    for number in range(epoch + 2):
        assert sorted(key for rank in whole for item in rank[number] for key in item) == KEYS
    # Ranks are stopped at the same step; one that has fewer than the others may be at its end.
    stopped = draw.draw(st.integers(0, min(len(rank[epoch]) for rank in whole)), "steps")
    for rank in range(ranks):
        with case.loader(shards, rank, ranks) as loader:
            for number in range(epoch):
                assert [keys_of(item) for item in loader] == whole[rank][number]
            items = iter(loader)
            heads.append([keys_of(item) for item in islice(items, stopped)])
            states.append(loader.state_dict())
            del items
        assert heads[-1] == whole[rank][epoch][:stopped]
    state = merge_states(states)
    rest, following = [], []
    for rank in range(after):
        with case.loader(shards, rank, after) as loader:
            loader.load_state_dict(state)
            rest.append([keys_of(item) for item in loader])
            following.append([keys_of(item) for item in loader])
    assert sorted(key for part in heads + rest for item in part for key in item) == KEYS
    assert sorted(key for part in following for item in part for key in item) == KEYS
    if ranks == after:  # to the letter
        assert [head + more for head, more in zip(heads, rest, strict=True)] == [one[epoch] for one in whole]
        assert following == [one[epoch + 1] for one in whole]


@settings(max_examples=examples(60), **QUIET)
@given(case=CASES, epoch=st.integers(0, 3), ranks=st.integers(1, 3), draw=st.data())
def test_promise_3_and_5_as_dataset_goes_on_in_any_epoch(
    shards: list[str], case: Case, epoch: int, ranks: int, draw: st.DataObject
) -> None:
    def dataset(rank: int) -> Any:
        made = as_dataset(case.pipe(shards), seed=case.seed, rank=rank, world_size=ranks)
        made.set_epoch(epoch)
        return made

    parts = [[keys_of(item) for item in dataset(rank)] for rank in range(ranks)]
    assert sorted(key for part in parts for item in part for key in item) == KEYS
    rank = draw.draw(st.integers(0, ranks - 1), "rank")
    running = dataset(rank)
    items = iter(running)
    stopped = draw.draw(st.integers(0, len(parts[rank])), "items")
    head = [keys_of(item) for item in islice(items, stopped)]
    state = running.state_dict()
    resumed = dataset(rank)
    resumed.load_state_dict(state)
    assert head + [keys_of(item) for item in resumed] == parts[rank]


@settings(max_examples=examples(60), **QUIET)
@given(case=CASES, epochs=st.integers(1, 3), service=st.booleans())
def test_promise_3_and_4_dataloader2_gives_each_epoch_whole_and_the_same_again(
    shards: list[str], case: Case, epochs: int, service: bool
) -> None:
    def orders() -> list[list[list[str]]]:
        how = InProcessReadingService() if service else None
        with DataLoader2(case.pipe(shards), reading_service=how) as loader:
            loader.seed(case.seed)
            return [[keys_of(item) for item in loader] for _ in range(epochs)]

    found = orders()
    for order in found:
        assert sorted(key for item in order for key in item) == KEYS
    assert orders() == found
