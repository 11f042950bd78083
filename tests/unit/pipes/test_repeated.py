"""Epochs of a given length, passes, and the split over ranks and workers."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper, ShardingFilter
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.pipes.repeated import EpochSetter, Repeater
from torchdata_ais.pipes.resampled import Resampler, SplitByNode, SplitByWorker
from torchdata_ais.pipes.shuffled import Shuffler
from torchdata_ais.testing import example_shards

flat = chain.from_iterable


def key(sample: dict[str, Any]) -> str:
    return sample["__key__"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("shards"), [5] * 8)


def samples(shards: list[str]) -> Any:
    return TarSampleGrouper(AISFileLoader(IterableWrapper(shards).shuffle()))


def replicas(pipe: Any, instances: int) -> list[Any]:
    """Return a copy of `pipe` for each worker, as a loader with persistent workers keeps them."""
    found = []
    for instance in range(instances):
        copy = pickle.loads(pickle.dumps(pipe))
        apply_sharding(copy, instances, instance)
        found.append(copy)
    return found


def epoch(workers: list[Any], seed: int) -> list[list[Any]]:
    """Run one epoch, with the calls loaders make in each worker."""
    return [list(apply_random_seed(worker, torch.Generator().manual_seed(seed))) for worker in workers]


class TestWithEpoch:
    def test_an_epoch_goes_on_where_the_last_one_stopped(self) -> None:
        pipe = EpochSetter(range(5), 3)
        assert [list(pipe) for _ in range(4)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]

    def test_an_epoch_left_early_is_gone_on_with(self) -> None:
        pipe = EpochSetter(range(10), 4)
        assert next(iter(pipe)) == 0
        assert list(pipe) == [1, 2, 3, 4]

    def test_an_epoch_can_be_longer_than_the_data(self) -> None:
        assert Counter(EpochSetter(range(5), 12)) == {0: 3, 1: 3, 2: 2, 3: 2, 4: 2}

    @pytest.mark.parametrize("instances", [1, 2, 3, 4, 7])
    @pytest.mark.parametrize("number", [1, 5, 12, 40, 41])
    def test_the_number_is_that_of_all_instances_together(
        self, shards: list[str], instances: int, number: int
    ) -> None:
        found = epoch(replicas(EpochSetter(samples(shards), number), instances), 1)
        sizes = [len(part) for part in found]
        assert sum(sizes) == number
        assert max(sizes) - min(sizes) <= 1

    @pytest.mark.parametrize("instances", [1, 2, 4])
    def test_passes_of_all_instances_fit_together(self, shards: list[str], instances: int) -> None:
        # torch's shuffle draws a seed of its own for a second pass: each worker would split another order.
        workers = replicas(EpochSetter(samples(shards), 20).map(key), instances)
        seen = Counter(flat(flat(epoch(workers, number)) for number in range(6)))
        assert len(seen) == 40
        assert set(seen.values()) == {3}

    def test_passes_have_orders_of_their_own(self, shards: list[str]) -> None:
        pipe = EpochSetter(samples(shards), 40).map(key)
        orders = [tuple(pipe) for _ in range(3)]
        assert len(set(orders)) == 3
        assert len({frozenset(order) for order in orders}) == 1

    def test_a_source_without_filter_is_split(self) -> None:
        found = epoch(replicas(EpochSetter(range(10), 10), 2), 1)
        assert sorted(flat(found)) == list(range(10))

    def test_endless_shards_are_read_on(self, shards: list[str]) -> None:
        pipe = EpochSetter(TarSampleGrouper(AISFileLoader(Resampler(shards))), 7)
        assert [len(list(pipe)) for _ in range(30)] == [7] * 30

    def test_a_worker_without_shards_is_an_error_that_says_so(self, shards: list[str]) -> None:
        workers = replicas(EpochSetter(samples(shards[:2]), 9), 3)
        with pytest.raises(UsageError, match="over 3 workers of all ranks"):
            epoch(workers, 1)

    def test_repeated_shards_keep_more_workers_than_shards_busy(self, shards: list[str]) -> None:
        urls = Repeater(IterableWrapper(shards[:2]).shuffle())
        pipe = EpochSetter(TarSampleGrouper(AISFileLoader(urls)), 30).map(key)
        found = epoch(replicas(pipe, 3), 1)
        assert [len(part) for part in found] == [10, 10, 10]
        assert set(Counter(flat(found)).values()) == {3}

    def test_after_an_error_the_next_epoch_begins_a_new_pass(self) -> None:
        broken = [True]

        def fail_once(value: int) -> int:
            if value == 2 and broken.pop() if broken else False:
                raise OSError("once")
            return value

        pipe = EpochSetter(IterableWrapper(range(4)).map(fail_once), 4)
        with pytest.raises(OSError, match="once"):
            list(pipe)
        assert list(pipe) == [0, 1, 2, 3]

    @pytest.mark.parametrize("number", [0, -1])
    def test_no_number_is_a_usage_error(self, number: int) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            EpochSetter([], number)

    def test_a_dataloader_with_persistent_workers_goes_through_all_data(self, shards: list[str]) -> None:
        pipe = EpochSetter(samples(shards), 10).map(key)
        loader = DataLoader(pipe, batch_size=None, num_workers=2, persistent_workers=True)
        epochs = [list(loader) for _ in range(4)]
        assert [len(items) for items in epochs] == [10] * 4
        assert set(Counter(flat(epochs)).values()) == {1}

    def test_the_reading_service_goes_through_all_data(self, shards: list[str]) -> None:
        from torchdata_ais.dataloader2 import DataLoader2
        from torchdata_ais.loaders import MultiProcessingReadingService

        pipe = EpochSetter(samples(shards), 10).map(key)
        loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2))
        try:
            epochs = [list(loader) for _ in range(4)]
        finally:
            loader.shutdown()
        assert [len(items) for items in epochs] == [10] * 4
        assert set(Counter(flat(epochs)).values()) == {1}


class TestRepeated:
    def test_items_in_all_are_counted_over_the_passes(self) -> None:
        assert list(Repeater(range(3), 1, 2)) == [0, 1]
        assert list(Repeater(range(3), -1, 7)) == [0, 1, 2, 0, 1, 2, 0]

    def test_each_pass_of_a_shuffle_is_whole_and_has_its_own_order(self) -> None:
        items = list(Repeater(Shuffler(range(50), 50), 3))
        passes = [items[start : start + 50] for start in (0, 50, 100)]
        assert all(sorted(one) == list(range(50)) for one in passes)
        assert passes[0] != passes[1] != passes[2]

    def test_epochs_repeat_in_other_orders_and_can_be_had_again(self) -> None:
        def make() -> Repeater:
            return Repeater(Shuffler(range(50), 50), 2)

        pipe = make()
        first, second = list(pipe), list(pipe)
        assert first != second
        again = make()
        assert [list(again), list(again)] == [first, second]

    @pytest.mark.parametrize("instances", [2, 3])
    def test_every_pass_reads_every_shard_once(self, shards: list[str], instances: int) -> None:
        workers = replicas(Repeater(samples(shards), 2).map(key), instances)
        for seed in (1, 2):
            assert set(Counter(flat(epoch(workers, seed))).values()) == {2}

    @pytest.mark.parametrize("arguments", [(0,), (-2,), (1, 0)])
    def test_other_numbers_are_a_usage_error(self, arguments: Any) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            Repeater([], *arguments)


SPLITS: dict[str, Any] = {
    "none": lambda pipe: pipe,
    "node": lambda pipe: pipe.split_by_node(),
    "worker": lambda pipe: pipe.split_by_worker(),
    "both": lambda pipe: pipe.split_by_node().split_by_worker(),
    "the other way round": lambda pipe: pipe.split_by_worker().split_by_node(),
    "with a shuffle between": lambda pipe: pipe.split_by_node().shuffle().split_by_worker(),
    "and torch's own": lambda pipe: pipe.sharding_filter().split_by_worker(),
}
every_split = pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())


class TestSplit:
    """However shards are said to be split, every one is read once."""

    @every_split
    @pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)])
    def test_as_a_dataloader_splits(self, shards: list[str], split: Any, ranks: int, workers: int) -> None:
        pipe = AISFileLoader(split(IterableWrapper(shards).shuffle())).map(str)
        found = epoch(replicas(pipe, ranks * workers), 4)
        counts = Counter(flat(found))
        assert len(counts) == 80
        assert set(counts.values()) == {1}

    @every_split
    def test_as_reading_services_split(self, shards: list[str], split: Any) -> None:
        counts: Counter[str] = Counter()
        for rank in range(2):
            for worker in range(2):
                pipe = AISFileLoader(split(IterableWrapper(shards).shuffle())).map(str)
                apply_sharding(pipe, 2, rank, SHARDING_PRIORITIES.DISTRIBUTED)
                apply_sharding(pipe, 2, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
                counts.update(apply_random_seed(pipe, torch.Generator().manual_seed(4)))
        assert len(counts) == 80
        assert set(counts.values()) == {1}

    def test_the_stage_is_torchs_own_filter(self) -> None:
        # Loaders look for exactly this class to know which shuffle must be the same everywhere.
        assert type(SplitByNode([1])) is ShardingFilter
        assert type(SplitByWorker([1])) is ShardingFilter

    @pytest.mark.quick(3)
    @every_split
    def test_in_a_dataloader_with_workers(self, shards: list[str], split: Any) -> None:
        pipe = AISFileLoader(split(IterableWrapper(shards).shuffle())).map(str)
        counts = Counter(DataLoader(pipe, batch_size=None, num_workers=2))
        assert len(counts) == 80
        assert set(counts.values()) == {1}
