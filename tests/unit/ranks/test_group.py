"""How often a rank that waits asks the store: all of a large job together must not swamp it."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from torchdata_ais._util.world import World
from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.group import Ranks

WAIT_S = 1.5


class Counting:
    """A store of torch that counts what it is asked."""

    def __init__(self) -> None:
        self._store = dist.HashStore()
        self.asked: Counter[str] = Counter()
        self.threads: set[threading.Thread] = set()  # that have asked

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def counted(*arguments: Any) -> Any:
            self.asked[name] += 1
            self.threads.add(threading.current_thread())
            return call(*arguments)

        return counted


def waits_for_the_seed(size: int) -> int:
    """Return how often the store was asked by a rank that waits `WAIT_S` for the seed of rank 0."""
    store = Counting()
    rank = Ranks(World(1, size, store), 30.0)
    store.asked.clear()
    late = threading.Timer(WAIT_S, lambda: store._store.set(f"{rank.prefix}/seed/0", "7"))
    late.start()
    assert rank.share_seed(0, 3) == 7
    late.join()
    return sum(store.asked.values())


@pytest.mark.ci
def test_the_wait_for_a_seed_asks_less_often_the_more_ranks_there_are() -> None:
    few, many = waits_for_the_seed(2), waits_for_the_seed(4000)
    assert many < 25  # a pause that doubles from 1 ms to 1 s, and a look at the others each second
    assert few > many  # of two ranks each hears of it within 50 ms


def test_a_closed_loader_of_rank_0_ends_the_wait() -> None:
    store = Counting()
    rank = Ranks(World(1, 4000, store), 30.0)
    rank.tell("closed", "1")
    with pytest.raises(LoaderError, match="Rank 0 has closed its loader, and this rank begins epoch 2"):
        rank.share_seed(2, 3)


def test_rank_0_hears_all_others_in_few_calls() -> None:
    store = Counting()
    rank = Ranks(World(0, 1000, store), 30.0)
    names = {other: f"answer/{other}" for other in range(1, 1000)}
    for other, name in names.items():
        rank.tell(name, f"of {other}")
    store.asked.clear()
    store.threads.clear()
    assert rank.hear(names) == {other: b"of %d" % other for other in names}
    assert sum(store.asked.values()) < 20  # not one for each rank
    assert len(store.threads) < 20


def test_rank_0_looks_after_those_who_do_not_come_in_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata_ais.ranks.group.usual_interval", lambda ranks: 0.0)
    store = Counting()
    rank = Ranks(World(0, 1000, store), 0.0)
    store.threads.clear()
    with pytest.raises(LoaderError, match=r"Ranks 1, 2, 3, .* did not begin this loader within 0 s"):
        rank.hear({other: f"answer/{other}" for other in range(1, 1000)})
    assert store.asked["check"] > 3 * 999  # each of them: its answer, its signs of life, its trouble
    assert len(store.threads) < 40


def test_a_store_that_gives_one_value_a_call_is_heard_too(tmp_path: Path) -> None:
    rank = Ranks(World(0, 600, dist.FileStore(str(tmp_path / "store"), 600)), 30.0)
    names = {other: f"answer/{other}" for other in range(1, 600)}
    for other, name in names.items():
        rank.tell(name, f"of {other}")
    assert rank.hear(names) == {other: b"of %d" % other for other in names}
