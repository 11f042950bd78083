"""The facade in ranks and workers: every sample once, in a new order each epoch, whoever shuffles where."""

from __future__ import annotations

import gc
import logging
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import torchdata_ais.webdataset as wds
from torchdata_ais import AISSourceLister
from torchdata_ais.errors import ShardError, TruncatedShardError, UsageError
from torchdata_ais.testing import example_shards
from torchdata_ais.webdataset.utils import pytorch_worker_seed

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create", "ignore:Lambda function is not supported"
    ),
]

SHARDS = 8
ALL = list(range(2 * SHARDS))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("shards"), [2] * SHARDS)


def error_of(loader: Any) -> Exception:
    """Return what ends the loader, without the frames that would keep it alive: torch takes 5 s to collect one."""
    try:
        list(loader)
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError("there was no error")


def numbers(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def add(items: Iterator[int], number: int) -> Iterator[int]:
    for item in items:
        yield item + number


def readme(shards: list[str]) -> Any:
    """The README's first pipeline: nothing splits the shards."""
    return wds.DataPipeline(
        wds.SimpleShardList(shards),
        wds.tarfile_to_samples(),
        wds.shuffle(4),
        wds.map(numbers),
        partial(add, number=0),
    )


def split_after_shuffle(shards: list[str]) -> Any:
    """Another of its pipelines: each worker splits an order of its own."""
    return wds.DataPipeline(
        wds.SimpleShardList(shards),
        wds.shuffle(50),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.map(numbers),
    )


def fluid(shards: list[str]) -> Any:
    return wds.WebDataset(shards, shardshuffle=100).shuffle(4).map(numbers)


def article(shards: list[str]) -> Any:
    return wds.WebDataset(AISSourceLister(shards).shuffle().map(lambda url: {"url": url})).map(
        lambda s: int(s["cls"])
    )


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("make", "workers"),
    [
        *((make, 0) for make in (readme, split_after_shuffle, fluid, article)),
        *((make, 3) for make in (readme, split_after_shuffle)),
        *(pytest.param(make, 3, marks=pytest.mark.ci) for make in (fluid, article)),
    ],
)
def test_every_sample_once_in_a_new_order_each_epoch(
    make: Callable[[list[str]], Any], workers: int, shards: list[str]
) -> None:
    torch.manual_seed(0)  # three workers that have two or three shards each shuffle alike now and then
    loader = wds.WebLoader(make(shards), num_workers=workers, batch_size=None)
    epochs = [list(loader) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_workers_that_live_on_shuffle_anew(shards: list[str]) -> None:
    loader = DataLoader(fluid(shards), num_workers=2, batch_size=None, persistent_workers=True)
    first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == ALL
    assert first != second


@pytest.mark.ci
def test_spawned_workers_need_no_more_than_picklable_stages(shards: list[str]) -> None:
    loader = DataLoader(readme(shards), num_workers=1, batch_size=None, multiprocessing_context="spawn")
    assert sorted(loader) == ALL


def test_torch_seed_reproduces_the_epochs(shards: list[str]) -> None:
    import torch

    def run() -> list[int]:
        torch.manual_seed(5)
        return list(DataLoader(fluid(shards), num_workers=2, batch_size=None))

    assert run() == run()


def at(place: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS")
    for name, value in zip(names, place, strict=True):
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("shuffle", [None, wds.shuffle(5), wds.detshuffle(5), wds.rsample(1.0)])
def test_every_shard_once_for_any_ranks_workers_and_shards(
    shuffle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks and workers draw differently here; the splits go first."""
    for ranks, workers, count in product((1, 2, 3), (1, 2, 3), (1, 4, 11)):
        urls = [f"s-{i}.tar" for i in range(count)]
        seen: list[str] = []
        for rank, worker in product(range(ranks), range(workers)):
            at((rank, ranks, worker, workers), monkeypatch)
            pipeline = wds.DataPipeline(
                wds.SimpleShardList(urls), shuffle, wds.split_by_node, wds.split_by_worker
            )
            seen += [item["url"] for item in pipeline]
        assert sorted(seen) == sorted(urls), (ranks, workers, count)


def test_a_shuffle_in_the_lister_is_the_same_in_every_rank(
    monkeypatch: pytest.MonkeyPatch, shards: list[str]
) -> None:
    seen = []
    for rank in range(2):
        at((rank, 2, 0, 1), monkeypatch)
        source = AISSourceLister(shards).shuffle()
        seen += list(wds.WebDataset(source, nodesplitter=wds.split_by_node).map(numbers))
    assert sorted(seen) == ALL


def test_several_ranks_need_a_splitter(monkeypatch: pytest.MonkeyPatch, shards: list[str]) -> None:
    at((1, 2, 0, 1), monkeypatch)
    with pytest.raises(ValueError, match="split_by_node"):
        list(wds.WebDataset(shards))
    assert sorted(wds.WebDataset(shards, nodesplitter=None).map(numbers)) == ALL
    assert len(list(islice(wds.WebDataset(shards, resampled=True), 5))) == 5


def test_a_pipeline_without_rank_split_says_so(
    monkeypatch: pytest.MonkeyPatch, shards: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    at((0, 2, 0, 1), monkeypatch)
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        assert sorted(readme(shards)) == ALL
    assert "each of 2 ranks reads all shards" in caplog.text


def test_a_splitter_of_ones_own_is_not_split_again(
    monkeypatch: pytest.MonkeyPatch, shards: list[str]
) -> None:
    def mine(source: Iterator[Any]) -> Iterator[Any]:
        yield from islice(source, 1, None, 2)

    at((0, 1, 1, 2), monkeypatch)
    pipeline = wds.DataPipeline(wds.SimpleShardList(shards), mine, wds.tarfile_to_samples())
    assert len({sample["__url__"] for sample in pipeline}) == SHARDS // 2


def test_a_spawned_worker_knows_the_rank_of_its_loader(shards: list[str]) -> None:
    import pickle

    dataset = wds.WebDataset(shards, nodesplitter=wds.split_by_node).map(numbers)
    dataset._ranks = (1, 2)
    assert len(list(pickle.loads(pickle.dumps(dataset)))) == len(ALL) // 2


def test_fewer_shards_than_workers_is_an_error_unless_allowed(shards: list[str]) -> None:
    loader = wds.WebLoader(
        wds.WebDataset(shards[:1], empty_check=False).map(numbers), num_workers=2, batch_size=None
    )
    assert sorted(loader) == [0, 1]
    error = error_of(wds.WebLoader(wds.WebDataset(shards[:1]), num_workers=2, batch_size=None))
    assert isinstance(error, ValueError)
    assert "Worker 1 of rank 0 has no sample at all: 1 shard, 2 workers" in str(error)


def test_an_error_of_a_worker_keeps_its_class_and_place(tmp_path: Path, shards: list[str]) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(shards[0]).read_bytes()[:700])
    error = error_of(DataLoader(wds.WebDataset(str(cut)), num_workers=1, batch_size=None))
    assert isinstance(error, TruncatedShardError)
    assert error.url == str(cut)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", ["cut", "header", "html"])
def test_a_damaged_shard_is_a_readerror_of_tarfile_too(
    tmp_path: Path, shards: list[str], damage: str, workers: int
) -> None:
    data = Path(shards[0]).read_bytes()
    bad = {"cut": data[:1600], "header": data[:1100] + b"x" + data[1101:], "html": b"<html>" * 200}[damage]
    (tmp_path / "bad.tar").write_bytes(bad)
    dataset = wds.WebDataset(str(tmp_path / "bad.tar")).map(numbers)
    error = error_of(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert isinstance(error, tarfile.ReadError)
    assert isinstance(error, ShardError)
    assert error.url == str(tmp_path / "bad.tar")


def test_an_epoch_has_its_length_in_each_worker_and_goes_on(shards: list[str]) -> None:
    dataset = wds.WebDataset(shards).map(numbers).with_epoch(4)
    loader = DataLoader(dataset, num_workers=2, batch_size=None, persistent_workers=True)
    epochs = [list(loader) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [8, 8]
    assert sorted(epochs[0] + epochs[1]) == ALL


def test_an_epoch_of_a_loader_goes_on_with_the_same_workers(shards: list[str]) -> None:
    with wds.WebLoader(fluid(shards), num_workers=2, batch_size=None).with_epoch(5) as loader:
        epochs = [list(loader) for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [5] * 4
    assert sorted((epochs[0] + epochs[1] + epochs[2] + epochs[3])[: len(ALL)]) == ALL


def test_a_loader_that_is_dropped_takes_its_workers_along(shards: list[str]) -> None:
    """At once: without waiting for the garbage collector, which the next loader's workers would inherit."""
    others = set(active_children())
    loader = wds.WebLoader(fluid(shards), num_workers=1, batch_size=None).with_epoch(3)
    list(loader)
    assert len(set(active_children()) - others) == 1
    gc.disable()
    try:
        del loader
        assert set(active_children()) <= others
    finally:
        gc.enable()


def test_each_worker_draws_shards_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = set()
    for worker in range(4):
        at((0, 1, worker, 4), monkeypatch)
        urls = [
            item["url"] for item in wds.ResampledShards("s-{000..999}.tar", 8, deterministic=True, seed=3)
        ]
        assert urls == [
            i["url"] for i in wds.ResampledShards("s-{000..999}.tar", 8, deterministic=True, seed=3)
        ]
        sequences.add(tuple(urls))
    assert len(sequences) == 4


def test_an_epoch_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        wds.FluidWrapper([1]).with_epoch(0)


@pytest.mark.parametrize("deterministic", [True, False])
def test_resampled_shards_draw_every_shard_about_equally_often(deterministic: bool) -> None:
    drawn = Counter(
        item["url"] for item in wds.ResampledShards("s-{0..4}.tar", 5000, deterministic=deterministic)
    )
    assert sorted(drawn) == [f"s-{number}.tar" for number in range(5)]
    assert all(800 < count < 1200 for count in drawn.values())  # seven standard deviations


@pytest.mark.parametrize(("nsamples", "batches"), [(1, 1), (2, 1), (3, 2), (4, 2), (7, 4)])
def test_repeatedly_stops_with_the_batch_that_makes_the_number_of_samples_full(
    nsamples: int, batches: int
) -> None:
    source = [([0, 1],), ([2, 3],), ([4, 5],)]
    expected = [*source, *source][:batches]
    assert list(wds.repeatedly(source, nsamples=nsamples)) == expected


def test_no_two_workers_of_any_rank_have_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("NUM_WORKERS", "16")
    numbers = set()
    for rank, worker in product(range(8), range(16)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORKER", str(worker))
        numbers.add(pytorch_worker_seed())
    assert len(numbers) == 8 * 16
