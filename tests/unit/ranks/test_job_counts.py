"""Processes that share data compare their batches beside them, by one request each; who differs from whom is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from torchdata_ais._util.world import World
from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.group import Ranks
from torchdata_ais.ranks.job_counts import Replicas


class Asked(dist.Store):
    """A store that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.count = dist.HashStore(), 0

    def add(self, key: str, value: int) -> int:
        self.count += 1
        return self.inner.add(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        self.count += 1
        return self.inner.compare_set(key, expected, desired)


def replicas_of(store: Any, size: int, every: int = 1) -> list[Replicas]:
    worlds = [World(0, 1, store, process, size) for process in range(size)]
    return [Replicas(Ranks(world, 1.0), world, every) for world in worlds]


def test_a_batch_asks_nobody_and_a_turn_is_one_request() -> None:
    store = Asked()
    replicas = replicas_of(store, 3)
    begun = store.count
    for step in range(40):
        for one in replicas:
            one.note(step, {"x": [step]})
    assert store.count == begun
    for one in replicas * 2:
        one.exchange()
    assert store.count == begun + 6


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("turns", [1, 4])
def test_who_differs_is_named_with_the_step_whoever_tells_first(first: int, turns: int) -> None:
    replicas = replicas_of(dist.HashStore(), 3)
    for step in range(10):
        for number, one in enumerate(replicas):
            one.note(step, "other" if number == 1 and step == 7 else "same")
    order = replicas[first:] + replicas[:first]

    def exchange() -> None:
        for one in order * turns:
            one.exchange()

    with pytest.raises(LoaderError, match=r"different batches in step 7\. ") as failed:
        exchange()
    assert 1 in (failed.value.place["failed_rank"], failed.value.place["rank"])


def test_one_that_is_behind_compares_when_it_is_there() -> None:
    ahead, behind = replicas_of(dist.HashStore(), 2)
    for step in range(30):
        ahead.note(step, step)
    ahead.exchange_last()
    for step in range(5):
        behind.note(step, -1 if step == 3 else step)
    behind.exchange()
    for step in range(5, 30):
        behind.note(step, step)
    with pytest.raises(LoaderError, match="different batches in step 14 or before it"):
        behind.exchange_last()


def test_equal_batches_are_never_a_difference_in_any_order_of_turns() -> None:
    replicas = replicas_of(dist.HashStore(), 3, every=4)
    for step in range(200):
        for number, one in enumerate(replicas):
            one.note(step, [step])
            if (step + number) % (3 + number) == 0:
                one.exchange()
    for one in replicas:
        one.exchange_last()
