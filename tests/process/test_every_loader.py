"""One pipe, every loader: each sample once an epoch, in a new order each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from torchdata_ais import AISSourceLister, MultiProcessingReadingService
from torchdata_ais.dataloader2 import DataLoader2, InProcessReadingService
from torchdata_ais.pipes.base.pipe import ShardingFilter
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.testing import write_shard

EPOCHS = 3


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five shards of 1, 14, 3, 0 and 22 samples."""
    folder = tmp_path_factory.mktemp("uneven")
    return list(write_shards(folder, [1, 14, 3, 0, 22]))


def write_shards(folder: Path, counts: list[int]) -> Iterator[str]:
    number = 0
    for index, count in enumerate(counts):
        members = []
        for _ in range(count):
            members += [(f"{number:04d}.cls", str(number).encode()), (f"{number:04d}.txt", b"x" * number)]
            number += 1
        yield write_shard(folder / f"s-{index}.tar", members)


def make_pipe(urls: list[str]) -> Any:
    return (
        AISSourceLister(urls)
        .shuffle()
        .load_tar()
        .group_samples()
        .shuffled(7)
        .decode()
        .to_tuple("cls")
        .batched(4)
    )


def in_process(pipe: Any) -> Iterator[list[int]]:
    for _ in range(EPOCHS):
        yield numbers(pipe)


def plain_loader(workers: int) -> Callable[[Any], Iterator[list[int]]]:
    def run(pipe: Any) -> Iterator[list[int]]:
        loader: Any = DataLoader(pipe, batch_size=None, num_workers=workers)
        for _ in range(EPOCHS):
            yield numbers(loader)

    return run


def loader2(make_service: Callable[[], Any]) -> Callable[[Any], Iterator[list[int]]]:
    def run(pipe: Any) -> Iterator[list[int]]:
        loader = DataLoader2(pipe, reading_service=make_service())
        loader.seed(3)  # without it torchdata's InProcessReadingService repeats one order
        try:
            for _ in range(EPOCHS):
                yield numbers(loader)
        finally:
            loader.shutdown()

    return run


def numbers(loader: Any) -> list[int]:
    return [int(number) for (batch,) in loader for number in batch]


LOADERS = {
    "in process": in_process,
    "DataLoader 0": plain_loader(0),
    "DataLoader 2": plain_loader(2),
    "DataLoader2": loader2(lambda: None),
    "DataLoader2 InProcess": loader2(InProcessReadingService),
    **{f"DataLoader2 workers={n}": loader2(lambda n=n: MultiProcessingReadingService(n)) for n in (1, 2, 3)},
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LOADERS)
def test_promise_3_every_sample_once_in_each_epoch_and_a_new_order(name: str, uneven: list[str]) -> None:
    orders = list(LOADERS[name](make_pipe(uneven)))
    assert [sorted(order) for order in orders] == [list(range(40))] * EPOCHS
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("name", ["DataLoader 2", "DataLoader2 workers=3"])
def test_promise_3_fewer_shards_than_workers(name: str, tmp_path: Path) -> None:
    urls = list(write_shards(tmp_path, [5]))
    for order in LOADERS[name](make_pipe(urls)):
        assert sorted(order) == list(range(5))


def test_shards_fewer_than_workers_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = AISSourceLister(list(write_shards(tmp_path, [1, 2]))).load_tar().group_samples()
    (sharder,) = [stage for stage in upstream(pipe) if isinstance(stage, ShardingFilter)]
    for worker in range(5):
        sharder.apply_sharding(5, worker)
        list(pipe)
    (record,) = caplog.records
    assert record.getMessage().startswith("2 shards for 5 workers (over all ranks): 3 get none")


def test_promise_4_the_same_seed_gives_the_same_orders(uneven: list[str]) -> None:
    def run() -> list[list[int]]:
        with DataLoader2(make_pipe(uneven), reading_service=MultiProcessingReadingService(2)) as loader:
            loader.seed(7)
            return [numbers(loader) for _ in range(2)]

    first = run()
    assert first == run()
    assert first[0] != first[1]
