"""What the reading service yields: every item once, in an order that the seed decides, under every setting."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from service_pipes import COUNTS, EVERY_ITEM, NotReplicable, double, is_even, numbers, uneven, with_pid
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchdata_ais.dataloader2 import DataLoader2, InProcessReadingService
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.loaders import MultiProcessingReadingService

PREFETCH = [(0, 0), (10, 10)]


def load(pipe: Any, workers: int, *args: Any, **options: Any) -> Any:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, *args, **options))


def orders(workers: int, *args: Any, epochs: int = 2, seed: int = 7) -> list[list[Any]]:
    with load(uneven(), workers, *args) as loader:
        loader.seed(seed)
        return [list(loader) for _ in range(epochs)]


@pytest.mark.quick(3)
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("workers", [0, 1, 2, 8])
def test_promise_3_uneven_workers_give_every_item_once(workers: int, prefetch: tuple[int, int]) -> None:
    with load(uneven(), workers, None, *prefetch) as loader:
        for _ in range(3):
            assert sorted(loader) == EVERY_ITEM


@pytest.mark.quick(2)
@pytest.mark.parametrize("counts", [(0, 9, 4), (9, 0, 1), (4, 1, 9), (1, 4, 0), (0, 0, 5)])
def test_any_three_unequal_workers(counts: tuple[int, ...]) -> None:
    with load(uneven(list(counts)), 3) as loader:
        assert sorted(loader) == sorted((count, number) for count in counts for number in range(count))


@pytest.mark.ci
@pytest.mark.timeout(150)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_promise_4_the_order_is_the_same_under_every_start_method(method: str) -> None:
    assert orders(2, method) == orders(2, "fork")


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_4_a_seed_gives_a_new_order_each_epoch_and_the_same_epochs_again(workers: int) -> None:
    first = orders(workers, epochs=4)
    assert len({tuple(order) for order in first}) == 4
    assert orders(workers, epochs=4) == first
    assert orders(workers, epochs=4, seed=8) != first


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_prefetch_does_not_change_the_order(prefetch: tuple[int, int]) -> None:
    assert orders(3, None, *prefetch) == orders(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_seed_epochs_differ_and_follow_torchs_global_seed(workers: int) -> None:
    with load(uneven(), workers) as loader:
        torch.manual_seed(3)
        first = [list(loader) for _ in range(3)]
        assert len({tuple(order) for order in first}) == 3
        torch.manual_seed(3)
        assert [list(loader) for _ in range(3)] == first


def test_seeding_again_starts_the_same_epochs_again() -> None:
    with load(uneven(), 2) as loader:
        loader.seed(1)
        first = [list(loader), list(loader)]
        loader.seed(1)
        assert [list(loader), list(loader)] == first


def random_numbers(item: Any) -> tuple[Any, float, float]:
    import numpy as np

    return item, random.random(), float(np.random.rand()) + torch.rand(()).item()  # noqa: NPY002


def test_global_generators_are_seeded_differently_in_each_worker_and_epoch() -> None:
    with load(numbers(8).map(random_numbers), 2) as loader:
        loader.seed(0)
        first, second = list(loader), list(loader)
        loader.seed(0)
        assert list(loader) == first
    assert len({row[1] for row in first + second}) == len({row[2] for row in first + second}) == 16


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_items_come_round_robin(workers: int) -> None:
    with load(numbers(10), workers) as loader:
        assert list(loader) == list(range(10))


def test_every_loader_gives_the_same_items() -> None:
    services: list[Callable[[], Any]] = [
        lambda: None,
        InProcessReadingService,
        *(lambda n=n: MultiProcessingReadingService(n) for n in (0, 1, 2, 3)),
    ]
    for service in services:
        with DataLoader2(uneven(), reading_service=service()) as loader:
            assert sorted(loader) == EVERY_ITEM
    for workers in (0, 2):
        plain = DataLoader(uneven(), batch_size=None, num_workers=workers)
        assert sorted(tuple(item) for item in plain) == EVERY_ITEM


@pytest.mark.quick(3)
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_epoch_broken_off_leaves_nothing_in_the_next(taken: int, prefetch: tuple[int, int]) -> None:
    with load(uneven(), 3, None, *prefetch) as loader:
        for _ in range(4):
            list(itertools.islice(loader, taken))
            assert sorted(loader) == EVERY_ITEM


def test_the_newer_iterator_wins_and_the_older_one_says_so() -> None:
    with load(numbers(10), 2) as loader:
        first = iter(loader)
        assert [next(first), next(first)] == [0, 1]
        second = iter(loader)
        assert [next(second), next(second)] == [0, 1]
        with pytest.raises(RuntimeError, match="invalidated"):
            next(first)
        assert list(second) == list(range(2, 10))


def test_reading_on_after_shutdown_is_an_error_not_a_short_epoch() -> None:
    loader = load(numbers(10), 2)
    items = iter(loader)
    next(items)
    loader.shutdown()
    with pytest.raises(LoaderError, match="shut down"):
        next(items)
    with pytest.raises(RuntimeError, match="shut down"):
        iter(loader)


def test_two_loaders_live_side_by_side() -> None:
    with load(uneven(), 2) as train, load(numbers(50), 2) as check:
        for _ in range(2):
            seen = []
            for item in train:
                seen.append(item)
                if len(seen) % 10 == 0:
                    assert list(check) == list(range(50))
            assert sorted(seen) == EVERY_ITEM


def test_the_services_own_context_manager_ends_its_loaders() -> None:
    with MultiProcessingReadingService(2) as service:
        loader = DataLoader2(numbers(10), reading_service=service)
        items = iter(loader)
        next(items)
    with pytest.raises(LoaderError, match="shut down"):
        next(items)


def test_pipes_that_are_not_replicable_stay_in_the_main_process() -> None:
    with load(NotReplicable(numbers(20).map(with_pid)), 2) as loader:
        rows = list(loader)
        assert type(loader.reading_service._end_datapipe) is NotReplicable
    assert [number for (number, _), _ in rows] == list(range(20))
    assert {pid for _, pid in rows} == {os.getpid()}
    assert len({pid for (_, pid), _ in rows} - {os.getpid()}) == 2


def test_two_replicable_branches_are_refused_with_a_way_out() -> None:
    pipe = NotReplicable(numbers(3)).zip(NotReplicable(numbers(3)))
    with pytest.raises(UsageError, match="2 such branches"):
        iter(load(pipe, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_sharding_filter_is_refused_before_a_process_starts(workers: int) -> None:
    loader = load(numbers(10).map(double).sharding_filter(), workers)
    with pytest.raises(UsageError, match="sharded twice"):
        iter(loader)


def reset_to_123(pipe: Any, info: Any, seeds: Any) -> Any:
    from torchdata_ais.dataloader2.graph import set_graph_random_seed

    seeds.seed(123)
    return set_graph_random_seed(pipe, seeds)


def add_worker_id(pipe: Any, info: Any) -> Any:
    return pipe.zip(IterableWrapper([(info.num_workers, info.worker_id, torch.get_num_threads())] * 100))


def test_worker_init_fn_and_worker_reset_fn_are_called_in_each_worker() -> None:
    pipe = IterableWrapper(range(6)).shuffle().sharding_filter()
    with load(pipe, 2, worker_init_fn=add_worker_id, worker_reset_fn=reset_to_123) as loader:
        first, second = list(loader), list(loader)
    assert first == second
    assert {told for _, told in first} == {(2, 0, 1), (2, 1, 1)}


class Epochs(IterDataPipe[tuple[int, int]]):
    """Items with the number of the epoch, of which pipes are notified."""

    def __init__(self, source: Any) -> None:
        self.source, self.epoch = source, -1

    def _ais_reset(self, *, epoch: int, extras: object) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((item, self.epoch) for item in self.source)


def add_epochs(pipe: Any, info: Any, seeds: Any) -> Any:
    return pipe if isinstance(pipe, Epochs) else Epochs(pipe)


def test_what_worker_reset_fn_adds_is_notified_of_the_epoch() -> None:
    with load(IterableWrapper(range(4)).sharding_filter(), 2, worker_reset_fn=add_epochs) as loader:
        for epoch in range(2):
            assert sorted(loader) == [(item, epoch) for item in range(4)]


# sharding_round_robin_dispatch --------------------------------------------------------------------------------------


def count_up(count: int) -> list[int]:
    return list(range(count))


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("workers", [1, 3])
def test_dispatched_items_come_once_whatever_the_workers_make_of_them(
    workers: int, prefetch: tuple[int, int]
) -> None:
    source = IterableWrapper(COUNTS).shuffle().map(count_up).unbatch()
    with load(dispatched(source).map(double).batch(2), workers, None, *prefetch) as loader:
        for _ in range(2):
            items = [item for batch in loader for item in batch]
            assert sorted(items) == sorted(2 * number for count in COUNTS for number in range(count))


def test_dispatched_items_are_split_evenly_and_epochs_broken_off_are_forgotten() -> None:
    with load(dispatched(IterableWrapper(range(40))).map(with_pid), 2) as loader:
        for taken in (0, 1, 7, 40):
            list(itertools.islice(loader, taken))
        rows = list(loader)
    assert [number for number, _ in rows] == list(range(40))
    assert sorted(Counter(pid for _, pid in rows).values()) == [20, 20]


def test_a_worker_that_filters_out_its_whole_share_starves_nobody() -> None:
    with load(dispatched(IterableWrapper(range(200))).filter(is_even), 2) as loader:
        assert sorted(loader) == list(range(0, 200, 2))


def test_a_worker_that_never_takes_its_share_is_an_error_not_a_hang() -> None:
    pipe = dispatched(IterableWrapper(range(100_000))).filter(is_even)
    with load(pipe, 2, None, 0, 0) as loader, pytest.raises(LoaderError, match="1000 items wait"):
        list(loader)


def test_dispatching_and_sharding_in_one_pipe() -> None:
    left = dispatched(IterableWrapper(range(10)).shuffle())
    right = IterableWrapper(range(10)).shuffle().sharding_filter()
    with load(left.zip(right), 2) as loader:
        loader.seed(0)
        first, second = list(loader), list(loader)
    for rows in (first, second):
        assert sorted(row[0] for row in rows) == sorted(row[1] for row in rows) == list(range(10))
    assert first != second


class Twice(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source
        yield from self.source


def test_reading_dispatched_items_twice_in_an_epoch_is_refused() -> None:
    with (
        load(Twice(dispatched(IterableWrapper(range(4)))), 2) as loader,
        pytest.raises(ValueError, match="second time"),
    ):
        list(loader)
