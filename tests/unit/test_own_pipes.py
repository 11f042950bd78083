"""Our own base class and stages, for a torch without DataPipes, against torch's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.datapipes import iter as torchs
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_sharding

from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.stage.own import graph, pipes


def even(item: int) -> bool:
    return item % 2 == 0


def pair(item: int) -> tuple[int, int]:
    return item, item * 10


def added(one: int, two: int) -> int:
    return one + two


CHAINS: dict[str, Callable[[Any], Any]] = {
    "map": lambda pipe: pipe.map(pair),
    "columns": lambda pipe: pipe.map(pair).map(added, input_col=[0, 1]),
    "appended": lambda pipe: pipe.map(pair).map(added, input_col=[0, 1], output_col=-1),
    "put": lambda pipe: pipe.map(pair).map(even, 0, 1),
    "filter": lambda pipe: pipe.filter(even),
    "filtered by column": lambda pipe: pipe.map(pair).filter(even, input_col=0),
    "batch": lambda pipe: pipe.batch(3),
    "whole batches": lambda pipe: pipe.batch(3, drop_last=True),
    "unbatch": lambda pipe: pipe.batch(2).batch(2).unbatch(-1),
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=4).set_seed(7),
    "shuffled batches": lambda pipe: pipe.batch(2).shuffle(buffer_size=4, unbatch_level=1).set_seed(7),
    "not shuffled": lambda pipe: pipe.shuffle().set_shuffle(False),
    "concat": lambda pipe: pipe.concat(pipe.map(pair)),
    "zip": lambda pipe: pipe.map(pair).zip(type(pipe)(range(4))),
}


@pytest.mark.parametrize("name", CHAINS)
def test_they_do_what_torchs_do(name: str) -> None:
    ours, theirs = (CHAINS[name](home.IterableWrapper(range(11))) for home in (pipes, torchs))
    assert list(ours) == list(theirs)
    assert list(pickle.loads(pickle.dumps(CHAINS["batch"](pipes.IterableWrapper(range(4)))))) == [
        [0, 1, 2],
        [3],
    ]


def test_batches_become_tensors() -> None:
    (batch,) = pipes.IterableWrapper([1, 2]).batch(2).collate()
    assert torch.equal(batch, torch.tensor([1, 2]))


@pytest.mark.parametrize("instance", range(6))
def test_sharding_is_torchs(instance: int) -> None:
    rank, worker = divmod(instance, 3)
    found = []
    for home, apply, kinds in (
        (pipes, graph.apply_sharding, graph.SHARDING_PRIORITIES),
        (torchs, apply_sharding, SHARDING_PRIORITIES),
    ):
        pipe = home.IterableWrapper(range(20)).sharding_filter().map(pair)
        apply(pipe, 2, rank, kinds.DISTRIBUTED)
        apply(pipe, 3, worker, kinds.MULTIPROCESSING)
        found.append([list(pipe), len(pipe)])
    assert found[0] == found[1]


def test_sharding_twice_on_a_path_is_refused() -> None:
    pipe = pipes.IterableWrapper(range(4)).sharding_filter().map(pair).sharding_filter()
    with pytest.raises(UsageError, match="sharded twice"):
        graph.apply_sharding(pipe, 2, 0)


def test_a_new_iterator_ends_the_one_before() -> None:
    pipe = pipes.IterableWrapper(range(4))
    first, second = iter(pipe), iter(pipe)
    assert next(first) == 0
    assert next(second) == 0
    with pytest.raises(LoaderError, match="has been invalidated"):
        next(first)
    assert list(second) == [1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_3_torchs_loader_gives_every_sample_once(workers: int) -> None:
    pipe = pipes.IterableWrapper(range(40)).shuffle().sharding_filter()
    torch.manual_seed(0)
    context = "fork" if workers else None
    loader = DataLoader(pipe, batch_size=None, num_workers=workers, multiprocessing_context=context)
    first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


def test_shuffling_is_set_for_a_whole_graph() -> None:
    pipe = pipes.IterableWrapper(range(40)).shuffle().map(pair)
    assert graph.apply_shuffle_settings(pipe, None) is pipe
    assert list(graph.apply_shuffle_settings(pipe, False)) == [pair(item) for item in range(40)]
    plain = pipes.IterableWrapper(range(40))
    shuffled = graph.apply_shuffle_settings(plain, True)
    assert graph.pipes_in(graph.traverse_dps(shuffled)) == [shuffled, plain]
    assert list(copy.copy(plain)) == list(range(40))
