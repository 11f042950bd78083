"""Lambdas reach spawned workers through every loader where dill is installed, as the message about them promises."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import torchdata_ais.webdataset as wds
from torchdata_ais import AISSourceLister, SampleDataset, SampleIndex, ais_loader, as_dataset
from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards

pytest.importorskip("dill")
pytestmark = [
    pytest.mark.filterwarnings("ignore:(Lambda|Local) function is not supported"),
]

SIX = [0, 1, 2, 3, 4, 5]


def hundreds(shards: list[str]) -> Any:
    pipe = AISSourceLister(shards).load_tar().group_samples().decode(only="cls")
    return pipe.map(lambda sample: 100 * sample["cls"])


def flat(batches: Any) -> list[int]:
    return sorted(int(number) // 100 for batch in batches for number in batch)


def through_ais_loader(shards: list[str]) -> Iterator[Any]:
    with ais_loader(hundreds(shards).batched(4), num_workers=2, multiprocessing_context="spawn") as loader:
        yield from loader


def through_dataloader2(shards: list[str]) -> Iterator[Any]:
    service = MultiProcessingReadingService(2, multiprocessing_context="spawn")
    with DataLoader2(hundreds(shards).batched(4), reading_service=service) as loader:
        yield from loader


def spawned(dataset: Any, **named: Any) -> Any:
    return DataLoader(dataset, num_workers=2, multiprocessing_context="spawn", **named)


LOADERS = {
    "ais_loader": through_ais_loader,
    "DataLoader2": through_dataloader2,
    "as_dataset": lambda shards: spawned(as_dataset(hundreds(shards).batched(4)), batch_size=None),
    "SampleDataset": lambda shards: spawned(
        SampleDataset(SampleIndex.build(shards), lambda sample: 100 * int(sample["cls"])), batch_size=4
    ),
    "WebLoader": lambda shards: wds.WebLoader(
        wds.WebDataset(shards, shardshuffle=False)
        .decode()
        .map(lambda sample: (100 * sample["cls"],))
        .batched(4)
        .map(lambda batch: batch[0]),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="spawn",
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_lambda_reaches_spawned_workers(name: str, tmp_path: Path) -> None:
    assert flat(LOADERS[name](example_shards(tmp_path))) == SIX


def test_the_epoch_still_reaches_workers_that_live_on(tmp_path: Path) -> None:
    pipe: Any = AISSourceLister(example_shards(tmp_path)).load_tar().group_samples().decode(only="cls")
    dataset = as_dataset(pipe.shuffled(100).map(lambda sample: sample["cls"]))
    loader = spawned(dataset, batch_size=None, persistent_workers=True)
    orders = []
    for epoch in (1, 2, 1):
        dataset.set_epoch(epoch)
        orders.append([int(number) for number in loader])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == SIX


@pytest.mark.parametrize("name", ["ais_loader", "as_dataset", "DataLoader2"])
def test_what_dill_cannot_send_either_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = (number for number in SIX)
    pipe = AISSourceLister(example_shards(tmp_path)).load_tar().map(lambda member: (next(numbers), member))
    monkeypatch.setattr(sys.modules[__name__], "hundreds", lambda shards: pipe)
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes: .*generator"):
        flat(LOADERS[name]([]))
