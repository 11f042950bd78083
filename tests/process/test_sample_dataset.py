"""`SampleDataset` under torch's `DataLoader`: any sampler, any start method, one read a batch."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, random_split
from torch.utils.data.distributed import DistributedSampler

from torchdata_ais import Decoder, Retry, Safety, SampleDataset, SampleIndex, StoreOptions
from torchdata_ais.errors import SampleError, UsageError
from torchdata_ais.local import LocalCluster, Reset
from torchdata_ais.store import put_object
from torchdata_ais.testing import example_shards


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as made:
        made.client().bucket("b").create()
        options = StoreOptions(endpoint=made.endpoint)
        for path in example_shards(counts=(10, 13, 17)):
            put_object(f"ais://b/{Path(path).name}", Path(path).read_bytes(), options)
        SampleIndex.build("ais://b/shard-", cluster=options).save()
        yield made


def numbers(loader: Any) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in loader]


@pytest.mark.quick(1)
@pytest.mark.parametrize("start", [None, "fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_promise_3_samplers_of_torch_get_each_sample_they_ask_for(
    cluster: LocalCluster, start: str | None
) -> None:
    dataset = SampleDataset("ais://b/shard-", Decoder(only="cls"), cluster=cluster)
    assert dataset[3]["cls"] == 3  # there are connections when workers are forked
    how: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": start} if start else {}
    how["batch_size"] = 8
    ranks = [
        numbers(DataLoader(dataset, sampler=DistributedSampler(dataset, 2, rank, seed=3), **how))
        for rank in (0, 1)
    ]
    assert sorted(n for rank in ranks for batch in rank for n in batch) == list(range(40))
    assert [len(batch) for batch in ranks[0]] == [8, 8, 4]
    if start == "spawn":
        return  # the others tell nothing more, and each starts processes anew
    weights = [0.0] * 39 + [1.0]
    drawn = numbers(DataLoader(dataset, sampler=WeightedRandomSampler(weights, 10), **how))
    assert drawn == [[39] * 8, [39] * 2]
    part = Subset(dataset, [5, 3, 39, 5])
    assert numbers(DataLoader(part, **how)) == [[5, 3, 39, 5]]
    left, right = random_split(dataset, [0.25, 0.75], generator=torch.Generator().manual_seed(1))
    both = [n for some in (left, right) for batch in numbers(DataLoader(some, **how)) for n in batch]
    assert sorted(both) == list(range(40))


def test_a_batch_is_one_read_in_the_order_asked_for(
    cluster: LocalCluster, threads_left: Callable[[], list[str]]
) -> None:
    dataset = SampleDataset("ais://b/shard-", Decoder(), cluster=cluster)
    order = random.Random(1).choices(range(40), k=64)
    assert len(dataset.__getitems__([0, 12, 39])) == 3  # the index is read
    cluster.reset_stats()
    assert [sample["cls"] for sample in dataset.__getitems__(order)] == order
    assert len([1 for record in cluster.requests() if record.role == "target"]) <= 3  # a range of each shard
    assert dataset.__getitems__([]) == []
    assert [name for name in threads_left() if name.startswith("torchdata_ais")] == []


def test_it_pickles_with_its_index_and_says_what_it_is(cluster: LocalCluster) -> None:
    dataset = SampleDataset(SampleIndex.open("ais://b/shard-", cluster=cluster).select([1, 2, 30]), Decoder())
    again = pickle.loads(pickle.dumps(dataset))
    assert [sample["cls"] for sample in again] == [1, 2, 30]
    assert (len(again), again[-1]["cls"], again[torch.tensor(1)]["cls"]) == (3, 30, 2)
    assert repr(again).startswith("SampleDataset(SampleIndex(3 samples of 3 shards")
    for number in (3, -4):
        with pytest.raises(IndexError, match=rf"no sample {number} in a data set of 3"):
            again[number]


def test_an_error_names_the_sample_and_what_is_no_index_is_refused(cluster: LocalCluster) -> None:
    options = StoreOptions(endpoint=cluster.endpoint, retry=Retry(attempts=2, backoff=0.001))
    dataset = SampleDataset("ais://b/shard-", Decoder(only="cls"), cluster=options)
    cluster.faults.add(Reset(), verb="GET", times=1)
    assert dataset[7]["cls"] == 7
    cluster.faults.clear()
    with pytest.raises(SampleError, match="max_sample_bytes=3") as raised:
        SampleDataset("ais://b/shard-", cluster=options, safety=Safety(max_sample_bytes=3)).__getitems__(
            [1, 30]
        )
    assert raised.value.key == "00030"
    with pytest.raises(UsageError, match="item of type list, not an index"):
        SampleDataset([])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="transform="):
        SampleDataset(dataset.index, transform=3)  # type: ignore[arg-type]
