"""Order of the shards that are left to a resumed worker."""

from __future__ import annotations

import tracemalloc

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais.pipes.checkpoint.shard_order import ShardOrder, positions_of


def test_promise_7_the_positions_of_many_shards_take_no_memory() -> None:
    bits = b"\xff" * 25_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in positions_of(bits)) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 100_000  # a list of them takes 9 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mapped", [False, True])
def test_promise_5_shards_have_their_positions_in_the_order_of_all_instances(mapped: bool) -> None:
    shards = [f"{number}.tar" for number in range(8)]
    found = []
    for instance in range(3):
        sharder = IterableWrapper(shards).sharding_filter()
        sharder.apply_sharding(3, instance)
        found += list(ShardOrder(sharder.map(str) if mapped else sharder))
    assert sorted(found) == list(enumerate(shards))
