"""Order of the shards that are left to a resumed worker."""

from __future__ import annotations

import tracemalloc

from torchdata_ais.pipes.checkpoint.shard_order import positions_of


def test_promise_7_the_positions_of_many_shards_take_no_memory() -> None:
    bits = b"\xff" * 25_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in positions_of(bits)) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 100_000  # a list of them takes 9 MB
    finally:
        tracemalloc.stop()
